#!/usr/bin/env python3
"""This daemon beside llama.cpp: the same file, the same threads, in turn, medians of 5 rounds.

usage: tests/peers/run.py MODEL.gguf [--rounds N] [--threads N]        (`make bench-peers`)

Prints the tables of docs/performance.md. Absolute times drift on shared machines: read the ratios.
"""

import argparse
import os
import platform
import sys
from pathlib import Path
from statistics import median

import llama
import ours

REPOSITORY = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
PROMPTS = [512, 2048]
DEPTHS = [0, 1024, 4096]
SHARED = [1, 4, 8, 16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    programs = llama.build(TARGET / "peers")
    print(f"{processor()}, {options.threads} threads, {options.rounds} rounds; ", end="")
    print(f"llama.cpp of llama-cpp-python {llama.VERSION}; {options.model.name}\n")
    single(programs, options.model, options, PROMPTS, DEPTHS)
    together(programs, options.model, options)
    for kind in ("Q8_0", "Q4_0"):
        print(f"\nthe same model as {kind}\n")
        single(programs, llama.quantize(programs, options.model, kind), options, [512], [0])


def single(
    programs: Path, model: Path, options: argparse.Namespace, prompts: list[int], depths: list[int]
) -> None:
    rounds = []
    for _ in range(options.rounds):
        theirs = llama.rates(programs, model, options.threads, prompts, depths)
        with ours.Daemon(TARGET / "release", model, options.threads) as daemon:
            rounds.append((theirs, daemon.rates(prompts, depths)))
    table([(f"{name} {size}", [(t[name, size], o[name, size]) for t, o in rounds])
           for name, size in rounds[0][0]])


def together(programs: Path, model: Path, options: argparse.Namespace) -> None:
    rows = []
    for sequences in SHARED:
        pairs = []
        for _ in range(options.rounds):
            theirs = llama.shared(programs, model, options.threads, 1024, sequences)
            with ours.Daemon(TARGET / "release", model, options.threads) as daemon:
                pairs.append((theirs, daemon.shared(1024, sequences)))
        rows.append((f"{sequences} on a shared 1,024", pairs))
    print()
    table(rows)


def table(rows: list[tuple[str, list[tuple[float, float]]]]) -> None:
    print("| tokens/s | llama.cpp | tinygptd | ratio |\n|---|---|---|---|")
    for name, pairs in rows:
        theirs, mine = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        ratio = median(pair[1] / pair[0] for pair in pairs)
        print(f"| {name} | {theirs:.0f} | {mine:.0f} | {ratio:.2f}x |", flush=True)


def processor() -> str:
    lines = Path("/proc/cpuinfo")
    names = [line for line in lines.read_text().splitlines() if line.startswith("model name")] if lines.exists() else []
    return names[0].split(":")[1].strip() if names else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
