/** What a caller may ask for, as the messages that ask for it. What is left out, the daemon decides. */

const ENUMS = {
  cachePolicy: { prefix: "CACHE_POLICY", words: ["use", "read-only", "refresh", "bypass"] },
  priority: { prefix: "PRIORITY", words: ["low", "normal", "high"] },
  persist: { prefix: "PERSIST", words: ["behind", "durable", "no"] },
};

const RUN = new Set(["model", "cachePolicy", "priority", "namespace", "kvDtype", "adapter"]);

/** What requests say that keep what they compute. */
const KEEP = new Set([...RUN, "persist"]);

const SAMPLING = new Set([
  "temperature",
  "topK",
  "topP",
  "minP",
  "repetitionPenalty",
  "presencePenalty",
  "frequencyPenalty",
  "seed",
  "logitBias",
  "maxTokens",
  "stop",
  "stopTokenIds",
  "logprobs",
]);

/** Options that concern the call and not the message. */
const CALL = new Set(["signal", "timeoutMs"]);

export function sampleRequest(prompt, options) {
  const { echoPromptIds = false, ...rest } = options;
  refuseUnknown(rest, KEEP, SAMPLING);
  const sampling = spelled(rest, SAMPLING);
  return { ...promptOf(prompt), ...spelled(rest, KEEP), echoPromptIds, sampling };
}

export function warmRequest(prompt, options) {
  const { pinMs, ...rest } = options;
  refuseUnknown(rest, KEEP);
  return { ...promptOf(prompt), ...spelled(rest, KEEP), ...(pinMs !== undefined && { pin: duration(pinMs) }) };
}

export function scoreRequest(prompt, options) {
  const { logprobs = 0, ...rest } = options;
  refuseUnknown(rest, RUN);
  return { ...promptOf(prompt), ...spelled(rest, RUN), logprobs };
}

function duration(ms) {
  if (!Number.isFinite(ms)) {
    throw new TypeError(`a time is a number of milliseconds, not ${ms}`);
  }
  const seconds = Math.trunc(ms / 1000);
  return { seconds, nanos: Math.trunc((ms - seconds * 1000) * 1e6) };
}

/** proto-loader drops names and words that it does not know; a misspelt one must not vanish so. */
function refuseUnknown(options, ...known) {
  for (const name of Object.keys(options)) {
    if (![CALL, ...known].some((names) => names.has(name))) {
      throw new TypeError(`there is no option "${name}"`);
    }
  }
}

function promptOf(prompt) {
  return typeof prompt === "string" ? { text: prompt } : { tokenIds: { ids: Array.from(prompt) } };
}

function spelled(options, names) {
  const chosen = Object.entries(options).filter(([name, value]) => names.has(name) && value !== undefined);
  return Object.fromEntries(chosen.map(([name, value]) => [name, wireValue(name, value)]));
}

function wireValue(name, value) {
  if (name in ENUMS) {
    return enumValue(name, value);
  }
  return typeof value === "bigint" ? value.toString() : value;
}

function enumValue(name, word) {
  const { prefix, words } = ENUMS[name];
  if (!words.includes(word)) {
    throw new TypeError(`${name} is one of ${words.join(", ")}, not "${word}"`);
  }
  return `${prefix}_${word}`.toUpperCase().replaceAll("-", "_");
}
