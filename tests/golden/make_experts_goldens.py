"""Makes tests/golden/tinygpt/experts: small TinyGPT models whose blocks have experts, and what they compute.

    pip install numpy
    python make_experts_goldens.py

The models have the format's window and this project's extension for shared heads, too.
The oracle is float64 from the numbers in the file: a softmax over the router's scores chooses the
best; one expert counts with its probability, several with theirs divided by their sum.
"""

import json
import struct
from math import erf
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "tinygpt" / "experts"

LAYERS, WIDTH, HEADS, SHARED, MLP, EXPERTS, CONTEXT = 2, 16, 4, 2, 24, 3, 64
DIM = WIDTH // HEADS
#: Tokens that a query sees, for each number of experts that a row has.
WINDOWS = {1: None, 2: 21}
PROMPT = list(b"ROMEO: what light through yonder window breaks? It is")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    tensors = weights(np.random.default_rng(11))
    for top, window in WINDOWS.items():
        (FOLDER / f"top{top}.tinygpt").write_bytes(packed(tensors, top, window))
        np.save(FOLDER / f"top{top}.logits.npy", logits(tensors, top, window).astype(np.float32))
    (FOLDER / "prompt.json").write_text(json.dumps(PROMPT) + "\n")


def weights(random) -> dict:
    """Names and numbers in the order of the format, rounded to what the file can hold."""
    keys = SHARED * DIM
    shapes = {"token_embedding.weight": (256, WIDTH), "position_embedding.weight": (CONTEXT, WIDTH)}
    shapes |= layer_norm("ln_final")
    for number in range(LAYERS):
        block = f"blocks.{number}"
        shapes |= layer_norm(f"{block}.ln1")
        for name, rows in {"q": WIDTH, "k": keys, "v": keys, "o": WIDTH}.items():
            shapes |= linear(f"{block}.attn.{name}_proj", rows, WIDTH)
        shapes |= layer_norm(f"{block}.ln2") | {f"{block}.moe.router.weight": (EXPERTS, WIDTH)}
        for expert in range(EXPERTS):
            name = f"{block}.moe.experts.{expert}"
            shapes |= linear(f"{name}.fc_in", MLP, WIDTH) | linear(f"{name}.fc_out", WIDTH, MLP)
    return {name: numbers(random, name, shape) for name, shape in shapes.items()}


def numbers(random, name: str, shape: tuple):
    values = random.normal(0, 1.5 / np.sqrt(shape[-1]) if len(shape) == 2 else 0.1, shape)
    if ".ln" in f".{name}" and name.endswith("weight"):
        values += 1
    return values.astype(np.float16)


def layer_norm(name: str) -> dict:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def linear(name: str, n: int, k: int) -> dict:
    return {f"{name}.weight": (n, k), f"{name}.bias": (n,)}


def packed(tensors: dict, top: int, window: int | None) -> bytes:
    config = {"layers": LAYERS, "dModel": WIDTH, "ctx": CONTEXT, "heads": HEADS, "kvHeads": SHARED, "dMlp": MLP,
              "nExperts": EXPERTS, "moeTopK": top}
    manifest, body, offset = [], b"", 0
    for name, values in tensors.items():
        manifest.append({"name": name, "shape": list(values.shape), "floatOffset": offset})
        offset += values.size
        transposed = values.ndim == 2 and not name.endswith("embedding.weight")
        body += (values.T if transposed else values).tobytes()
    config |= {"slidingWindow": window} if window else {}
    head = json.dumps({"config": config, "manifest": manifest, "includesOptimizerState": False, "weightDtype": "fp16"})
    return b"TGPT" + struct.pack("<II", 2, len(head)) + head.encode() + bytes(4) + body


def logits(tensors: dict, top: int, window: int | None):
    """After every token of the prompt, [T, V]."""
    tensors = {name: values.astype(np.float64) for name, values in tensors.items()}
    place = np.arange(len(PROMPT))
    distance = place[:, None] - place[None, :]
    hidden = (distance < 0) | (distance >= (window or CONTEXT))

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def through(x, name):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def heads(x, repeated):
        return np.repeat(x.reshape(len(PROMPT), -1, DIM).swapaxes(0, 1), repeated, axis=0)

    x = tensors["token_embedding.weight"][PROMPT] + tensors["position_embedding.weight"][place]
    for number in range(LAYERS):
        block = f"blocks.{number}"
        inner = norm(x, f"{block}.ln1")
        q = heads(through(inner, f"{block}.attn.q_proj"), 1)
        k, v = (heads(through(inner, f"{block}.attn.{name}_proj"), HEADS // SHARED) for name in "kv")
        shares = softmax(np.where(hidden, -np.inf, q @ k.swapaxes(1, 2) / np.sqrt(DIM)))
        attended = (shares @ v).swapaxes(0, 1).reshape(len(PROMPT), WIDTH)
        x = x + through(attended, f"{block}.attn.o_proj")
        inner = norm(x, f"{block}.ln2")
        chosen = choose(softmax(inner @ tensors[f"{block}.moe.router.weight"].T), top)
        for expert in range(EXPERTS):
            name = f"{block}.moe.experts.{expert}"
            x = x + chosen[:, [expert]] * through(gelu(through(inner, f"{name}.fc_in")), f"{name}.fc_out")
    return norm(x, "ln_final") @ tensors["token_embedding.weight"].T


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def choose(shares, top: int):
    """What each expert counts in each row, [T, E]."""
    order = np.argsort(-shares, axis=-1, kind="stable")
    kept = np.where(np.argsort(order, axis=-1) < top, shares, 0)
    assert len(set(order[:, 0])) == EXPERTS, "every expert has a row"
    return kept if top == 1 else kept / (kept.sum(-1, keepdims=True) + 1e-9)


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


if __name__ == "__main__":
    main()
