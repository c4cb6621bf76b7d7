import { translated } from "./errors.js";
import { plainEvent } from "./protocol.js";

/** A generation. The call begins when the iteration begins, so that no failure goes unheard. */
export class Sample {
  text = "";
  tokenIds = [];
  logprobs = [];
  admitted = null;
  #pinned = null;
  #done = null;
  #start;
  #responseType;
  #signal;
  #call = null;

  constructor(start, responseType, signal) {
    this.#start = start;
    this.#responseType = responseType;
    this.#signal = signal;
  }

  async *[Symbol.asyncIterator]() {
    for await (const event of this.events()) {
      if (event.kind === "delta" && event.text) {
        yield event.text;
      }
    }
  }

  async *events() {
    this.#signal?.throwIfAborted();
    const cancel = () => this.cancel();
    this.#signal?.addEventListener("abort", cancel);
    try {
      for await (const response of this.#begin()) {
        yield this.#record(response);
      }
    } catch (error) {
      throw translated(error);
    } finally {
      this.#signal?.removeEventListener("abort", cancel);
      this.cancel();
    }
  }

  cancel() {
    this.#call?.cancel();
  }

  get done() {
    if (this.#done === null) {
      throw new Error("the generation has not ended: iterate over it first");
    }
    return this.#done;
  }

  /** The same at the end of a warm-up, with the pin, which comes before the end. */
  get warmed() {
    return { ...this.done, pinned: this.#pinned };
  }

  get verdict() {
    return this.done.verdict;
  }

  get usage() {
    return this.done.usage;
  }

  get finishReason() {
    return this.done.finishReason;
  }

  #begin() {
    if (this.#call !== null) {
      throw new Error("a generation can be iterated over once");
    }
    this.#call = this.#start();
    // A call that is cancelled after the loop was left reports that to nobody.
    this.#call.on("error", () => {});
    return this.#call;
  }

  #record(response) {
    const event = plainEvent(response, this.#responseType);
    if (event.kind === "admitted") {
      this.admitted = event;
    } else if (event.kind === "delta") {
      this.text += event.text;
      this.tokenIds.push(...event.tokenIds);
      this.logprobs.push(...event.logprobs);
    } else if (event.kind === "pinned") {
      this.#pinned = event;
    } else if (event.kind === "done") {
      this.#done = event;
    }
    return event;
  }
}
