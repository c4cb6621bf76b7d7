#!/usr/bin/env python3
"""Agents behind one prompt: this daemon beside llama.cpp's server, in turn, medians of the rounds.

usage: tests/peers/agents.py MODEL.gguf [--rounds N] [--long-rounds N] [--threads N]
                             [--prefix N] [--long N] [--agents N..]    (`make bench-agents`)

Each round starts both anew for each number of agents. These ask all at once, prompts that begin
alike and end in 50 tokens of their own, for 64 tokens: once while nothing is cached, from which
come the time to the first token and the prompt tokens that were computed, and once more with new
ends, from which comes the speed of decoding, while all of them generate. Last, one agent generates
while a long prompt of another is computed.

Absolute times drift on shared machines: read the ratios.
"""

import argparse
import json
import os
import random
import sys
from pathlib import Path
from statistics import median

import llama
import ours
import server
from machine import PEERS, PROGRAMS, heading

UNIQUE = 50
TOKENS = 64
# What a model with 8,192 tokens of context may have twice, and eight agents once.
CONTEXT = 16_384


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long-rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prefix", type=int, default=1000)
    parser.add_argument("--long", type=int, default=8000)
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    programs = llama.build(PEERS)
    print(f"{options.model.name}, {options.threads} threads, {options.rounds} rounds, "
          f"{options.long_rounds} of the long prefill")
    print(f"{heading()}; {llama.TITLE}")
    print(f"\n| behind {options.prefix:,} tokens | | llama.cpp | tinygptd | ratio |\n|---|---|---|---|---|")
    for agents in options.agents:
        together(programs, agents, options)
    starved(programs, options)


def together(programs: Path, agents: int, options: argparse.Namespace) -> None:
    rounds = [(theirs(programs, agents, options), mine(agents, options)) for _ in range(options.rounds)]
    name = f"{agents} agent{'s' if agents > 1 else ''}"
    row(name, "decode, tokens/s", [(t[0], o[0]) for t, o in rounds])
    row("", "TTFT cold, median, ms", [(t[1], o[1]) for t, o in rounds], less=True)
    row("", "TTFT behind a cached prefix, median, ms", [(t[2], o[2]) for t, o in rounds], less=True)
    asked = agents * (options.prefix + UNIQUE)
    row("", f"prompt tokens computed of {asked:,}", [(t[3], o[3]) for t, o in rounds], less=True)


def theirs(programs: Path, agents: int, options: argparse.Namespace) -> tuple[float, ...]:
    """Tokens per second, both times to the first token, and prompt tokens computed while cold."""
    prefix = ids(options.prefix)
    with server.Server(programs, options.model, options.threads, agents, CONTEXT) as peer:
        cold, warm = (peer.round([prefix + ids(UNIQUE) for _ in range(agents)], TOKENS) for _ in range(2))
    first = (median(agent.times[0] for agent in round) for round in (cold, warm))
    return server.rate(warm), *first, sum(agent.timings["prompt_n"] for agent in cold)


def mine(agents: int, options: argparse.Namespace) -> tuple[float, ...]:
    with ours.Daemon(PROGRAMS, options.model, options.threads) as daemon:
        cold, warm = (bench(daemon, agents, options) for _ in range(2))
    rate = warm["decode_tokens_per_second"] or float("nan")
    return rate, cold["ttft_ms"]["p50"], warm["ttft_ms"]["p50"], cold["computed_tokens"]


def bench(daemon: ours.Daemon, agents: int, options: argparse.Namespace, *more: object) -> dict:
    sizes = ("--prefix", options.prefix, "--unique", UNIQUE, "--tokens", TOKENS)
    fixed = ("bench", "--quiet", "--json", "--rounds", 1, "--agents", agents)
    return json.loads(daemon.client(*fixed, *sizes, *more))


def starved(programs: Path, options: argparse.Namespace) -> None:
    alone, beside = [], []
    for _ in range(options.long_rounds):
        with server.Server(programs, options.model, options.threads, 2, CONTEXT) as peer:
            prompt = ids(options.prefix + UNIQUE)
            peers = [p99(gaps) for gaps in server.beside(peer, prompt, ids(options.long), TOKENS)]
        with ours.Daemon(PROGRAMS, options.model, options.threads) as daemon:
            found = bench(daemon, 1, options, "--beside-prefill", options.long)["beside_prefill"]
        alone.append((peers[0], found["alone"]["p99"]))
        beside.append((peers[1], found["beside"]["p99"]))
    row("1 agent", "p99 between tokens, ms", alone, less=True)
    row("", f"the same beside a prefill of {options.long:,}", beside, less=True)


def p99(times: list[float]) -> float:
    """By nearest rank, as the client has it."""
    return sorted(times)[-(-len(times) * 99 // 100) - 1]


def row(name: str, what: str, pairs: list[tuple[float, float]], less: bool = False) -> None:
    """The ratio says how many times better ours is."""
    peer, own = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    ratio = median(pair[0] / pair[1] if less else pair[1] / pair[0] for pair in pairs)
    print(f"| {name} | {what} | {peer:,.0f} | {own:,.0f} | {ratio:.2f}x |", flush=True)


def ids(count: int) -> list[int]:
    """Ids of the middle of the vocabulary, new ones each time."""
    return [random.randrange(6_000, 43_000) for _ in range(count)]


if __name__ == "__main__":
    sys.exit(main())
