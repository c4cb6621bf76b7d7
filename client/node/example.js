import { Client } from "tinygpt-client";

const client = new Client();
const sample = client.sample("ROMEO:", { maxTokens: 80, temperature: 0 });
for await (const text of sample) {
  process.stdout.write(text);
}
const { cachedTokens, promptTokens } = sample.usage;
console.log(`\n${sample.verdict}: ${cachedTokens} of ${promptTokens} prompt tokens were cached`);
client.close();
