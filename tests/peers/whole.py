"""Whole processes: what a prompt costs that is cached already, in milliseconds of wall time."""

import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ours

PROMPT = ours.ids(1000)
CALLS = 9


def measure(programs: Path, model: Path, threads: int) -> dict[str, list[float]]:
    """One round: a daemon that was stopped starts again and answers, then answers some more."""
    with tempfile.TemporaryDirectory(prefix="tinygpt-peers-") as cache:
        daemon = ours.Daemon(programs, model, threads, cache=Path(cache))
        with daemon:
            daemon.sample(PROMPT, 1, "--persist", "durable")
            packed(Path(cache))
        begin = time.perf_counter()
        with daemon:
            first(daemon, "FULL_DISK")
            took = (time.perf_counter() - begin) * 1e3
            hot = [timed(lambda: first(daemon, "FULL_MEMORY")) for _ in range(CALLS)]
    bare = [str(programs / "tinygpt-client"), "--version"]
    process = [timed(lambda: subprocess.run(bare, check=True, capture_output=True)) for _ in range(CALLS)]
    return {
        "start of the daemon's process to the first token, full disk hit, client included": [took],
        "client process of a hot `sample -n 1`": hot,
        "client process that only prints its version": process,
    }


def packed(cache: Path) -> None:
    """Waits for the packed weights, which are written when nothing else is to do."""
    for _ in range(200):
        if any(cache.rglob("*.tgpk")):
            return
        time.sleep(0.05)
    raise RuntimeError(f"no packed weights in {cache}")


def first(daemon: ours.Daemon, verdict: str) -> None:
    found = daemon.sample(PROMPT, 1)["verdict"]
    assert found == verdict, f"{found}, not {verdict}"


def timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e3
