"""Makes MLX-quantised checkpoints and what they should compute.

    pip install "mlx[cpu]" mlx-lm numpy
    python make_mlx_goldens.py GOLDEN KEPT MADE

GOLDEN is the folder of golden files (it holds hf/llama and others). KEPT is tests/golden/mlx, of which this
repository holds what the script gives: `schemes.safetensors`, codes and scales of every scheme with
the numbers they stand for, and `every_scheme`, a small model that has them all. MADE is
target/golden/mlx: hf/llama quantised in each scheme, and other families in one, which tests read
when they are there.

The numbers are mlx's `dequantize` in float32. The oracle of whole models is mlx-lm's model with
these numbers as plain float32 weights: its products over quantised weights in bf16 are far less
exact than anyone's who does it in float32.
"""

import importlib
import json
import shutil
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

AFFINE = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
FLOATS = [("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)]
SCHEMES = AFFINE + FLOATS
#: Families whose tensors MLX names, arranges or ties in ways of their own. (Not Mistral, whose
#: window mlx-lm ignores.)
FAMILIES = ["gemma3_text", "gpt2", "phi3", "qwen2", "smollm3"]

LAST = 8
GREEDY = 48
PROMPT = 96


def main(golden: Path, kept: Path, made: Path) -> None:
    mx.set_default_device(mx.cpu)
    kept.mkdir(parents=True, exist_ok=True)
    schemes(kept / "schemes.safetensors")
    every_scheme(golden / "hf/llama", kept / "every_scheme")
    for mode, bits, group in SCHEMES:
        whole(golden / "hf/llama", made / f"{mode}-{bits}-{group}", mode, bits, group)
    for family in FAMILIES:
        whole(golden / "hf" / family, made / f"{family}-affine-4-32", "affine", 4, 32)


# --- numbers of every scheme ------------------------------------------------------------------


def schemes(path: Path) -> None:
    """Arbitrary bits are codes and scales of every scheme, but for NaN."""
    random = np.random.default_rng(5)
    rows, width, tensors = 2, 128, {}
    for mode, bits, group in SCHEMES:
        codes = random.integers(0, 256, (rows, width * bits // 8), dtype=np.uint8)
        if mode == "mxfp8":
            codes = np.where(codes & 0x7F == 0x7F, 0, codes).astype(np.uint8)
        tensors[f"{mode}-{bits}-{group}.weight"] = weight = mx.array(codes.view("<u4"))
        shape = (rows, width // group)
        if mode == "affine":
            kinds = {"bf16": mx.bfloat16, "f16": mx.float16}
            for kind, dtype in kinds.items():
                scales, biases = (
                    mx.array(random.normal(size=shape).astype(np.float32)).astype(dtype)
                    for _ in range(2)
                )
                name = f"{mode}-{bits}-{group}.{kind}"
                tensors[f"{name}.scales"], tensors[f"{name}.biases"] = scales, biases
                tensors[f"{name}.values"] = mx.dequantize(
                    weight, scales.astype(mx.float32), biases.astype(mx.float32), group, bits, mode
                )
        else:
            low, high = (0, 256) if mode == "nvfp4" else (0, 250)
            scales = random.integers(low, high, shape, dtype=np.uint8)
            scales[0, 0] = 0
            if mode == "nvfp4":
                scales = np.where(scales & 0x7F == 0x7F, 1, scales).astype(np.uint8)
            name = f"{mode}-{bits}-{group}.u8"
            tensors[f"{name}.scales"] = scales = mx.array(scales)
            tensors[f"{name}.values"] = mx.dequantize(
                weight, scales, None, group, bits, mode, dtype=mx.float32
            )
    mx.save_safetensors(str(path), tensors)


# --- whole models -----------------------------------------------------------------------------


def whole(source: Path, out: Path, mode: str, bits: int, group: int) -> None:
    """The source's model, quantised as a whole; its scales are bf16."""
    config = json.loads((source / "config.json").read_text())
    model = model_of(config)
    load(model, mx.load(str(source / "model.safetensors")))
    # As mlx-lm converts: what cannot be cut into groups stays as it is.
    fits = lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[-1] % group == 0
    nn.quantize(model, group, bits, mode=mode, class_predicate=fits)
    config["quantization"] = {"group_size": group, "bits": bits, "mode": mode}
    config["quantization_config"] = config["quantization"]
    prompt = json.loads((source / "case.json").read_text())["prompt_ids"]
    write(source, out, model, config, prompt)


def every_scheme(source: Path, out: Path) -> None:
    """A random model of one layer whose modules have schemes of their own; one has none."""
    config = json.loads((source / "config.json").read_text())
    config |= {
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 2,
        "tie_word_embeddings": False,
    }
    mx.random.seed(7)
    model = model_of(config)
    weights = [(name, 3 * w if w.ndim > 1 else w) for name, w in tree_flatten(model.parameters())]
    model.load_weights([(name, w.astype(mx.bfloat16)) for name, w in weights])
    own = {
        "model.layers.0.self_attn.q_proj": {"group_size": 32, "bits": 2},
        "model.layers.0.self_attn.k_proj": {"group_size": 128, "bits": 3, "mode": "affine"},
        "model.layers.0.self_attn.v_proj": False,
        "model.layers.0.self_attn.o_proj": {"group_size": 32, "bits": 5},
        "model.layers.0.mlp.gate_proj": {"group_size": 32, "bits": 6},
        "model.layers.0.mlp.up_proj": {"group_size": 128, "bits": 8},
        "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
        "model.layers.1.mlp.gate_proj": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
        "model.layers.1.mlp.up_proj": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
        "lm_head": {"group_size": 32, "bits": 4},
    }
    nn.quantize(
        model,
        64,
        4,
        class_predicate=lambda path, module: own.get(path, hasattr(module, "to_quantized")),
    )
    config["quantization"] = {"group_size": 64, "bits": 4, **own}
    prompt = json.loads((source / "case.json").read_text())["prompt_ids"]
    write(source, out, model, config, prompt)


def write(source: Path, out: Path, model: nn.Module, config: dict, prompt: list[int]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tensors = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(out / "model.safetensors"), tensors, metadata={"format": "mlx"})
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, out / name)
    plain = dequantised(config, tensors)
    prompt = prompt[:PROMPT]
    logits = rows(plain, prompt)[-LAST:]
    np.save(out / "logits_last8.npy", logits)
    greedy, margins, row = [], [], logits[-1]
    while len(greedy) < GREEDY:
        second, best = np.sort(row)[-2:]
        greedy.append(int(row.argmax()))
        margins.append(round(float(best - second), 5))
        row = rows(plain, prompt + greedy)[-1]
    case = {"prompt_ids": prompt, "greedy_ids": greedy, "greedy_margin": margins}
    (out / "case.json").write_text(json.dumps(case) + "\n")


def dequantised(config: dict, tensors: dict) -> nn.Module:
    """The same model with plain float32 weights."""
    said = config["quantization"]
    plain = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if f"{module}.scales" not in tensors or part == "bias":
            plain[name] = tensor.astype(mx.float32)
        elif part == "weight":
            scheme = said.get(module, said)
            mode = scheme.get("mode", "affine")
            scales, biases = tensors[f"{module}.scales"], tensors.get(f"{module}.biases")
            if mode == "affine":
                scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
            group, bits = scheme["group_size"], scheme["bits"]
            plain[name] = mx.dequantize(
                tensor, scales, biases, group, bits, mode, dtype=mx.float32
            )
    model = model_of(config)
    load(model, plain)
    return model


def model_of(config: dict) -> nn.Module:
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    return module.Model(module.ModelArgs.from_dict(config))


def load(model: nn.Module, weights: dict) -> None:
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    model.load_weights(list(weights.items()))


def rows(model: nn.Module, tokens: list[int]) -> np.ndarray:
    return np.array(model(mx.array([tokens])))[0].astype(np.float32)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
