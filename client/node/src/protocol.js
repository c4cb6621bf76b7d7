/** The protocol's stubs, and what its messages look like to a JavaScript program. */

import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const MAX_MESSAGE_BYTES = 64 << 20;

export const CREDENTIALS = grpc.credentials.createInsecure();
export const CHANNEL_OPTIONS = {
  "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
  "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
};

const FILES = ["admin", "cache", "inference", "model"].map((name) => `tinygpt/v1/${name}.proto`);

/** The packed protocol, or in a checkout the repository's. */
const folder = ["../proto", "../../../proto/proto"]
  .map((path) => fileURLToPath(new URL(path, import.meta.url)))
  .find(existsSync);

export const services = grpc.loadPackageDefinition(
  loadSync(FILES, { includeDirs: [folder], longs: String, enums: String, defaults: true, oneofs: true }),
).tinygpt.v1;

/** Enum fields, and what their values' names begin with. */
const ENUMS = { verdict: "VERDICT_", reason: "REASON_", finishReason: "FINISH_REASON_", state: "MODEL_STATE_" };

/** 64-bit fields of `Model`; all stay far below 2^53. The seed does not, and becomes a bigint. */
const COUNTS = new Set(["parameters", "weightBytes", "kvBytesPerToken", "kvBytesPerTokenMha"]);

/** A message without what proto-loader adds for oneofs, with short enum values and real numbers. */
export function plain(value, name) {
  if (Array.isArray(value)) {
    return value.map((item) => plain(item));
  }
  if (value !== null && typeof value === "object") {
    const fields = Object.entries(value).filter(([field]) => !field.startsWith("_"));
    return Object.fromEntries(fields.map(([field, inner]) => [field, plain(inner, field)]));
  }
  if (name in ENUMS) {
    return label(value, ENUMS[name]);
  }
  return name === "seed" ? BigInt(value) : COUNTS.has(name) ? Number(value) : value;
}

/** A value that this version does not know arrives as a number. */
function label(value, prefix) {
  return typeof value === "string" ? value.slice(prefix.length) : "UNSPECIFIED";
}
