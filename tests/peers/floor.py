"""candle's quantised Llama: a program of its own, built the first time."""

import os
import subprocess
from pathlib import Path

from machine import TARGET

PACKAGE = Path(__file__).resolve().parent / "candle"


def build() -> Path:
    target = TARGET / "peers-candle"
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--target-dir", target]
    # candle's integer kernels choose their instructions when they are compiled.
    environment = os.environ | {"RUSTFLAGS": "-C target-cpu=native"}
    manifest = PACKAGE / "Cargo.toml"
    subprocess.run([*map(str, command), "--manifest-path", manifest], check=True, env=environment)
    return target / "release" / "tinygpt-peers-candle"


def rates(program: Path, model: Path, threads: int, prompt: int, generated: int) -> dict:
    """Tokens per second: `("prefill", prompt)` and `("decode", 0)`."""
    command = [program, model, str(prompt), str(generated)]
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    prefill, decode = map(float, run.stdout.split())
    return {("prefill", prompt): prefill, ("decode", 0): decode}
