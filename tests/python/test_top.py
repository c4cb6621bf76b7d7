"""`tinygpt-client top` in a real terminal, and without one."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import daemon as real
import pytest
from daemon import Daemon

PATIENCE = 30.0
LEAVES = b"\x1b[?1049l"


def client() -> Path:
    return Path(os.environ.get("TINYGPT_CLIENT") or real.binary().with_name("tinygpt-client"))


class Terminal:
    """A client in a terminal of its own."""

    def __init__(self, socket: Path, *arguments: str) -> None:
        self.ours, self.theirs = pty.openpty()
        set_size(self.theirs, 100, 30)
        self.before = termios.tcgetattr(self.theirs)
        self.seen = b""
        self.process = subprocess.Popen(
            [client(), "--socket", socket, "top", *arguments],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env=real.environment(TERM="xterm-256color"),
            start_new_session=True,
        )

    def resize(self, columns: int, rows: int) -> None:
        set_size(self.theirs, columns, rows)
        self.process.send_signal(signal.SIGWINCH)

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def read(self) -> None:
        if select.select([self.ours], [], [], 0.05)[0]:
            self.seen += os.read(self.ours, 1 << 16)

    def until(self, words: bytes) -> None:
        """Waits for words that are drawn from now on."""
        since, deadline = len(self.seen), time.monotonic() + PATIENCE
        while words not in self.seen[since:]:
            assert time.monotonic() < deadline, f"never {words!r}: {self.seen[since:]!r}"
            self.read()

    def ended(self, press: bytes = b"") -> int:
        """The exit status, after which the terminal has to be as it was. A key that comes together
        with a resize may be read only with the next one, so it is pressed again."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it does not end"
            self.press(press)
            self.read()
        self.read()
        assert LEAVES in self.seen
        assert termios.tcgetattr(self.theirs) == self.before
        return self.process.returncode


def set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def top(socket: Path, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(socket, *arguments)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.ours)
        os.close(terminal.theirs)


def test_the_view_is_drawn_follows_its_keys_and_gives_the_terminal_back(daemon: Daemon) -> None:
    with top(daemon.socket, "--interval", "200ms") as terminal:
        terminal.until(b"builtin")
        terminal.press(b"p")
        terminal.until(b"paused")
        terminal.press(b"-")
        # Only what has changed is drawn, until there is another size.
        terminal.until(b"4")
        terminal.resize(90, 20)
        terminal.until(b"400ms")
        terminal.resize(40, 12)
        terminal.until(b"tinygptd")
        assert terminal.ended(press=b"q") == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_gives_the_terminal_back(daemon: Daemon, how: signal.Signals) -> None:
    with top(daemon.socket) as terminal:
        terminal.until(b"builtin")
        terminal.process.send_signal(how)
        assert terminal.ended() == (130 if how == signal.SIGINT else 0)


def test_ctrl_c_is_a_key_and_ends_it_as_everywhere(daemon: Daemon) -> None:
    with top(daemon.socket) as terminal:
        terminal.until(b"builtin")
        terminal.press(b"\x03")
        assert terminal.ended() == 130


def test_a_daemon_that_comes_goes_and_comes_again_is_seen(folder: Path) -> None:
    with top(folder / "tinygptd.sock", "--interval", "100ms") as terminal:
        terminal.until(b"waiting")
        for _ in range(2):
            with real.running(folder):
                terminal.until(b"serv")
            terminal.until(b"waiting")
        terminal.press(b"q")
        assert terminal.ended() == 0


def test_a_pipe_gets_one_plain_picture(daemon: Daemon) -> None:
    command = [client(), "--socket", daemon.socket, "top", "--interval", "100ms"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    assert printed.startswith("tinygptd · serving · 0 running, 0 waiting")
    assert "builtin" in printed and "\x1b" not in printed


def test_a_pipe_without_a_daemon_is_told_so(folder: Path) -> None:
    command = [client(), "--socket", folder / "none", "top"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 3 and ended.stdout == ""
