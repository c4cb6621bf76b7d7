"""This project's side: real daemons, asked by the client binary."""

import json
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

GENERATED = 65


class Daemon:
    """A daemon on a model, in a folder of its own; in memory alone unless it is given a cache."""

    def __init__(
        self, programs: Path, model: Path, threads: int, *options: str, cache: Path | None = None
    ) -> None:
        self.programs, self.model, self.threads, self.options = programs, model, threads, options
        self.keep = ("--no-persist",) if cache is None else ("--cache-dir", cache)

    def __enter__(self) -> Self:
        self.home = tempfile.TemporaryDirectory(prefix="tinygpt-peers-")
        self.socket = Path(self.home.name) / "s"
        self.environment = os.environ | {"HOME": self.home.name, "TINYGPT_SOCKET": str(self.socket)}
        where = (*self.keep, "--log", "error", "--threads", str(self.threads))
        command = [self.programs / "tinygptd", *where, "--model", self.model, *self.options]
        self.process = subprocess.Popen([*map(str, command)], env=self.environment)
        self.listening()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait()
        self.home.cleanup()

    def listening(self) -> None:
        """Waits for its socket alone: what is asked of it then waits for the model."""
        while self.process.poll() is None:
            with socket.socket(socket.AF_UNIX) as client:
                if client.connect_ex(str(self.socket)) == 0:
                    return
            time.sleep(0.0005)
        raise RuntimeError(f"tinygptd ended with {self.process.returncode}")

    def client(self, *arguments: object, input: str | None = None) -> str:
        command = [self.programs / "tinygpt-client", *arguments]
        done = subprocess.run(
            [*map(str, command)], check=True, stdout=subprocess.PIPE, text=True, input=input,
            env=self.environment,
        )
        return done.stdout

    def sample(self, ids: list[int], tokens: int, *options: str) -> dict:
        fixed = ("sample", "--quiet", "--json", "--temperature", "0", "-n", tokens)
        return json.loads(self.client(*fixed, "--token-ids", ",".join(map(str, ids)), *options))

    def score(self, ids: list[int]) -> list[float | None]:
        """The log-probability of each of these; the first has none."""
        fixed = ("score", "--quiet", "--json", "--cache-policy", "bypass")
        answer = json.loads(self.client(*fixed, "--token-ids", ",".join(map(str, ids))))
        return [token["logprob"] for token in answer["logprobs"]]

    def rates(self, prompts: list[int], depths: list[int]) -> dict:
        """Tokens per second of one run: `("prefill", n)` and `("decode", depth)`."""
        self.client("wait", "--ready")
        measured = {}
        for tokens in prompts:
            # Once without a clock before, as llama-bench does.
            _, took = (self.prefill(tokens) for _ in range(2))
            measured["prefill", tokens] = tokens / took * 1e3
        for depth in depths:
            sample = self.sample(ids(max(depth, 1)), GENERATED)
            measured["decode", depth] = decoded(sample) / sample["timings"]["decode_ms"] * 1e3
        return measured

    def prefill(self, tokens: int) -> float:
        return self.sample(ids(tokens), 1, "--cache-policy", "bypass")["timings"]["prefill_ms"]

    def shared(self, prefix: int, sequences: int) -> float:
        """Tokens per second that `sequences` generate together behind one prompt of `prefix`, from
        the first token that one of them has to the last."""
        self.client("warm", "--quiet", "--token-ids", ",".join(map(str, ids(prefix))))
        prompts = ([*ids(prefix), 2000 + last] for last in range(sequences))
        lines = "\n".join(json.dumps({"token_ids": prompt}) for prompt in prompts)
        fixed = ("sample", "--batch", "-", "--jobs", sequences, "-n", GENERATED, "--temperature", "0")
        samples = [*map(json.loads, self.client(*fixed, input=lines).splitlines())]
        times = [sample["timings"] for sample in samples]
        took = max(time["total_ms"] for time in times) - min(time["ttft_ms"] for time in times)
        return sum(map(decoded, samples)) / took * 1e3

    def per_token(self) -> tuple[int, int]:
        """Bytes that a decoded token reads: of weights, and of keys and values per token before it."""
        models = json.loads(self.client("models", "--json"))["models"]
        [model] = [model for model in models if model["default"]]
        return model["weight_bytes"], model["kv_bytes_per_token"]


def decoded(sample: dict) -> int:
    """Tokens after the first, which belongs to the prefill."""
    return sample["usage"]["completion_tokens"] - 1


def ids(count: int) -> list[int]:
    """Ids that every vocabulary has, without a period that blocks would share."""
    return [1000 + i * 7919 % 20_011 for i in range(count)]
