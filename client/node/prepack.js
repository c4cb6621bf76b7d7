// Puts a copy of the protocol into the package, so that it works without the repository.

import { cpSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

cpSync(here("../../proto/proto"), here("proto"), { recursive: true });
