// A daemon of a few lines, for what the client package does with answers that a real one gives rarely.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

import grpc from "@grpc/grpc-js";

import { v1 } from "./protocol.mjs";

// google.rpc.Status: details ErrorInfo{reason "QUEUE_FULL", domain "tinygpt",
// metadata {limit: "64"}} and RetryInfo{0.25 s}; made with Python's grpcio-status.
const BUSY = Buffer.from("CAgSF3RoZSBxdWV1ZSBvZiA2NCBpcyBmdWxsGk4KKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5FcnJvckluZm8SIgoKUVVFVUVfRlVMTBIHdGlueWdwdBoLCgVsaW1pdBICNjQaMwoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIHCgUQgOWadw==", "base64");

/** Serves at `name` in a folder of its own. Answers by the prompt's text, as the Python tests' fake does. */
export async function fakeDaemon(name = "fake.sock") {
  const folder = mkdtempSync(join(tmpdir(), "tg-"));
  const socket = join(folder, name);
  const fake = { socket, folder, requests: [], cancelled: null };
  fake.cancelled = new Promise((resolve) => (fake.wasCancelled = resolve));
  const server = new grpc.Server();
  server.addService(v1.InferenceService.service, {
    sample: (call) => sample(call, fake),
    warm: (call) => warm(call, fake),
  });
  await promisify(server.bindAsync.bind(server))(`unix:${socket}`, grpc.ServerCredentials.createInsecure());
  fake.stop = () => {
    server.forceShutdown();
    rmSync(folder, { recursive: true });
  };
  return fake;
}

function sample(call, fake) {
  fake.requests.push(call.request);
  if (call.request.text === "busy") {
    call.emit("error", busy());
    return;
  }
  call.write({ admitted: { model: "toy", promptTokens: 3, seed: "9223372036854775808" } });
  if (call.request.text === "endless") {
    const ticks = setInterval(() => call.write({ delta: { text: "and on " } }), 10);
    call.on("cancelled", () => {
      clearInterval(ticks);
      fake.wasCancelled();
    });
    return;
  }
  call.write({ prefillProgress: { doneTokens: 2, totalTokens: 3 } });
  call.write({ delta: words() });
  call.write({ delta: { tokenIds: [9] } });
  call.write({ done: done() });
  call.end();
}

function warm(call, fake) {
  fake.requests.push(call.request);
  call.write({ admitted: { model: "toy", promptTokens: 3 } });
  if (call.request.pin) {
    call.write({ pinned: { expires: { seconds: 1_800_000_000, nanos: 500_000_000 }, bytes: 7, durable: true } });
  }
  call.write({ done: done() });
  call.end();
}

function busy() {
  const metadata = new grpc.Metadata();
  metadata.set("grpc-status-details-bin", BUSY);
  return { code: grpc.status.RESOURCE_EXHAUSTED, details: "the queue of 64 is full", metadata };
}

function words() {
  const top = [
    { id: 7, logprob: -0.5 },
    { id: 8, logprob: -1.5 },
  ];
  return { text: "words", tokenIds: [7, 8], logprobs: [{ id: 7, logprob: -0.5, top }, { id: 8 }] };
}

function done() {
  return {
    finishReason: "FINISH_REASON_STOP",
    verdict: "VERDICT_PARTIAL_DISK",
    reason: "REASON_DIVERGED",
    divergence: { tokenIndex: 2, promptText: "a", cachedText: "b" },
    usage: { promptTokens: 3, cachedTokens: 2, cached: { disk: 2 }, completionTokens: 3 },
    timings: { ttftMs: 1.5 },
    warnings: ["two beginning tokens"],
  };
}
