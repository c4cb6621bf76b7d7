// Runs a real tinygptd in a folder of its own.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { REPOSITORY, call, insecure, v1 } from "./protocol.mjs";

const START_SECONDS = 60;
const BINARY = process.env.TINYGPTD ?? join(REPOSITORY, "target", "debug", "tinygptd");

/** Serves the built-in model, on a socket of its own or, with `defaultPlace`, where the rules say. */
export async function startDaemon({ defaultPlace = false } = {}) {
  const folder = mkdtempSync(join(tmpdir(), "tg-"));
  const socket = join(folder, defaultPlace ? "tinygpt/tinygptd.sock" : "tinygptd.sock");
  const place = defaultPlace ? [] : ["--socket", socket];
  const log = openSync(join(folder, "log"), "w");
  const child = spawn(BINARY, [...place, "--cache-dir", join(folder, "cache")], {
    cwd: folder,
    env: environment(folder),
    stdio: ["ignore", "ignore", log],
  });
  closeSync(log);
  const ended = once(child, "exit");
  const stop = async () => {
    child.kill("SIGKILL");
    await ended;
    rmSync(folder, { recursive: true });
  };
  try {
    await serving(child, socket, join(folder, "log"));
  } catch (error) {
    await stop();
    throw error;
  }
  return { folder, socket, pid: child.pid, stop };
}

/** This process's environment without what would send daemon or client elsewhere. */
export function environment(runtimeDirectory) {
  const inherited = Object.entries(process.env).filter(([name]) => !name.startsWith("TINYGPT"));
  return { ...Object.fromEntries(inherited), XDG_RUNTIME_DIR: runtimeDirectory };
}

async function serving(child, socket, log) {
  const deadline = Date.now() + START_SECONDS * 1000;
  while (!(await serves(socket))) {
    if (child.exitCode !== null) {
      throw new Error(`tinygptd ended with ${child.exitCode}:\n${readFileSync(log)}`);
    }
    if (Date.now() > deadline) {
      throw new Error(`tinygptd does not serve after ${START_SECONDS} s:\n${readFileSync(log)}`);
    }
    await sleep(50);
  }
}

async function serves(socket) {
  if (!existsSync(socket)) {
    return false;
  }
  const admin = new v1.AdminService(`unix:${socket}`, insecure());
  try {
    return (await call(admin, "status", {})).state === "DAEMON_STATE_SERVING";
  } catch {
    return false;
  } finally {
    admin.close();
  }
}
