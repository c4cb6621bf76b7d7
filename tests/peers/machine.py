"""Where programs and models lie, and what is measured on which machine."""

import os
import platform
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
PROGRAMS = TARGET / "release"
PEERS = TARGET / "peers"


def heading() -> str:
    """The machine and this project's version, in one line. Load before a run spoils it."""
    return f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {version()}"


def processor() -> str:
    lines = Path("/proc/cpuinfo")
    words = lines.read_text().splitlines() if lines.exists() else []
    names = [line.split(":")[1].strip() for line in words if line.startswith("model name")]
    return names[0] if names else platform.processor()


def version() -> str:
    asked = subprocess.run([PROGRAMS / "tinygptd", "--version"], check=True, capture_output=True, text=True)
    head = ("git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD")
    commit = subprocess.run(head, capture_output=True, text=True).stdout.strip()
    return f"{asked.stdout.strip()} {commit}".strip()
