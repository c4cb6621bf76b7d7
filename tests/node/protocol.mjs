// The protocol as a stock client loads it: grpc-js and proto-loader, nothing of ours.

import { join } from "node:path";

import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

export const REPOSITORY = process.env.TINYGPT_REPOSITORY;

const definition = loadSync(
  ["admin", "cache", "inference", "model"].map((name) => `tinygpt/v1/${name}.proto`),
  { includeDirs: [join(REPOSITORY, "proto", "proto")], longs: String, enums: String, defaults: true, oneofs: true },
);

export const v1 = grpc.loadPackageDefinition(definition).tinygpt.v1;
export const insecure = () => grpc.credentials.createInsecure();

/** The answer to a unary call. */
export function call(stub, method, request) {
  return new Promise((resolve, reject) =>
    stub[method](request, (error, answer) => (error ? reject(error) : resolve(answer))),
  );
}
