/**
 * Where the daemon listens. Daemon and clients walk the same list, so that they meet without having
 * spoken: `TINYGPT_SOCKET`; `tinygpt/tinygptd.sock` in a runtime directory that belongs to the user
 * (`$XDG_RUNTIME_DIR`, else `/run/user/<uid>`; on macOS the user's Application Support folder),
 * unless that path is too long; `tinygpt-<uid>/tinygptd.sock` in the system's temporary folder.
 */

import { statSync } from "node:fs";
import { homedir } from "node:os";
import { isAbsolute, join, resolve } from "node:path";

const MACOS = process.platform === "darwin";

/** The longest socket path: the size of the kernel's `sun_path` less its terminating zero. */
export const MAX_PATH_BYTES = MACOS ? 103 : 107;

/** The gRPC target for a socket path, or for the default socket. */
export function target(socket = defaultSocket()) {
  const path = resolve(socket);
  const bytes = Buffer.byteLength(path);
  if (bytes > MAX_PATH_BYTES) {
    throw new RangeError(
      `the socket path "${path}" is ${bytes} bytes long, this system allows ${MAX_PATH_BYTES}`,
    );
  }
  return `unix:${path}`;
}

export function defaultSocket() {
  if (process.env.TINYGPT_SOCKET) {
    return process.env.TINYGPT_SOCKET;
  }
  const found = runtimeDirectories()
    .filter(isMine)
    .map((home) => join(home, "tinygpt", "tinygptd.sock"))
    .find((path) => Buffer.byteLength(path) <= MAX_PATH_BYTES);
  return found ?? join(process.env.TMPDIR ?? "/tmp", `tinygpt-${process.geteuid()}`, "tinygptd.sock");
}

function runtimeDirectories() {
  const usual = MACOS ? join(homedir(), "Library", "Application Support") : `/run/user/${process.geteuid()}`;
  return [process.env.XDG_RUNTIME_DIR, usual].filter((path) => path && isAbsolute(path));
}

function isMine(directory) {
  const found = statSync(directory, { throwIfNoEntry: false });
  return found !== undefined && found.isDirectory() && found.uid === process.geteuid();
}
