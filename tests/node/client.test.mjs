// The client package against a real daemon.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { copyFileSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";

import { Client } from "tinygpt-client";

import { environment, startDaemon } from "./daemon.mjs";
import { REPOSITORY } from "./protocol.mjs";

let daemon;
let client;

before(async () => {
  daemon = await startDaemon({ defaultPlace: true });
  client = new Client(daemon.socket);
});

after(async () => {
  client?.close();
  await daemon?.stop();
});

async function textOf(sample) {
  for await (const _ of sample);
  return sample.text;
}

test("a sample, then the same from memory", async () => {
  const prompt = "Twice the same prompt, through the client package. ".repeat(3);
  const options = { maxTokens: 20, temperature: 0, namespace: "twice" };
  const [first, second] = [client.sample(prompt, options), client.sample(prompt, options)];
  assert.equal(await textOf(first), await textOf(second));
  assert.deepEqual([first.verdict, second.verdict], ["COLD", "FULL_MEMORY"]);
  assert.deepEqual([first.usage.cachedTokens, second.usage.cachedTokens], [0, prompt.length]);
  assert.deepEqual([first.finishReason, first.tokenIds.length], ["LENGTH", 20]);
});

test("warming makes the sample a hit", async () => {
  const prompt = "Warmed before it is asked for. ".repeat(5);
  const warmed = await client.warm(prompt, { namespace: "warmed" });
  assert.deepEqual([warmed.verdict, warmed.usage.completionTokens], ["COLD", 0]);
  const sample = client.sample(prompt, { maxTokens: 1, namespace: "warmed" });
  await textOf(sample);
  assert.equal(sample.verdict, "FULL_MEMORY");
});

test("a warmed prompt is pinned for as long as was asked", async () => {
  const prompt = "Pinned while it is warmed. ".repeat(5);
  const { pinned, promptKey } = await client.warm(prompt, { namespace: "pinned", pinMs: 90_000 });
  const left = pinned.expires.getTime() - Date.now();
  assert.ok(60_000 < left && left <= 91_000, `${left}`);
  assert.ok(pinned.durable && pinned.bytes > 0);
  const again = await client.warm(prompt, { namespace: "pinned" });
  assert.deepEqual([again.pinned, again.promptKey], [null, promptKey]);
  const tooLong = { code: "INVALID_ARGUMENT", message: /30 days/, reason: "OUT_OF_RANGE" };
  await assert.rejects(client.warm(prompt, { pinMs: 31 * 24 * 3600 * 1000 }), tooLong);
});

test("scores are what sampling reports", async () => {
  const sample = client.sample("ROMEO:", { maxTokens: 5, temperature: 0, logprobs: 2, echoPromptIds: true });
  await textOf(sample);
  const prompt = sample.admitted.promptTokenIds;
  assert.deepEqual(prompt, [...Buffer.from("ROMEO:")]);
  const { tokens } = await client.score([...prompt, ...sample.tokenIds], { logprobs: 2 });
  assert.equal(tokens[0].logprob, undefined);
  assert.deepEqual(tokens.slice(prompt.length), sample.logprobs);
});

test("tokens and models", async () => {
  const ids = await client.tokenize("grüße");
  assert.deepEqual(ids, [...Buffer.from("grüße")]);
  assert.equal(await client.detokenize(ids), "grüße");
  const [model] = await client.models();
  assert.deepEqual([model.name, model.default, model.state, model.context], ["builtin", true, "READY", 1024]);
  assert.ok(model.weightBytes > 0);
});

test("a refusal is an error with a reason", async () => {
  const tooLong = { code: "INVALID_ARGUMENT", message: /1,024/, reason: "PROMPT_TOO_LONG" };
  await assert.rejects(textOf(client.sample("x".repeat(2000))), tooLong);
  const unknown = { code: "NOT_FOUND", message: /no-such-model/, reason: "UNKNOWN_MODEL" };
  await assert.rejects(textOf(client.sample("x", { model: "no-such-model" })), unknown);
});

test("leaving early and running out of time let others run", async () => {
  for await (const _ of client.sample("Left early: ", { maxTokens: 900 })) {
    break;
  }
  await assert.rejects(textOf(client.sample("Out of time: ", { maxTokens: 900, timeoutMs: 50 })), {
    code: "DEADLINE_EXCEEDED",
  });
  assert.ok(await textOf(client.sample("Served: ", { maxTokens: 5 })));
});

test("the README's example finds a daemon that nobody named", async () => {
  const folder = join(REPOSITORY, "client", "node");
  const example = readFileSync(join(folder, "example.js"), "utf8");
  assert.ok(readFileSync(join(folder, "README.md"), "utf8").includes(example));
  // Beside node_modules, where Node looks for the package.
  copyFileSync(join(folder, "example.js"), "example.mjs");
  const run = () => promisify(execFile)(process.execPath, ["example.mjs"], { env: environment(daemon.folder) });
  const { stdout: first } = await run();
  const { stdout: second } = await run();
  assert.match(second, /\nFULL_MEMORY: 6 of 6 prompt tokens were cached\n$/);
  assert.equal(second.split("\n").slice(0, -2).join("\n"), first.split("\n").slice(0, -2).join("\n"));
});
