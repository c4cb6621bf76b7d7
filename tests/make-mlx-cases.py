#!/usr/bin/env python3
"""Makes MLX-quantised models of every scheme and what they should compute.

usage: tests/make-mlx-cases.py GOLDEN FOLDER        (nothing is done when FOLDER is complete)

GOLDEN is the folder of golden files. What is made, and how, is in tests/golden/make_mlx_goldens.py,
whose packages come from PyPI into an environment in FOLDER.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

MAKER = Path(__file__).resolve().parent / "golden" / "make_mlx_goldens.py"
PACKAGES = ("mlx[cpu]==0.32.4", "mlx-lm==0.32.2", "numpy==2.4.6")


def main(golden: Path, folder: Path) -> None:
    complete = folder / "complete"
    if complete.exists():
        return
    environment = folder / "venv"
    if not (environment / "installed").exists():
        venv.create(environment, with_pip=True, clear=True)
        pip = (environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*map(str, pip), *PACKAGES], check=True)
        (environment / "installed").touch()
    # The files that the repository holds are made as well, and not wanted here.
    with tempfile.TemporaryDirectory() as kept:
        python = environment / "bin" / "python"
        subprocess.run([*map(str, (python, MAKER, golden, kept, folder))], check=True)
    complete.touch()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
