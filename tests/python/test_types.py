"""The client package is typed: its own code, and what a program sees of it."""

import os
import subprocess
import sys
from pathlib import Path

from stubs import REPOSITORY

PROGRAM = """\
from tinygpt_client import Client, Pinned, TinyGptError

def used(client: Client) -> list[str]:
    sample = client.sample("a", max_tokens=1, stop=["."], cache_policy="read-only", timeout=1.5)
    texts: list[str] = list(sample)
    hits: int = sample.usage.cached_tokens + client.warm([1, 2], persist="durable").usage.cached.disk
    pinned: Pinned | None = client.warm("a", pin=90).pinned
    logprobs: list[float | None] = [token.logprob for token in client.score("a", logprobs=hits).tokens]
    return texts if logprobs and pinned and sample.verdict == "FULL_DISK" else []

def misused(client: Client, error: TinyGptError) -> None:
    client.sample("a", temprature=0)
    client.sample("a", cache_policy="sometimes")
    client.warm("a", max_tokens=1)
    client.sample("a", pin=90)
    error.retry_after + 1
    client.sample("a").verdict == "LUKEWARM"
"""
FIRST_MISUSE = 1 + PROGRAM.splitlines().index('    client.sample("a", temprature=0)')


def test_the_package_is_typed_strictly(tmp_path: Path) -> None:
    status, output = mypy(tmp_path, "--config-file", str(REPOSITORY / "client" / "python" / "pyproject.toml"))
    assert status == 0, output


def test_a_program_that_uses_the_package_type_checks_and_one_that_misuses_it_does_not(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    status, output = mypy(tmp_path, "--strict", "program.py")
    lines = [int(line.split(":")[1]) for line in output.splitlines() if ": error:" in line]
    assert sorted(set(lines)) == list(range(FIRST_MISUSE, FIRST_MISUSE + 6)), output


def mypy(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(folder / "cache"), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "MYPYPATH"}
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return finished.returncode, finished.stdout + finished.stderr
