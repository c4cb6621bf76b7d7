#!/usr/bin/env python3
"""How cost grows: prefill against length, and a decoded token against context.

usage: tests/peers/growth.py MODEL.gguf [--rounds N] [--threads N]        (`make bench-growth`)

Prints medians and draws docs/growth.svg. The lines are what arithmetic predicts from the rate of
products at the shortest size and the rate of attention that fits the longest one best: products
cost the same for every token, attention costs each token what lies before it.
"""

import argparse
import os
from pathlib import Path
from statistics import median

import ours
from machine import PROGRAMS, REPOSITORY, heading

LENGTHS = [128, 256, 512, 1024, 2048, 4096, 8000]
DEPTHS = [0, 512, 1024, 2048, 4096, 7900]
WIDTH, HEIGHT, MARGIN = 420, 300, 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    print(f"{options.model.name}, {options.threads} threads, {options.rounds} rounds\n{heading()}\n")
    rounds = []
    for _ in range(options.rounds):
        with ours.Daemon(PROGRAMS, options.model, options.threads) as daemon:
            rounds.append(daemon.rates(LENGTHS, DEPTHS))
    middle = {key: median(round[key] for round in rounds) for key in rounds[0]}
    prefill = [(n, n / middle["prefill", n] * 1e3) for n in LENGTHS]
    decode = [(n, 1e3 / middle["decode", n]) for n in DEPTHS]
    plots = [
        ("prefill, ms", "tokens of the prompt", prefill, quadratic(prefill)),
        ("one token, ms", "tokens before it", decode, linear(decode)),
    ]
    for title, _, points, predicted in plots:
        table(title, points, predicted)
    (REPOSITORY / "docs" / "growth.svg").write_text(svg(plots))


def quadratic(points: list[tuple[int, float]]):
    """`a n + b n^2`, through the shortest and the longest."""
    (n, t), (m, u) = points[0], points[-1]
    b = (u / m - t / n) / (m - n)
    a = t / n - b * n
    return lambda x: a * x + b * x * x


def linear(points: list[tuple[int, float]]):
    """`a + b n`, through the first and the last."""
    (n, t), (m, u) = points[0], points[-1]
    return lambda x: t + (u - t) * (x - n) / (m - n)


def table(title: str, points: list[tuple[int, float]], predicted) -> None:
    print(f"| {title} | measured | predicted |\n|---|---|---|")
    for n, took in points:
        print(f"| {n:,} | {took:.1f} | {predicted(n):.1f} |")
    print()


def svg(plots: list) -> str:
    width = WIDTH * len(plots)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="11">'
    background = f'<rect width="{width}" height="{HEIGHT}" fill="white"/>'
    parts = [plot(WIDTH * at, *each) for at, each in enumerate(plots)]
    return "\n".join([head, background, *parts, "</svg>\n"])


def plot(left: int, title: str, axis: str, points: list[tuple[int, float]], predicted) -> str:
    right, bottom = max(n for n, _ in points), max(took for _, took in points) * 1.05
    x = lambda n: left + MARGIN + n / right * (WIDTH - 2 * MARGIN)
    y = lambda took: HEIGHT - MARGIN - took / bottom * (HEIGHT - 2 * MARGIN)
    steps = [right * i / 40 for i in range(41)]
    line = " ".join(f"{x(n):.1f},{y(predicted(n)):.1f}" for n in steps)
    dots = [f'<circle cx="{x(n):.1f}" cy="{y(took):.1f}" r="3.5" fill="#c33"/>' for n, took in points]
    marks = [f'<text x="{x(n):.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{n:,}</text>'
             for n in (0, right // 2, right)]
    marks += [f'<text x="{x(0) - 6:.1f}" y="{y(took) + 4:.1f}" text-anchor="end">{took:,.0f}</text>'
              for took in (0, bottom / 2, bottom)]
    corner = f"{x(0):.1f},{y(bottom):.1f} {x(0):.1f},{y(0):.1f} {x(right):.1f},{y(0):.1f}"
    return "\n".join([
        f'<text x="{x(0):.1f}" y="{MARGIN - 14}" font-size="13">{title}</text>',
        f'<text x="{x(right / 2):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{axis}</text>',
        f'<polyline points="{corner}" fill="none" stroke="black"/>',
        f'<polyline points="{line}" fill="none" stroke="#36c"/>',
        *marks, *dots,
    ])


if __name__ == "__main__":
    main()
