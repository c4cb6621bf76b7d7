// The declared types hold for a program that is compiled strictly.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

test("a program that uses the client package type-checks, and one that misuses it does not", () => {
  const compiler = fileURLToPath(import.meta.resolve("typescript/lib/tsc.js"));
  const options = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--types", "node"];
  const { status, stdout } = spawnSync(process.execPath, [compiler, ...options, "usage.ts"], { encoding: "utf8" });
  assert.equal(status, 0, stdout);
});
