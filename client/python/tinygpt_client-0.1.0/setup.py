"""Compiles the protocol into the wheel, so that whoever installs it needs neither protoc nor the repository.

In the repository the `.proto` files lie in `proto/proto`; a source distribution carries a copy in `proto`.
"""

from pathlib import Path
from shutil import copytree

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent.resolve()
CARRIED = HERE / "proto"
PROTOCOL = CARRIED if CARRIED.is_dir() else HERE.parents[1] / "proto" / "proto"


class BuildWithStubs(build_py):
    def run(self) -> None:
        super().run()
        target = HERE / "src" if self.editable_mode else Path(self.build_lib)
        compile_protocol(target)
        (target / "tinygpt" / "v1" / "py.typed").touch()


class SdistWithProtocol(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        copytree(PROTOCOL, Path(base_dir) / "proto", dirs_exist_ok=True)


def compile_protocol(target: Path) -> None:
    import grpc_tools
    from grpc_tools import protoc

    target.mkdir(parents=True, exist_ok=True)
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    sources = [str(path.relative_to(PROTOCOL)) for path in sorted(PROTOCOL.glob("tinygpt/v1/*.proto"))]
    if not sources:
        raise FileNotFoundError(f"no .proto files under {PROTOCOL}")
    status = protoc.main(
        ["protoc", f"-I{PROTOCOL}", f"-I{well_known}"]
        + [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
        + sources
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")


setup(cmdclass={"build_py": BuildWithStubs, "sdist": SdistWithProtocol})
