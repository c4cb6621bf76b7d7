// Compiled, never run: a program that uses the client package must type-check, and one that misuses it must not.

import { Client, TinyGptError, type Done, type Event, type Model, type Score, type Verdict, type Warmed } from "tinygpt-client";

const client = new Client("/a/socket");

export async function used(): Promise<Verdict> {
  const sample = client.sample("a", { maxTokens: 1, seed: 1n, stop: ["\n"], cachePolicy: "read-only", timeoutMs: 5 });
  for await (const text of sample) text.toUpperCase();
  for await (const event of client.sample([1, 2]).events()) tell(event);
  const done: Done = await client.warm("a", { persist: "durable" });
  const { pinned }: Warmed = await client.warm("a", { pinMs: 90_000 });
  const left: number = (pinned?.expires.getTime() ?? 0) - Date.now();
  const score: Score = await client.score("a", { logprobs: 3 });
  const models: Model[] = await client.models();
  const ids: number[] = await client.tokenize(await client.detokenize([models.length]), { bare: true });
  return left + ids.length + score.usage.cachedTokens > done.timings.ttftMs ? sample.verdict : "COLD";
}

function tell(event: Event): number | bigint | string {
  switch (event.kind) {
    case "admitted":
      return event.seed;
    case "prefillProgress":
      return event.doneTokens / event.totalTokens;
    case "delta":
      return event.text;
    case "done":
      return event.usage.cached.disk;
  }
}

export function misused(error: TinyGptError): void {
  // @ts-expect-error: an option that does not exist
  client.sample("a", { temprature: 0 });
  // @ts-expect-error: a policy that does not exist
  client.sample("a", { cachePolicy: "sometimes" });
  // @ts-expect-error: warming generates nothing
  client.warm("a", { maxTokens: 1 });
  // @ts-expect-error: a generation pins nothing
  client.sample("a", { pinMs: 1 });
  // @ts-expect-error: a status that does not exist
  if (error.code === "SAD") return;
}
