"""One named text: 300 articles of the Australian Broadcasting Corporation from 2000 and 2001, which
gensim's wheel on PyPI carries as test data."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "gensim==4.3.3"
# The same wheel on every machine: only a text is taken from it.
KIND = ("--only-binary", ":all:", "--python-version", "3.11", "--platform", "manylinux2014_x86_64")
NAME = "gensim/test/test_data/lee_background.cor"
SHA256 = "5d78d6dafd953bbf65797bef09a9ffb9ec430583381be705f8fd460000f370fb"


def fetch(folder: Path, pip: Path) -> Path:
    """The text's file, fetched into `folder` with that pip unless it is there."""
    text = folder / Path(NAME).name
    if not text.exists():
        content = unpack(folder, pip)
        digest = hashlib.sha256(content).hexdigest()
        if digest != SHA256:
            sys.exit(f"{NAME} of {WHEEL} has sha256 {digest}, not {SHA256}")
        text.write_bytes(content)
    return text


def unpack(folder: Path, pip: Path) -> bytes:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        options = ("--quiet", "--no-deps", *KIND, "--dest", scratch)
        subprocess.run([str(pip), "download", *options, WHEEL], check=True, stdout=sys.stderr)
        [wheel] = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(NAME)
