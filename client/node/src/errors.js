import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const wire = loadSync(fileURLToPath(new URL("status.proto", import.meta.url)), { longs: Number, defaults: true });
const decode = (message, bytes) => wire[`tinygpt.client.${message}`].deserialize(bytes);

export class TinyGptError extends Error {
  name = "TinyGptError";

  constructor(code, message, { reason = "", metadata = {}, retryAfterMs = null } = {}) {
    super(message);
    this.code = code;
    this.reason = reason;
    this.metadata = metadata;
    this.retryAfterMs = retryAfterMs;
  }
}

/** Turns a failed call into a `TinyGptError`, and leaves everything else as it is. */
export function translated(error) {
  if (typeof error?.code !== "number" || !(error.metadata instanceof grpc.Metadata)) {
    return error;
  }
  return new TinyGptError(grpc.status[error.code], error.details, details(error.metadata));
}

function details(metadata) {
  const [packed] = metadata.get("grpc-status-details-bin");
  const found = {};
  for (const { type_url: type, value } of packed ? decode("Status", packed).details : []) {
    if (type.endsWith("/google.rpc.ErrorInfo")) {
      Object.assign(found, decode("ErrorInfo", value));
    } else if (type.endsWith("/google.rpc.RetryInfo")) {
      const { seconds, nanos } = decode("RetryInfo", value).retryDelay;
      found.retryAfterMs = seconds * 1e3 + nanos / 1e6;
    }
  }
  return found;
}
