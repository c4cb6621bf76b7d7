"""llama.cpp as it is had from PyPI: the source in llama-cpp-python's sdist, built for this machine."""

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

VERSION = "0.3.36"
TITLE = f"llama.cpp of llama-cpp-python {VERSION}"
TOOLS = ("llama-bench", "llama-batched-bench", "llama-perplexity", "llama-quantize", "llama-server")
# Its web page would be fetched.
OFF = (
    "LLAMA_CURL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI",
    "LLAMA_USE_PREBUILT_UI",
)


def build(folder: Path) -> Path:
    """The folder of its programs, made below `folder` unless they are there."""
    programs = folder / "build" / "bin"
    if all((programs / tool).exists() for tool in TOOLS):
        return programs
    tools = pip(folder).parent
    if not (tools / "ninja").exists():
        run(tools / "pip", "install", "--quiet", "cmake", "ninja")
    source = folder / f"llama_cpp_python-{VERSION}"
    if not source.exists():
        wanted = f"llama-cpp-python=={VERSION}"
        options = ("--quiet", "--no-deps", "--no-binary", "llama-cpp-python")
        run(tools / "pip", "download", *options, "--dest", folder, wanted)
        with tarfile.open(f"{source}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        mend(source / "vendor" / "llama.cpp")
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    configure = ["cmake", "-S", source / "vendor" / "llama.cpp", "-B", folder / "build", "-G", "Ninja"]
    switches = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_SERVER=ON", *(f"-D{name}=OFF" for name in OFF))
    run(*configure, *switches, env=environment)
    run("cmake", "--build", folder / "build", "--target", *TOOLS, env=environment)
    return programs


def mend(source: Path) -> None:
    """GCC 12 does not know that AMX's configuration is read, leaves it unwritten, and llama.cpp dies
    of an illegal instruction."""
    file = source / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp"
    load = "_tile_loadconfig(&tc);"
    file.write_text(file.read_text().replace(load, f'asm volatile("" : : "r"(&tc) : "memory"); {load}'))


def pip(folder: Path) -> Path:
    """The pip of an environment below `folder`, made unless it is there."""
    tools = folder / "venv"
    if not (tools / "bin" / "pip").exists():
        venv.create(tools, with_pip=True)
    return tools / "bin" / "pip"


def rates(programs: Path, model: Path, threads: int, prompts: list[int], depths: list[int]) -> dict:
    """Tokens per second of one run: `("prefill", n)` and `("decode", depth)`."""
    measured = {}
    for tokens in prompts:
        measured["prefill", tokens] = bench(programs, model, threads, "-p", tokens, "-n", 0)
    for depth in depths:
        measured["decode", depth] = bench(programs, model, threads, "-p", 0, "-n", 64, "-d", depth)
    return measured


def bench(programs: Path, model: Path, threads: int, *arguments: object) -> float:
    command = [programs / "llama-bench", "-m", model, "-t", threads, "-r", 1, "-fa", "off", "-o", "json"]
    command += arguments
    output = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout
    [result] = json.loads(output)
    return result["avg_ts"]


def shared(programs: Path, model: Path, threads: int, prefix: int, sequences: int) -> float:
    """Tokens per second that `sequences` generate together behind one prompt of `prefix`: with one
    cache for all of them or with one for each, whichever is faster."""
    own = 64 * sequences
    return max(
        batched(programs, model, threads, prefix, sequences, "-kvu", "-c", prefix + own),
        batched(programs, model, threads, prefix, sequences, "-c", prefix * sequences + own),
    )


def batched(
    programs: Path, model: Path, threads: int, prefix: int, sequences: int, *context: object
) -> float:
    sizes = ("-npp", prefix, "-ntg", 64, "-npl", sequences, *context)
    options = ("-pps", "--output-format", "jsonl", "-t", threads, "-fa", "off")
    command = [programs / "llama-batched-bench", "-m", model, *sizes, *options]
    output = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout
    [result] = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return result["speed_tg"]


def perplexity(
    programs: Path, model: Path, threads: int, text: Path, window: int, windows: int
) -> float:
    """Over the second halves of the text's first windows, with keys and values in f32."""
    sizes = ("-c", window, "--chunks", windows, "-t", threads)
    options = ("-fa", "off", "-ctk", "f32", "-ctv", "f32")
    command = [programs / "llama-perplexity", "-m", model, "-f", text, *sizes, *options]
    done = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    [found] = re.findall(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    return float(found)


def quantize(programs: Path, model: Path, kind: str) -> Path:
    """The model in another type, beside the build."""
    made = programs.parent.parent / f"{model.stem}.as-{kind}.gguf"
    if not made.exists():
        run(programs / "llama-quantize", "--allow-requantize", model, made, kind)
    return made


def run(*command: object, env: dict[str, str] | None = None) -> None:
    subprocess.run([*map(str, command)], check=True, stdout=sys.stderr, env=env)
