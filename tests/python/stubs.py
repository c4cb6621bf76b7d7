"""Makes stubs of the repository's protocol with stock grpcio-tools, and puts them on the import path."""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

REPOSITORY = Path(__file__).resolve().parents[2]
PROTOCOL = REPOSITORY / "proto" / "proto"

_folder = tempfile.TemporaryDirectory(prefix="tinygpt-stubs-")


def install() -> None:
    """Must run before anything imports `tinygpt.v1`, which the installed package has too."""
    sources = [str(path) for path in sorted(PROTOCOL.glob("tinygpt/v1/*.proto"))]
    outputs = [f"--python_out={_folder.name}", f"--grpc_python_out={_folder.name}"]
    well_known = Path(protoc.__file__).parent / "_proto"
    status = protoc.main(["protoc", f"-I{PROTOCOL}", f"-I{well_known}", *outputs, *sources])
    assert status == 0, f"grpcio-tools refused the protocol: status {status}"
    sys.path.insert(0, _folder.name)
