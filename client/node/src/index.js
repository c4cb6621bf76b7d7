/**
 * Talks to tinygptd, a local model daemon with a lasting KV cache, over its Unix socket.
 * The types, and with them the documentation, are in `index.d.ts`.
 */

export { Client } from "./client.js";
export { TinyGptError } from "./errors.js";
export { Sample } from "./sample.js";
export { MAX_PATH_BYTES, defaultSocket } from "./sockets.js";
