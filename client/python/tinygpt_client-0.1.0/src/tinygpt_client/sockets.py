"""Where the daemon listens, and how to reach it there.

Daemon and clients walk the same list, so that they meet without having spoken: `TINYGPT_SOCKET`;
`tinygpt/tinygptd.sock` in a runtime directory that belongs to the user (`$XDG_RUNTIME_DIR`, else
`/run/user/<uid>`; on macOS the user's Application Support folder), unless that path is too long;
`tinygpt-<uid>/tinygptd.sock` in the system's temporary folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

MAX_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""The longest socket path: the size of the kernel's `sun_path` less its terminating zero."""

_MAX_MESSAGE_BYTES = 64 << 20

CHANNEL_OPTIONS = [
    # gRPC would send the percent-encoded socket path as HTTP/2 authority, which many servers refuse.
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
]


class SocketPathTooLong(ValueError):
    """The system's interface has no room for such a path."""


def target(socket: str | os.PathLike[str] | None) -> str:
    """The gRPC target for a socket path, or for the default socket."""
    path = os.path.abspath(default_socket() if socket is None else socket)
    if not _fits(path):
        raise SocketPathTooLong(
            f"the socket path {path!r} is {len(os.fsencode(path))} bytes long, this system allows {MAX_PATH_BYTES}"
        )
    return f"unix:{quote(path)}"


def default_socket() -> Path:
    """Where the daemon listens when nobody says otherwise."""
    if chosen := os.environ.get("TINYGPT_SOCKET"):
        return Path(chosen)
    sockets = (home / "tinygpt" / "tinygptd.sock" for home in _runtime_directories() if _is_mine(home))
    temporary = Path(os.environ.get("TMPDIR", "/tmp")) / f"tinygpt-{os.geteuid()}" / "tinygptd.sock"
    return next((socket for socket in sockets if _fits(socket)), temporary)


def _runtime_directories() -> Iterator[Path]:
    places = [os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.geteuid()}"]
    if sys.platform == "darwin":
        places[1] = os.path.expanduser("~/Library/Application Support")
    return (Path(place) for place in places if place and os.path.isabs(place))


def _is_mine(directory: Path) -> bool:
    return directory.is_dir() and directory.stat().st_uid == os.geteuid()


def _fits(path: str | Path) -> bool:
    return len(os.fsencode(path)) <= MAX_PATH_BYTES
