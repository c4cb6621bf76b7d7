/**
 * Talks to tinygptd, a local model daemon with a lasting KV cache, over its Unix socket.
 *
 * Fields bear the names of the protocol in camel case; its `.proto` files document them. Enum values
 * are their names without the prefix (`FULL_DISK`); one that this version does not know is
 * `UNSPECIFIED`. Options that are left out are decided by the daemon.
 */

import type { Client as GrpcClient } from "@grpc/grpc-js";

/** A connection to the daemon. It is made at the first call. Every call fails with a `TinyGptError`. */
export class Client {
  /** `socket` is the path of the daemon's socket; without it `defaultSocket()` says where to look. */
  constructor(socket?: string);
  /** Generates from a raw prompt; the text arrives while it is generated. */
  sample(prompt: Prompt, options?: SampleOptions): Sample;
  /** Computes a prompt and keeps it, generating nothing. For `pinMs` it is not evicted. */
  warm(prompt: Prompt, options?: WarmOptions): Promise<Warmed>;
  /** Gives the log-probability of every token of `prompt`, and the `logprobs` best in its place. */
  score(prompt: Prompt, options?: RunOptions & { logprobs?: number }): Promise<Score>;
  /** Gives the token ids that `sample` would use; with `bare`, without the beginning token. */
  tokenize(text: string, options?: { model?: string; bare?: boolean }): Promise<number[]>;
  /** Gives the text of token ids; bytes that are no UTF-8 become U+FFFD. */
  detokenize(tokenIds: number[], options?: { model?: string }): Promise<string>;
  /** Lists the daemon's models, the default one first. */
  models(): Promise<Model[]>;
  /** The untyped grpc-js stub of one of the protocol's services, for everything that is not wrapped. */
  stub(service: "InferenceService" | "CacheService" | "ModelService" | "AdminService"): GrpcClient;
  /** Ends the connection. */
  close(): void;
}

/**
 * A generation: iterate over it, once, for its text, or over `events()` for everything.
 * It starts with the iteration; leaving the iteration early stops it in the daemon.
 */
export class Sample implements AsyncIterable<string> {
  private constructor();
  [Symbol.asyncIterator](): AsyncGenerator<string, void, undefined>;
  /** Yields what the daemon sends, in order. */
  events(): AsyncGenerator<Event, void, undefined>;
  /** Stops the generation in the daemon; a pending iteration fails with `CANCELLED`. */
  cancel(): void;
  /** The text so far. */
  readonly text: string;
  /** The token ids so far; the text may lag behind them. */
  readonly tokenIds: number[];
  /** One entry per token so far, when log-probabilities were asked for. */
  readonly logprobs: TokenLogprobs[];
  /** What the daemon said before the first token. */
  readonly admitted: Admitted | null;
  /** What it said at the end. This and the following throw before the end. */
  readonly done: Done;
  readonly verdict: Verdict;
  readonly usage: Usage;
  readonly finishReason: FinishReason;
}

/** A failed call. `message` is what the daemon said, numbers included. */
export class TinyGptError extends Error {
  /** The gRPC status. */
  readonly code: StatusCode;
  /** The daemon's stable word for what went wrong, or "" when it was not the daemon that failed the call. */
  readonly reason: string;
  /** What the daemon adds to the reason, by name. */
  readonly metadata: Record<string, string>;
  /** Milliseconds after which the same call may succeed, where the daemon knows. */
  readonly retryAfterMs: number | null;
}

/** Where the daemon listens when nobody says otherwise. */
export function defaultSocket(): string;

/** The longest socket path that the system allows. */
export const MAX_PATH_BYTES: number;

/** Text, which the daemon tokenises, or token ids, taken as they are. */
export type Prompt = string | Iterable<number>;

/** Options of every request that runs a model. */
export interface RunOptions {
  model?: string;
  cachePolicy?: "use" | "read-only" | "refresh" | "bypass";
  priority?: "low" | "normal" | "high";
  namespace?: string;
  kvDtype?: string;
  adapter?: string;
  /** Aborting it cancels the request. */
  signal?: AbortSignal;
  /** The daemon keeps it too. */
  timeoutMs?: number;
}

/** Options of every request that keeps what it computes. */
export interface KeepOptions extends RunOptions {
  persist?: "behind" | "durable" | "no";
}

/** Options of a warm-up. */
export interface WarmOptions extends KeepOptions {
  /** Keeps the prompt from being evicted for so many milliseconds, 30 days at most. */
  pinMs?: number;
}

/** Options of a generation. */
export interface SampleOptions extends KeepOptions {
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  repetitionPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  seed?: number | bigint;
  logitBias?: Record<number, number>;
  maxTokens?: number;
  stop?: string[];
  stopTokenIds?: number[];
  logprobs?: number;
  echoPromptIds?: boolean;
}

export type Event = Admitted | PrefillProgress | Delta | Done;

export interface Admitted {
  kind: "admitted";
  model: string;
  promptTokens: number;
  maxTokens: number;
  queueMs: number;
  verdict: Verdict;
  reason: Reason;
  divergence: Divergence | null;
  warnings: string[];
  promptTokenIds: number[];
  seed: bigint;
}

export interface PrefillProgress {
  kind: "prefillProgress";
  doneTokens: number;
  totalTokens: number;
}

export interface Delta {
  kind: "delta";
  text: string;
  tokenIds: number[];
  logprobs: TokenLogprobs[];
}

export interface Done {
  kind: "done";
  finishReason: FinishReason;
  verdict: Verdict;
  reason: Reason;
  divergence: Divergence | null;
  usage: Usage;
  timings: Timings;
  numerics: string;
  promptKey: string;
  warnings: string[];
}

/** The prompt is kept. */
export interface Warmed extends Done {
  /** Null when no pin was asked for. */
  pinned: Pinned | null;
}

/** The prompt is kept from eviction. */
export interface Pinned {
  kind: "pinned";
  expires: Date;
  bytes: number;
  /** Whether on disk, too. */
  durable: boolean;
}

export interface Score {
  model: string;
  tokens: TokenLogprobs[];
  verdict: Verdict;
  reason: Reason;
  usage: Usage;
  timings: Timings;
  numerics: string;
}

export interface TokenLogprobs {
  id: number;
  /** Absent for a token that nothing precedes. */
  logprob?: number;
  top: { id: number; logprob: number }[];
}

export interface Usage {
  promptTokens: number;
  cachedTokens: number;
  cached: { memory: number; disk: number; joined: number };
  completionTokens: number;
}

export interface Timings {
  queueMs: number;
  loadMs: number;
  prefillMs: number;
  ttftMs: number;
  decodeMs: number;
  totalMs: number;
}

export interface Divergence {
  tokenIndex: number;
  location: string;
  promptText: string;
  cachedText: string;
}

export interface Model {
  name: string;
  default: boolean;
  state: "UNSPECIFIED" | "LOADING" | "READY" | "FAILED" | "UNLOADED" | "UNLOADING";
  error: string;
  path: string;
  architecture: string;
  format: string;
  weightType: string;
  parameters: number;
  weightBytes: number;
  weightsId: string;
  layers: number;
  heads: number;
  kvHeads: number;
  headDim: number;
  hidden: number;
  vocab: number;
  context: number;
  kvDtype: string;
  kvDtypes: string[];
  kvBytesPerToken: number;
  kvBytesPerTokenMha: number;
  numerics: string;
  tokenizer: string;
  fileBytes: number;
  loadMs: number;
  adapters: Adapter[];
}

export interface Adapter {
  name: string;
  path: string;
  rank: number;
  bytes: number;
  adapterId: string;
}

export type Verdict =
  | "UNSPECIFIED"
  | "COLD"
  | "PARTIAL_MEMORY"
  | "PARTIAL_DISK"
  | "FULL_MEMORY"
  | "FULL_DISK"
  | "JOINED"
  | "BYPASSED";

export type Reason =
  | "UNSPECIFIED"
  | "NO_ENTRY"
  | "EXTENDED"
  | "NO_RECORD"
  | "DIVERGED"
  | "BELOW_MINIMUM"
  | "EVICTED"
  | "FINGERPRINT_WEIGHTS"
  | "FINGERPRINT_TOKENIZER"
  | "ADAPTER"
  | "KV_DTYPE"
  | "WINDOW_POLICY"
  | "LAYOUT_VERSION"
  | "NUMERICS_VERSION"
  | "NAMESPACE"
  | "NO_CHECKPOINT"
  | "CORRUPT_QUARANTINED"
  | "IO_ERROR"
  | "POLICY_BYPASS"
  | "POLICY_REFRESH"
  | "UNKNOWN";

export type FinishReason = "UNSPECIFIED" | "STOP" | "LENGTH" | "CANCELLED" | "TOOL_CALLS";

export type StatusCode =
  | "CANCELLED"
  | "UNKNOWN"
  | "INVALID_ARGUMENT"
  | "DEADLINE_EXCEEDED"
  | "NOT_FOUND"
  | "ALREADY_EXISTS"
  | "PERMISSION_DENIED"
  | "RESOURCE_EXHAUSTED"
  | "FAILED_PRECONDITION"
  | "ABORTED"
  | "OUT_OF_RANGE"
  | "UNIMPLEMENTED"
  | "INTERNAL"
  | "UNAVAILABLE"
  | "DATA_LOSS"
  | "UNAUTHENTICATED";
