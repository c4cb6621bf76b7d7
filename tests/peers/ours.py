"""This project's side: a real daemon without a cache directory, asked by the client binary."""

import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

GENERATED = 65


class Daemon:
    """A daemon on a model, in a folder of its own."""

    def __init__(self, programs: Path, model: Path, threads: int, *options: str) -> None:
        self.programs, self.model, self.threads, self.options = programs, model, threads, options

    def __enter__(self) -> Self:
        self.home = tempfile.TemporaryDirectory(prefix="tinygpt-peers-")
        self.socket = Path(self.home.name) / "s"
        self.environment = os.environ | {"HOME": self.home.name, "TINYGPT_SOCKET": str(self.socket)}
        where = ("--no-persist", "--log", "error", "--threads", str(self.threads))
        command = [self.programs / "tinygptd", *where, "--model", self.model, *self.options]
        self.process = subprocess.Popen([*map(str, command)], env=self.environment)
        self.client("wait", "--ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait()
        self.home.cleanup()

    def client(self, *arguments: object) -> str:
        command = [self.programs / "tinygpt-client", *arguments]
        done = subprocess.run(
            [*map(str, command)], check=True, capture_output=True, text=True, env=self.environment
        )
        return done.stdout

    def sample(self, ids: list[int], tokens: int, *options: str) -> dict:
        prompt = ",".join(map(str, ids))
        fixed = ("sample", "--json", "--temperature", "0", "-n", tokens)
        return json.loads(self.client(*fixed, "--token-ids", prompt, *options))

    def rates(self, prompts: list[int], depths: list[int]) -> dict:
        """Tokens per second of one run: `("prefill", n)` and `("decode", depth)`."""
        measured = {}
        for tokens in prompts:
            took = self.sample(ids(tokens), 1, "--cache-policy", "bypass")["timings"]["prefill_ms"]
            measured["prefill", tokens] = tokens / took * 1e3
        for depth in depths:
            sample = self.sample(ids(max(depth, 1)), GENERATED)
            measured["decode", depth] = decoded(sample) / sample["timings"]["decode_ms"] * 1e3
        return measured

    def shared(self, prefix: int, sequences: int) -> float:
        """Tokens per second that `sequences` generate together behind one prompt of `prefix`."""
        self.client("warm", "--token-ids", ",".join(map(str, ids(prefix))))
        prompts = [[*ids(prefix), 2000 + last] for last in range(sequences)]
        with ThreadPoolExecutor(sequences) as pool:
            samples = list(pool.map(lambda prompt: self.sample(prompt, GENERATED), prompts))
        longest = max(sample["timings"]["decode_ms"] for sample in samples)
        return sum(map(decoded, samples)) / longest * 1e3


def decoded(sample: dict) -> int:
    """Tokens after the first, which belongs to the prefill."""
    return sample["usage"]["completion_tokens"] - 1


def ids(count: int) -> list[int]:
    """Ids that every vocabulary has, without a period that blocks would share."""
    return [1000 + i * 7919 % 20_011 for i in range(count)]
