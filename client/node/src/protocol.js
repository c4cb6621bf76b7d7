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

const definition = loadSync(FILES, { includeDirs: [folder], longs: String, enums: String, defaults: true, oneofs: true });

export const services = grpc.loadPackageDefinition(definition).tinygpt.v1;

const typeOf = (name) => definition[`tinygpt.v1.${name}`].type;

/** The event that a response of a generation stream carries. */
export function plainEvent(response, responseType) {
  const { name, typeName } = typeOf(responseType).field.find(({ name }) => name === response.event);
  return { kind: name, ...plain(response[name], typeName) };
}

/** A message without what proto-loader adds for oneofs, with short enum values and real numbers. */
export function plain(message, name) {
  const present = typeOf(name).field.filter((field) => message[field.name] !== undefined);
  return Object.fromEntries(present.map((field) => [field.name, plainField(message[field.name], field)]));
}

function plainField(value, field) {
  return Array.isArray(value) ? value.map((item) => plainValue(item, field)) : plainValue(value, field);
}

/** Counts of 64 bits stay far below 2^53. The seed does not, and becomes a bigint. */
function plainValue(value, { name, type, typeName }) {
  switch (value === null ? "absent" : type) {
    case "TYPE_MESSAGE":
      return typeName.endsWith("google.protobuf.Timestamp") ? date(value) : plain(value, typeName);
    case "TYPE_ENUM":
      return label(value, typeOf(typeName).value[0].name);
    case "TYPE_UINT64":
      return name === "seed" ? BigInt(value) : Number(value);
    default:
      return value;
  }
}

function date({ seconds, nanos }) {
  return new Date(Number(seconds) * 1000 + Math.trunc(nanos / 1e6));
}

/** An enum value without the prefix that `zero`, the enum's first value, shows. Unknown ones arrive as numbers. */
function label(value, zero) {
  return typeof value === "string" ? value.slice(zero.length - "UNSPECIFIED".length) : "UNSPECIFIED";
}
