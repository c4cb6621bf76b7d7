#!/usr/bin/env python3
"""Runs every test and adds them up: the Rust workspace, then the clients in other languages.

usage: tests/run.py        (what `make test` does, after fetching the real model)

A Rust test whose material cannot be had says `skipped: REASON` on stderr and returns;
it is counted as skipped, as an ignored one is. Whatever is skipped is named where it happens.
The last line is `N passed, N failed, N skipped`. With CI=true a skip is a failure.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

# What a person may have set for the daemon they use; the tests start their own.
SETTINGS = ("TINYGPT_SOCKET", "TINYGPT_CACHE_DIR", "TINYGPT_CONFIG")

# As in the Makefile: the programs under test are those that `make install` installs.
WORKSPACE = ("--workspace", "--features", "tinygpt-client/pull")

RESULT = re.compile(r"^test (.+?) \.\.\. (ok|FAILED|ignored)\b(.*)")
CAPTURED = re.compile(r"^---- (.+) stdout ----$")
SKIPPED = re.compile(r"^skipped: (.*)")
CLIENTS = re.compile(r"^clients: (\d+) passed, (\d+) failed, (\d+) skipped$")
SECTIONS = ("successes:", "failures:")
PROGRESS = ("     Running", "   Doc-tests", "running ", "test result:")


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"

    def fail(self, what: str) -> None:
        say(f"failed: {what}")
        self.failed += 1

    def skip(self, what: str) -> None:
        say(f"skipped: {what}")
        self.skipped += 1


def main() -> int:
    os.chdir(REPOSITORY)
    for name in SETTINGS:
        os.environ.pop(name, None)
    tally = Tally()
    rust_tests(tally)
    client_tests(tally)
    say(str(tally))
    return 1 if tally.failed or (tally.skipped and os.environ.get("CI") == "true") else 0


def rust_tests(tally: Tally) -> None:
    """The programs are built first, for tests start them as processes."""
    if subprocess.run(["cargo", "build", *WORKSPACE, "--bins", "--tests"]).returncode:
        return tally.fail("the workspace does not build")
    command = ["cargo", "test", *WORKSPACE, "--no-fail-fast", "--", "--show-output"]
    status = stream(command, lambda lines: count_rust(lines, tally))
    if status and not tally.failed:
        tally.fail("the Rust tests did not run to their end")


def count_rust(lines: Iterator[str], tally: Tally) -> None:
    """Passes on which binary runs, its result, and all about failures; of what passing tests say, only skips."""
    section, speaker = "", ""
    for line in lines:
        if line in SECTIONS or line.startswith(PROGRESS):
            section = line
        if section.startswith("running") and (result := RESULT.match(line)):
            count_result(tally, *result.groups())
        elif section != "successes:":
            say(line, when=bool(line))
        elif captured := CAPTURED.match(line):
            speaker = captured[1]
        elif skip := SKIPPED.match(line):
            tally.passed -= 1
            tally.skip(f"{speaker}: {skip[1]}")


def count_result(tally: Tally, name: str, outcome: str, remark: str) -> None:
    if outcome == "ok":
        tally.passed += 1
    elif outcome == "ignored":
        tally.skip(f"{name}: ignored{remark}")
    else:
        tally.fail(name)


def client_tests(tally: Tally) -> None:
    """The script names what it skips; its closing line has the counts."""
    last = ""

    def relay(lines: Iterator[str]) -> None:
        nonlocal last
        for last in lines:
            say(last)

    status = stream(["tests/run-clients.sh"], relay)
    counts = CLIENTS.match(last)
    if not counts:
        return tally.fail(f"the clients in other languages stopped with status {status}")
    passed, failed, skipped = map(int, counts.groups())
    tally.passed += passed
    tally.failed += failed
    tally.skipped += skipped


def stream(command: list[str], consume: Callable[[Iterator[str]], None]) -> int:
    """Runs a command, feeding the lines of both its outputs as they come; returns its exit status."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        consume(line.rstrip("\n") for line in process.stdout or ())
    return process.returncode


def say(line: str, when: bool = True) -> None:
    if when:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
