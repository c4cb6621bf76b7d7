"""Runs a real tinygptd in a folder of its own."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from stubs import REPOSITORY

START_SECONDS = 60


@dataclass(frozen=True)
class Daemon:
    """A running daemon."""

    pid: int
    socket: Path


def binary() -> Path:
    """The daemon under test: `TINYGPTD`, else what cargo built last."""
    path = Path(os.environ.get("TINYGPTD") or REPOSITORY / "target" / "debug" / "tinygptd").absolute()
    assert path.is_file(), f"no daemon at {path}: run `cargo build -p tinygptd`, or set TINYGPTD"
    return path


@contextmanager
def running(
    folder: Path, name: str = "tinygptd.sock", default_place: bool = False, metrics: Path | None = None
) -> Iterator[Daemon]:
    """Serves the built-in model in `folder`, on the socket `name` there or where the rules say."""
    socket = folder / "tinygpt" / "tinygptd.sock" if default_place else folder / name
    arguments = [] if default_place else ["--socket", str(socket)]
    measured = [] if metrics is None else ["--metrics", str(metrics)]
    log = folder / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [binary(), *arguments, *measured, "--cache-dir", str(folder / "cache")],
            env=environment(XDG_RUNTIME_DIR=str(folder)),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        await_serving(process, socket, log)
        yield Daemon(process.pid, socket)
    finally:
        process.kill()
        process.wait()


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without what would send daemon or client elsewhere."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TINYGPT")}
    return inherited | changes


def await_serving(process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not serves(socket):
        assert process.poll() is None, f"tinygptd ended with {process.returncode}:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"tinygptd does not serve after {START_SECONDS} s:\n{log.read_text()}"
        time.sleep(0.05)


def serves(socket: Path) -> bool:
    """Asks with the authority that no server refuses, so that a fault there shows in its own test."""
    if not socket.exists():
        return False
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(target(socket), options=options) as channel:
        try:
            answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=5)
        except grpc.RpcError:
            return False
        return bool(answer.status == HealthCheckResponse.SERVING)


def target(socket: Path | str) -> str:
    """The bare target that every gRPC tutorial names."""
    return f"unix:{socket}"
