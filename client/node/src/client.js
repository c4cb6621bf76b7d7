import { translated } from "./errors.js";
import { CHANNEL_OPTIONS, CREDENTIALS, plain, services } from "./protocol.js";
import { sampleRequest, scoreRequest, warmRequest } from "./requests.js";
import { Sample } from "./sample.js";
import { target } from "./sockets.js";

export class Client {
  #target;
  #stubs = new Map();

  constructor(socket) {
    this.#target = target(socket);
  }

  sample(prompt, options = {}) {
    return this.#generation("Sample", sampleRequest(prompt, options), options);
  }

  async warm(prompt, options = {}) {
    const warming = this.#generation("Warm", warmRequest(prompt, options), options);
    for await (const _ of warming.events());
    return warming.warmed;
  }

  score(prompt, options = {}) {
    return this.#ask("InferenceService", "Score", scoreRequest(prompt, options), options);
  }

  async tokenize(text, { model, bare } = {}) {
    return (await this.#ask("InferenceService", "Tokenize", { text, model, bare })).tokenIds;
  }

  async detokenize(tokenIds, { model } = {}) {
    return (await this.#ask("InferenceService", "Detokenize", { tokenIds, model })).text;
  }

  async models() {
    return (await this.#ask("ModelService", "List", {})).models;
  }

  stub(service) {
    if (!this.#stubs.has(service)) {
      this.#stubs.set(service, new services[service](this.#target, CREDENTIALS, CHANNEL_OPTIONS));
    }
    return this.#stubs.get(service);
  }

  close() {
    for (const stub of this.#stubs.values()) {
      stub.close();
    }
  }

  #generation(method, request, { signal, timeoutMs }) {
    const stub = this.stub("InferenceService");
    const start = () => stub[method](request, { deadline: deadline(timeoutMs) });
    return new Sample(start, responseType("InferenceService", method), signal);
  }

  async #ask(service, method, request, { signal, timeoutMs } = {}) {
    signal?.throwIfAborted();
    const stub = this.stub(service);
    const answerType = responseType(service, method);
    return new Promise((resolve, reject) => {
      const call = stub[method](request, { deadline: deadline(timeoutMs) }, (error, answer) => {
        signal?.removeEventListener("abort", cancel);
        error ? reject(translated(error)) : resolve(plain(answer, answerType));
      });
      const cancel = () => call.cancel();
      signal?.addEventListener("abort", cancel);
    });
  }
}

function responseType(service, method) {
  return services[service].service[method].responseType.type.name;
}

function deadline(timeoutMs) {
  return timeoutMs === undefined ? Infinity : Date.now() + timeoutMs;
}
