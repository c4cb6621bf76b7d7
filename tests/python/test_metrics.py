"""The page of metrics, read by Prometheus' own parser."""

import http.client
import socket
from pathlib import Path

import daemon as real
from prometheus_client.parser import text_string_to_metric_families


class OverSocket(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


def test_the_page_is_what_prometheus_reads(folder: Path) -> None:
    with real.running(folder, metrics=folder / "m"):
        connection = OverSocket(folder / "m")
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert len(families) > 25
    assert families["tinygpt_requests"].type == "counter"
    assert families["tinygpt_engine_step_seconds"].type == "histogram"
    assert {sample.labels["tier"] for sample in families["tinygpt_tier_bytes"].samples} >= {"heap", "disk"}
