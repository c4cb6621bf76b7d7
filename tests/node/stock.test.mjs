// Stock grpc-js with proto-loader, with no options, on a bare `unix:` target.

import assert from "node:assert/strict";
import { chdir, cwd } from "node:process";
import { dirname } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import grpc from "@grpc/grpc-js";

import { startDaemon } from "./daemon.mjs";
import { call, insecure, v1 } from "./protocol.mjs";

/** Tokens of a generation that takes long enough to be interrupted. */
const LONG = 900;

let daemon;
let inference;

before(async () => {
  daemon = await startDaemon();
  inference = new v1.InferenceService(`unix:${daemon.socket}`, insecure());
});

after(async () => {
  inference?.close();
  await daemon?.stop();
});

const request = (text, maxTokens, more) => ({ text, sampling: { temperature: 0, maxTokens }, ...more });

async function events(stream) {
  const received = [];
  for await (const event of stream) {
    received.push(event);
  }
  return received;
}

const textOf = (received) => received.map(({ delta }) => delta?.text ?? "").join("");

test("a bare absolute target streams a sample", async () => {
  const received = await events(inference.sample(request("ROMEO:", 20)));
  assert.equal(received[0].event, "admitted");
  const deltas = received.filter(({ event }) => event === "delta");
  assert.ok(deltas.length > 1, "the text must arrive while it is generated");
  assert.equal(deltas.flatMap(({ delta }) => delta.tokenIds).length, 20);
  const { done } = received.at(-1);
  assert.equal(done.finishReason, "FINISH_REASON_LENGTH");
  assert.deepEqual([done.usage.promptTokens, done.usage.completionTokens], [6, 20]);
});

test("the same prompt again gives the same text from memory", async () => {
  const prompt = "Asked for twice, from Node. ".repeat(4);
  const asked = request(prompt, 20, { namespace: "stock" });
  const first = await events(inference.sample(asked));
  const second = await events(inference.sample(asked));
  assert.equal(textOf(second), textOf(first));
  assert.equal(first.at(-1).done.verdict, "VERDICT_COLD");
  assert.equal(second.at(-1).done.verdict, "VERDICT_FULL_MEMORY");
  assert.equal(second.at(-1).done.usage.cachedTokens, prompt.length);
});

test("a relative target works", async () => {
  const home = cwd();
  chdir(dirname(daemon.socket));
  const stub = new v1.InferenceService("unix:tinygptd.sock", insecure());
  try {
    assert.equal(textOf(await events(stub.sample(request("a", 3)))).length > 0, true);
  } finally {
    stub.close();
    chdir(home);
  }
});

test("streams run side by side on one connection", async () => {
  const asked = [0, 1, 2, 3].map((voice) => request(`Node voice ${voice}: `, 20));
  const together = await Promise.all(asked.map(async (one) => textOf(await events(inference.sample(one)))));
  for (const [voice, one] of asked.entries()) {
    assert.equal(textOf(await events(inference.sample(one))), together[voice]);
  }
});

test("a deadline ends the call and the generation", async () => {
  const stream = inference.sample(request("Late: ", LONG), { deadline: Date.now() + 50 });
  await assert.rejects(events(stream), { code: grpc.status.DEADLINE_EXCEEDED });
  await idle();
});

test("cancelling ends the generation in the daemon", async () => {
  const bypass = { cachePolicy: "CACHE_POLICY_BYPASS" };
  const fullStart = Date.now();
  await events(inference.sample(request("Cancelled: ", LONG, bypass)));
  const full = Date.now() - fullStart;
  const stream = inference.sample(request("Cancelled: ", LONG, bypass));
  let cancelled;
  const consume = async () => {
    for await (const { event } of stream) {
      if (event === "delta" && cancelled === undefined) {
        cancelled = Date.now();
        stream.cancel();
      }
    }
  };
  await assert.rejects(consume, { code: grpc.status.CANCELLED });
  await idle();
  assert.ok(Date.now() - cancelled < full / 2);
});

async function idle() {
  const admin = new v1.AdminService(`unix:${daemon.socket}`, insecure());
  const deadline = Date.now() + 10_000;
  for (;;) {
    const { running } = await call(admin, "status", {});
    if (running === 0) break;
    assert.ok(Date.now() < deadline, `${running} sequences still run`);
    await sleep(10);
  }
  admin.close();
}

test("a prompt of a megabyte is refused with both numbers", async () => {
  const error = await events(inference.sample({ tokenIds: { ids: new Array(1 << 20).fill(7) } })).catch((e) => e);
  assert.equal(error.code, grpc.status.INVALID_ARGUMENT);
  assert.match(error.details, /1,048,576/);
  assert.match(error.details, /1,024/);
  assert.equal(error.metadata.get("grpc-status-details-bin").length, 1);
});

test("unary calls and metadata work", async () => {
  const metadata = new grpc.Metadata();
  metadata.set("x-turn", "1");
  metadata.set("x-raw-bin", Buffer.from([0, 255]));
  const { tokenIds } = await new Promise((resolve, reject) =>
    inference.tokenize({ text: "grüße" }, metadata, (error, answer) => (error ? reject(error) : resolve(answer))),
  );
  assert.equal(Buffer.from(tokenIds).toString(), "grüße");
});

test("the other services answer", async () => {
  const models = new v1.ModelService(`unix:${daemon.socket}`, insecure());
  const admin = new v1.AdminService(`unix:${daemon.socket}`, insecure());
  assert.deepEqual((await call(models, "list", {})).models.map(({ name }) => name), ["builtin"]);
  assert.equal((await call(admin, "status", {})).pid, daemon.pid);
  models.close();
  admin.close();
});
