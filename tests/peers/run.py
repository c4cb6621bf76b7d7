#!/usr/bin/env python3
"""This daemon beside llama.cpp: the same file, the same threads, in turn, medians of 5 rounds.

usage: tests/peers/run.py MODEL.gguf [OTHER.gguf..] [--rounds N] [--threads N]   (`make bench-peers`)

Everything is measured with the first model; of the others prefill and decode.

Absolute times drift on shared machines: read the ratios.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import floor
import llama
import ours
import whole
from machine import PEERS, PROGRAMS, heading

PROMPTS = [512, 2048]
DEPTHS = [0, 1024, 4096]
PREFIX = 1024
SEQUENCES = [1, 8, 16]
KINDS = ("Q8_0", "Q4_0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("others", type=Path, nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    programs = llama.build(PEERS)
    print(f"{options.model.name}, {options.threads} threads, {options.rounds} rounds")
    print(f"{heading()}; {llama.TITLE}")
    alone(programs, options.model, options, PROMPTS, DEPTHS)
    lowest(options)
    together(programs, options)
    quantised = [llama.quantize(programs, options.model, kind) for kind in KINDS]
    for other in quantised + options.others:
        alone(programs, other, options, PROMPTS[:1], DEPTHS[:1])
    limits(options)
    processes(options)


def alone(
    programs: Path, model: Path, options: argparse.Namespace, prompts: list[int], depths: list[int]
) -> None:
    rounds = []
    for _ in range(options.rounds):
        theirs = llama.rates(programs, model, options.threads, prompts, depths)
        with ours.Daemon(PROGRAMS, model, options.threads) as daemon:
            rounds.append((theirs, daemon.rates(prompts, depths)))
    rows = [(f"{name} {size}", [(t[name, size], o[name, size]) for t, o in rounds])
            for name, size in rounds[0][0]]
    table(f"{model.name}, tokens/s", rows)


def lowest(options: argparse.Namespace) -> None:
    """candle's own model of the same file, which is where a daemon on candle would begin."""
    program = floor.build()
    rounds = []
    for _ in range(options.rounds):
        theirs = floor.rates(program, options.model, options.threads, PROMPTS[0], ours.GENERATED - 1)
        with ours.Daemon(PROGRAMS, options.model, options.threads) as daemon:
            rounds.append((theirs, daemon.rates(PROMPTS[:1], DEPTHS[:1])))
    rows = [(f"{name} {size}", [(t[name, size], o[name, size]) for t, o in rounds])
            for name, size in rounds[0][1]]
    table("tokens/s", rows, "candle")


def together(programs: Path, options: argparse.Namespace) -> None:
    rows = []
    for sequences in SEQUENCES:
        pairs = []
        for _ in range(options.rounds):
            theirs = llama.shared(programs, options.model, options.threads, PREFIX, sequences)
            with ours.Daemon(PROGRAMS, options.model, options.threads) as daemon:
                pairs.append((theirs, daemon.shared(PREFIX, sequences)))
        rows.append((f"decode of {sequences}", pairs))
    table(f"together on a prefix of {PREFIX}, tokens/s", rows)


def table(
    title: str, rows: list[tuple[str, list[tuple[float, float]]]], peer: str = "llama.cpp"
) -> None:
    print(f"\n| {title} | {peer} | tinygptd | ratio |\n|---|---|---|---|")
    for name, pairs in rows:
        theirs, mine = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        ratio = median(pair[1] / pair[0] for pair in pairs)
        print(f"| {name} | {theirs:.0f} | {mine:.0f} | {ratio:.2f}x |", flush=True)


def limits(options: argparse.Namespace) -> None:
    """Decoding beside a plain read of as many bytes by as many threads."""
    print("\n| decode, GB/s | bytes per token | read of as many | tinygptd | share |\n|---|---|---|---|---|")
    for depth in DEPTHS:
        pairs = []
        for _ in range(options.rounds):
            with ours.Daemon(PROGRAMS, options.model, options.threads) as daemon:
                speed = daemon.rates([], [depth])["decode", depth]
                weights, kv = daemon.per_token()
            # Half of what is generated is, in the mean, in front of a generated token.
            size = weights + kv * (depth + ours.GENERATED // 2)
            pairs.append((read(size, options.threads), speed * size / 1e9))
        limit, mine = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        share = 100 * median(pair[1] / pair[0] for pair in pairs)
        print(f"| at {depth} | {size:,} | {limit:.1f} | {mine:.1f} | {share:.0f} % |", flush=True)


def read(size: int, threads: int) -> float:
    command = [str(PROGRAMS / "bandwidth"), str(size), str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def processes(options: argparse.Namespace) -> None:
    measured: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, times in whole.measure(PROGRAMS, options.model, options.threads).items():
            measured.setdefault(name, []).extend(times)
    print("\n| 1,000 tokens, ms | median | least | times |\n|---|---|---|---|")
    for name, times in measured.items():
        print(f"| {name} | {median(times):.1f} | {min(times):.1f} | {len(times)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
