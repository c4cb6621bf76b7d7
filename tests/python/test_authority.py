"""What grpc-core writes into `:authority`, which is why the daemon rewrites it and the client package sets it."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import tinygpt_client

EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@pytest.fixture
def wiretap(folder: Path) -> Iterator["Wiretap"]:
    tap = Wiretap(folder / "tap.sock")
    yield tap
    tap.close()


def test_stock_grpcio_sends_the_percent_encoded_path(wiretap: "Wiretap") -> None:
    with grpc.insecure_channel(f"unix:{wiretap.path}") as channel:
        provoke(channel)
    assert str(wiretap.path).lstrip("/").replace("/", "%2F").encode() in wiretap.received()


def test_the_client_package_sends_localhost(wiretap: "Wiretap") -> None:
    with tinygpt_client.Client(wiretap.path) as client:
        provoke(client.channel)
    received = wiretap.received()
    assert b"localhost" in received
    assert b"%2F" not in received


def provoke(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError):
        channel.unary_unary("/a.B/C")(b"", timeout=1)


class Wiretap:
    """Listens on a socket and keeps what the first connection says, headers included."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._heard = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def received(self) -> bytes:
        self._thread.join(10)
        return self._heard

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _listen(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with connection:
            connection.sendall(EMPTY_SETTINGS)
            while heard := connection.recv(65536):
                self._heard += heard
