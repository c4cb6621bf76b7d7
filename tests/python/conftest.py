"""One daemon for all tests that only talk to it, and a fake one for tests of the client package alone."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stubs

stubs.install()

import daemon as real  # noqa: E402
import fake  # noqa: E402


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.Daemon]:
    with short_folder() as folder, real.running(folder) as running:
        yield running


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name, which pytest's own may not."""
    with short_folder() as path:
        yield path


@pytest.fixture
def fake_daemon(folder: Path) -> Iterator[fake.FakeDaemon]:
    with fake.running(folder / "fake.sock") as running:
        yield running


@contextmanager
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tg-") as path:
        yield Path(path)
