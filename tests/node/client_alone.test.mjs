// What the client package does by itself, without a daemon.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { chdir, cwd } from "node:process";
import { test } from "node:test";

import { Client, MAX_PATH_BYTES, TinyGptError, defaultSocket } from "tinygpt-client";

import { fakeDaemon } from "./fake.mjs";
import { v1 } from "./protocol.mjs";

/** Runs `body` with a client of a fake daemon, and ends both. */
async function withFake(body, name) {
  const fake = await fakeDaemon(name);
  const client = new Client(fake.socket);
  try {
    await body(client, fake);
  } finally {
    client.close();
    fake.stop();
  }
}

async function all(iterable) {
  const items = [];
  for await (const item of iterable) {
    items.push(item);
  }
  return items;
}

test("a sample yields its text and remembers the rest", () =>
  withFake(async (client) => {
    const sample = client.sample("hello");
    assert.deepEqual(await all(sample), ["words"]);
    assert.deepEqual([sample.text, sample.tokenIds], ["words", [7, 8, 9]]);
    assert.equal(sample.admitted.seed, 2n ** 63n);
    assert.deepEqual([sample.verdict, sample.finishReason], ["PARTIAL_DISK", "STOP"]);
    assert.deepEqual(sample.usage.cached, { memory: 0, disk: 2, joined: 0 });
    assert.equal(sample.done.timings.ttftMs, 1.5);
    assert.deepEqual(sample.done.warnings, ["two beginning tokens"]);
  }));

test("fields that may be absent are absent", () =>
  withFake(async (client) => {
    const sample = client.sample("hello");
    await all(sample);
    const [first, second] = sample.logprobs;
    assert.deepEqual([first.logprob, first.top.map(({ id }) => id)], [-0.5, [7, 8]]);
    assert.equal(second.logprob, undefined);
    assert.equal(sample.admitted.divergence, null);
    assert.deepEqual(sample.done.divergence, { tokenIndex: 2, location: "", promptText: "a", cachedText: "b" });
  }));

test("events come in the order they were sent", () =>
  withFake(async (client) => {
    const kinds = (await all(client.sample("hello").events())).map(({ kind }) => kind);
    assert.deepEqual(kinds, ["admitted", "prefillProgress", "delta", "delta", "done"]);
  }));

test("options reach the daemon and absent ones stay absent", () =>
  withFake(async (client, fake) => {
    const options = { maxTokens: 0, temperature: 0, stop: ["\n"], cachePolicy: "read-only", persist: "durable" };
    await all(client.sample("a", options));
    await all(client.sample([1, 2, 3], { seed: 2n ** 64n - 1n, model: "other", logitBias: { 5: -1 } }));
    const [first, second] = fake.requests;
    assert.deepEqual([first.text, first.sampling.maxTokens, first.sampling.stop], ["a", 0, ["\n"]]);
    assert.deepEqual([first.sampling._maxTokens, first.sampling._seed], ["maxTokens", undefined]);
    assert.deepEqual([first.cachePolicy, first.persist], ["CACHE_POLICY_READ_ONLY", "PERSIST_DURABLE"]);
    assert.deepEqual([second.tokenIds.ids, second.model], [[1, 2, 3], "other"]);
    assert.deepEqual([second.sampling.seed, second.sampling.logitBias], ["18446744073709551615", { 5: -1 }]);
    assert.equal(second.sampling._maxTokens, undefined);
  }));

test("a pin reaches the daemon and its lease comes back", () =>
  withFake(async (client, fake) => {
    const pinned = await client.warm("a", { pinMs: 1500 });
    const unpinned = await client.warm("a", { persist: "durable" });
    const expires = new Date("2027-01-15T08:00:00.500Z");
    assert.deepEqual(pinned.pinned, { kind: "pinned", expires, bytes: 7, durable: true });
    assert.deepEqual([pinned.verdict, pinned.usage.cached.disk, unpinned.pinned], ["PARTIAL_DISK", 2, null]);
    const [first, second] = fake.requests;
    assert.deepEqual([first.pin, second.pin], [{ seconds: "1", nanos: 500_000_000 }, null]);
    await assert.rejects(client.warm("a", { pinMs: "an hour" }), /not an hour/);
  }));

test("an option that does not exist is refused by name", () =>
  withFake(async (client) => {
    assert.throws(() => client.sample("a", { temprature: 0 }), /temprature/);
    await assert.rejects(client.warm("a", { maxTokens: 1 }), /maxTokens/);
    assert.throws(() => client.sample("a", { cachePolicy: "sometimes" }), /one of use, .*, not "sometimes"/);
  }));

test("a failure carries the daemon's reason, numbers and delay", () =>
  withFake(async (client) => {
    const error = await all(client.sample("busy")).catch((caught) => caught);
    assert.ok(error instanceof TinyGptError);
    assert.deepEqual([error.code, error.reason], ["RESOURCE_EXHAUSTED", "QUEUE_FULL"]);
    assert.deepEqual([error.metadata, error.retryAfterMs], [{ limit: "64" }, 250]);
    assert.equal(error.message, "the queue of 64 is full");
  }));

test("a call that the daemon does not have is unimplemented", () =>
  withFake(async (client) => {
    await assert.rejects(client.tokenize("a"), { name: "TinyGptError", code: "UNIMPLEMENTED", reason: "" });
  }));

test("no daemon is unavailable and names the socket", async () => {
  const client = new Client("/nobody.sock");
  await assert.rejects(all(client.sample("a")), { code: "UNAVAILABLE", message: /nobody\.sock/ });
  client.close();
});

test("a timeout is deadline exceeded", () =>
  withFake(async (client, fake) => {
    await assert.rejects(all(client.sample("endless", { timeoutMs: 200 })), { code: "DEADLINE_EXCEEDED" });
    await fake.cancelled;
  }));

test("leaving the loop early cancels", () =>
  withFake(async (client, fake) => {
    const sample = client.sample("endless");
    for await (const _ of sample) {
      break;
    }
    await fake.cancelled;
    assert.throws(() => sample.usage, /has not ended/);
  }));

test("cancel ends the iteration with cancelled", () =>
  withFake(async (client, fake) => {
    const sample = client.sample("endless");
    await assert.rejects(async () => {
      for await (const _ of sample) {
        sample.cancel();
      }
    }, { code: "CANCELLED" });
    await fake.cancelled;
  }));

test("an abort signal cancels, before and during the call", () =>
  withFake(async (client, fake) => {
    const abort = new AbortController();
    const endless = client.sample("endless", { signal: abort.signal });
    await assert.rejects(async () => {
      for await (const _ of endless) {
        abort.abort();
      }
    }, { code: "CANCELLED" });
    await fake.cancelled;
    await assert.rejects(all(client.sample("hello", { signal: abort.signal })), { name: "AbortError" });
    assert.equal(fake.requests.length, 1);
  }));

test("a second iteration is refused", () =>
  withFake(async (client) => {
    const sample = client.sample("hello");
    await all(sample);
    await assert.rejects(all(sample), /once/);
  }));

for (const name of ["a space.sock", "100%.sock", "what?#.sock", "grüße.sock"]) {
  test(`a socket may be named ${name}`, () =>
    withFake(async (client) => assert.deepEqual(await all(client.sample("hello")), ["words"]), name));
}

test("a relative path is relative to where the client was made", () =>
  withFake(async (_, fake) => {
    const before = cwd();
    chdir(dirname(fake.socket));
    const client = new Client(basename(fake.socket));
    chdir(before);
    assert.deepEqual(await all(client.sample("hello")), ["words"]);
    client.close();
  }));

test("the socket named by the environment wins", () =>
  withEnvironment({ TINYGPT_SOCKET: "/a/b.sock" }, () => assert.equal(defaultSocket(), "/a/b.sock")));

test("a runtime directory is used only when it is mine and short", () =>
  withFake(async (_, { folder }) => {
    const deep = join(folder, "d".repeat(MAX_PATH_BYTES));
    mkdirSync(deep);
    const chosen = (directory) =>
      withEnvironment({ TINYGPT_SOCKET: undefined, XDG_RUNTIME_DIR: directory }, defaultSocket);
    assert.equal(chosen(folder), join(folder, "tinygpt", "tinygptd.sock"));
    for (const elsewhere of [join(folder, "missing"), deep, "relative"]) {
      assert.ok(!chosen(elsewhere).startsWith(elsewhere), elsewhere);
    }
  }));

test("a path of one byte too many is refused with both numbers", () => {
  const fits = `/${"s".repeat(MAX_PATH_BYTES - 1)}`;
  new Client(fits).close();
  assert.throws(() => new Client(`${fits}s`), new RegExp(`${MAX_PATH_BYTES + 1} bytes.*allows ${MAX_PATH_BYTES}`));
});

const TYPES = readFileSync(new URL("index.d.ts", import.meta.resolve("tinygpt-client")), "utf8");

test("the declared words are those of the protocol", () => {
  for (const [alias, prefix] of [["Verdict", "VERDICT_"], ["Reason", "REASON_"], ["FinishReason", "FINISH_REASON_"]]) {
    const declared = TYPES.match(new RegExp(`export type ${alias} =([^;]*);`))[1].match(/[A-Z_]+(?=")/g);
    const words = v1[alias].type.value.map(({ name }) => name.slice(prefix.length));
    assert.deepEqual(declared, words);
  }
});

test("the declared fields are those of the protocol", () => {
  const messages = { Score: v1.ScoreResponse, Pinned: v1.PinResponse };
  for (const name of ["Admitted", "PrefillProgress", "Delta", "Done", "TokenLogprobs", "Usage", "Timings", "Divergence", "Model"]) {
    messages[name] = v1[name];
  }
  for (const [name, message] of Object.entries(messages)) {
    const body = TYPES.match(new RegExp(`^export interface ${name} {(.*?)^}`, "ms"))[1];
    const declared = [...body.matchAll(/^  (\w+)\??:/gm)].map(([, field]) => field).filter((field) => field !== "kind");
    assert.deepEqual(new Set(declared), new Set(message.type.field.map(({ name }) => name)), name);
  }
});

/** Runs `body` with some environment variables set, or unset where the value is undefined. */
function withEnvironment(changes, body) {
  const before = { ...process.env };
  for (const [name, value] of Object.entries(changes)) {
    value === undefined ? delete process.env[name] : (process.env[name] = value);
  }
  try {
    return body();
  } finally {
    process.env = before;
  }
}
