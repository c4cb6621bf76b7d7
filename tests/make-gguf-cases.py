#!/usr/bin/env python3
"""Makes GGUF files of every architecture and weight type from small Hugging Face checkpoints.

usage: tests/make-gguf-cases.py GOLDEN FOLDER        (nothing is done when FOLDER is complete)

GOLDEN is the folder of golden files, of which hf/* are read. FOLDER gets, for each architecture,

    NAME.gguf                  the checkpoint, every number exactly; what it should compute is in GOLDEN
    NAME-TYPE.gguf             its matrices quantised
    NAME-TYPE.plain.gguf       the same, each matrix as the gguf package dequantises it, in F32

for variants that GOLDEN has no case of

    NAME.gguf                  a checkpoint with another configuration or another head
    NAME.logits.npy            what it computes after the last 8 tokens of its prompt, by `reference`

and last of all `complete`. Rows that no block fits stay BF16.

numpy and gguf come from PyPI, into an environment in FOLDER, unless this Python has them.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

#: Our name: (GGUF's name, the folder of golden/hf)
MODELS = {
    "llama": ("llama", "llama3rope"),
    "mistral": ("llama", "mistral"),
    "qwen2": ("qwen2", "qwen2"),
    "qwen3": ("qwen3", "qwen3"),
    "gemma3": ("gemma3", "gemma3_text"),
    "phi3": ("phi3", "phi3"),
    "gpt2": ("gpt2", "gpt2"),
}

#: Types that the gguf package can make, and for which model.
TYPES = {
    "llama": ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"],
    "qwen2": ["Q4_1"],
    "qwen3": ["Q5_0"],
    "gemma3": ["Q8_0"],
    "phi3": ["Q4_0", "MXFP4"],
    "gpt2": ["Q5_1"],
}

#: Variants: (GGUF's name, the folder of golden/hf, what its configuration has instead)
VARIANTS = {
    # llama.cpp leaves every fourth layer without positions, whatever the checkpoint says.
    "smollm3": ("smollm3", "smollm3", {"no_rope_layers": [1, 1, 1, 0]}),
    "phi3-long": ("phi3", "phi3", {"rope_scaling": "longrope", "original_max_position_embeddings": 64}),
    "phi3-short": ("phi3", "phi3", {"rope_scaling": "longrope", "original_max_position_embeddings": 512}),
}

#: Our names of tensors by those of a Llama's checkpoint.
LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

GEMMA = LLAMA | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

GPT2 = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def main(golden: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "complete"
    if stamp.exists() and stamp.read_bytes() == Path(__file__).read_bytes():
        return
    for name, (architecture, source) in MODELS.items():
        model = Model(golden / "hf" / source, architecture)
        model.write(folder / f"{name}.gguf")
        for kind in TYPES.get(name, []):
            model.write(folder / f"{name}-{kind}.gguf", kind)
            model.write(folder / f"{name}-{kind}.plain.gguf", kind, plain=True)
    for name, (architecture, source, changes) in VARIANTS.items():
        check_reference(golden / "hf" / source)
        model = Model(golden / "hf" / source, architecture, longrope(changes))
        model.write(folder / f"{name}.gguf")
        np.save(folder / f"{name}.logits.npy", reference(model.config, golden / "hf" / source))
    write_head(golden / "hf" / "gpt2", folder / "gpt2-head.gguf")
    stamp.write_bytes(Path(__file__).read_bytes())


def longrope(changes: dict) -> dict:
    if "rope_scaling" not in changes:
        return changes
    short, long = ([1 + i / step for i in range(16)] for step in (64, 8))
    return changes | {"rope_scaling": {"type": "longrope", "short_factor": short, "long_factor": long}}


def write_head(source: Path, path: Path) -> None:
    """A GPT-2 whose head is its embedding with each row one further down."""
    model = Model(source, "gpt2")
    model.tensors["output.weight"] = np.roll(model.tensors["token_embd.weight"], 1, axis=0)
    model.write(path)


class Model:
    """A checkpoint under GGUF's names and in GGUF's order of rows."""

    def __init__(self, source: Path, architecture: str, changes: dict = {}):
        self.architecture = architecture
        self.config = json.loads((source / "config.json").read_text()) | changes
        self.tokenizer = json.loads((source / "tokenizer.json").read_text())
        self.tensors = dict(self.renamed(*item) for item in read(source / "model.safetensors"))
        self.tensors |= rope_factors(self.config)

    def renamed(self, name: str, values):
        config = self.config
        names = {"gemma3": GEMMA, "gpt2": GPT2}.get(self.architecture, LLAMA)
        stem, suffix = name.rsplit(".", 1)
        parts = stem.removeprefix("model.layers.").removeprefix("h.").split(".", 1)
        if parts[0].isdigit():
            stem, prefix = parts[1], f"blk.{parts[0]}."
        else:
            prefix = ""
        ours = names[stem]
        if self.architecture in ("llama", "smollm3") and ours in ("attn_q", "attn_k"):
            key = "num_attention_heads" if ours == "attn_q" else "num_key_value_heads"
            values = interleaved(values, config[key])
        if self.architecture == "gpt2" and stem.split(".")[-1].startswith("c_") and suffix == "weight":
            values = values.T
        if self.architecture == "gemma3" and ours.endswith("norm"):
            values = values + 1
        if self.architecture == "gemma3" and ours == "attn_q_norm":
            # No key says how queries are scaled; here it is not by their length.
            values = values * np.sqrt(config["head_dim"] / config["query_pre_attn_scalar"])
        return f"{prefix}{ours}.{suffix}", np.ascontiguousarray(values, np.float32)

    def write(self, path: Path, kind: str | None = None, plain: bool = False) -> None:
        writer = gguf.GGUFWriter(path, self.architecture)
        self.write_config(writer)
        self.write_tokenizer(writer)
        for name, values in self.tensors.items():
            dtype = self.dtype(name, values, kind)
            data = gguf.quants.quantize(values, dtype)
            if plain:
                data, dtype = gguf.quants.dequantize(data, dtype), Type.F32
            writer.add_tensor(name, data, raw_dtype=dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def dtype(self, name: str, values, kind: str | None):
        """Plain vectors and positions; matrices in what is asked for, where it fits."""
        if values.ndim == 1 or name.startswith("position"):
            return Type.F32
        exact = Type.F32 if self.config["torch_dtype"] == "float32" else Type.BF16
        if kind is None:
            return exact
        block, _ = gguf.GGML_QUANT_SIZES[Type[kind]]
        return Type[kind] if values.shape[1] % block == 0 else Type.BF16

    def write_config(self, writer) -> None:
        config = self.config
        if self.architecture == "gpt2":
            writer.add_context_length(config["n_ctx"])
            writer.add_embedding_length(config["n_embd"])
            writer.add_block_count(config["n_layer"])
            writer.add_feed_forward_length(4 * config["n_embd"])
            writer.add_head_count(config["n_head"])
            writer.add_layer_norm_eps(config["layer_norm_epsilon"])
            return
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_theta"])
        if (scaling := config.get("rope_scaling")) and scaling.get("type") == "longrope":
            writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
            writer.add_rope_scaling_attn_factors(frequencies(config)[1])
        if "head_dim" in config:
            writer.add_key_length(config["head_dim"])
            writer.add_value_length(config["head_dim"])
        if self.architecture == "gemma3":
            writer.add_sliding_window_pattern(
                [kind == "sliding_attention" for kind in config["layer_types"]]
            )
        if self.architecture in ("gemma3", "llama") and config.get("sliding_window"):
            writer.add_sliding_window(config["sliding_window"])

    def write_tokenizer(self, writer) -> None:
        vocabulary = self.tokenizer["model"]["vocab"].items()
        tokens = {id: (text, gguf.TokenType.NORMAL) for text, id in vocabulary}
        for token in self.tokenizer["added_tokens"]:
            tokens[token["id"]] = (token["content"], gguf.TokenType.CONTROL)
        texts, kinds = zip(*(tokens[id] for id in range(len(tokens))))
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe" if "rope_freqs.weight" in self.tensors else "gpt-2")
        writer.add_token_list(list(texts))
        writer.add_token_types(list(kinds))
        writer.add_token_merges([" ".join(pair) for pair in self.tokenizer["model"]["merges"]])
        writer.add_eos_token_id(self.config["eos_token_id"])
        if (bos := self.config["bos_token_id"]) is not None:
            writer.add_bos_token_id(bos)
        writer.add_add_bos_token(bos is not None)


def read(path: Path):
    """Names and values of a safetensors file, as float32."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    for name, info in header.items():
        start, end = (8 + size + offset for offset in info["data_offsets"])
        raw = data[start:end]
        if info["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, "<f4")
        yield name, values.reshape(info["shape"])


def interleaved(rows, heads: int):
    """The rows of heads whose halves turn together, so that neighbours do."""
    n, k = rows.shape
    return rows.reshape(heads, 2, n // heads // 2, k).swapaxes(1, 2).reshape(n, k)


def rope_factors(config: dict) -> dict:
    """What each frequency is divided by, as a file has it: for Llama 3's scaling, or Phi-3's."""
    scaling = config.get("rope_scaling")
    if scaling is None:
        return {}
    if scaling.get("type") == "longrope":
        names = {"rope_factors_short.weight": "short_factor", "rope_factors_long.weight": "long_factor"}
        return {ours: np.array(scaling[theirs], np.float32) for ours, theirs in names.items()}
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    dim = config["head_dim"]
    frequencies = config["rope_theta"] ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    turns = original * frequencies / (2 * np.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)}


def head_dim(config: dict) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def frequencies(config: dict):
    """How fast each pair of a head's elements turns, and how much all of them grow, as the papers have it."""
    dim = head_dim(config)
    turns = config["rope_theta"] ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    if not (scaling := config.get("rope_scaling")):
        return turns, 1.0
    context, original = config["max_position_embeddings"], config["original_max_position_embeddings"]
    if context <= original:
        return turns / np.array(scaling["short_factor"]), 1.0
    growth = np.sqrt(1 + np.log(context / original) / np.log(original))
    return turns / np.array(scaling["long_factor"]), float(growth)


def reference(config: dict, source: Path):
    """The logits after the last 8 tokens of a checkpoint's prompt, in float64 from its own tensors."""
    prompt = json.loads((source / "case.json").read_text())["prompt_ids"]
    tensors = {name: values.astype(np.float64) for name, values in read(source / "model.safetensors")}
    heads, shared, dim = config["num_attention_heads"], config["num_key_value_heads"], head_dim(config)
    turns, growth = frequencies(config)
    angles = np.outer(np.arange(len(prompt)), np.concatenate([turns, turns]))
    cos, sin = growth * np.cos(angles), growth * np.sin(angles)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * tensors[f"{name}.weight"]

    def turned(x):
        return x * cos + np.concatenate([-x[..., dim // 2 :], x[..., : dim // 2]], -1) * sin

    def projected(x, layer, names, fused, sizes):
        if (weight := tensors.get(f"{layer}.{fused}.weight")) is not None:
            return np.split(x @ weight.T, np.cumsum(sizes)[:-1], -1)
        return [x @ tensors[f"{layer}.{name}.weight"].T for name in names]

    x = tensors["model.embed_tokens.weight"][prompt]
    hidden = np.triu(np.full((len(prompt), len(prompt)), -np.inf), 1)
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        names, sizes = [f"self_attn.{name}_proj" for name in "qkv"], [heads * dim, shared * dim, shared * dim]
        parts = projected(norm(x, f"{layer}.input_layernorm"), layer, names, "self_attn.qkv_proj", sizes)
        q, k, v = (part.reshape(len(prompt), -1, dim).swapaxes(0, 1) for part in parts)
        if config.get("no_rope_layers", [1] * (number + 1))[number]:
            q, k = turned(q), turned(k)
        k, v = (np.repeat(part, heads // shared, axis=0) for part in (k, v))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(dim) + hidden
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(prompt), -1)
        x = x + attended @ tensors[f"{layer}.self_attn.o_proj.weight"].T
        inner, names = norm(x, f"{layer}.post_attention_layernorm"), ["mlp.gate_proj", "mlp.up_proj"]
        gate, up = projected(inner, layer, names, "mlp.gate_up_proj", [config["intermediate_size"]] * 2)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ tensors[f"{layer}.mlp.down_proj.weight"].T
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    return (norm(x[-8:], "model.norm") @ head.T).astype(np.float32)


def check_reference(source: Path) -> None:
    """Unchanged, a checkpoint must compute what its golden case says."""
    found = reference(json.loads((source / "config.json").read_text()), source)
    assert np.abs(found - np.load(source / "logits_last8.npy")).max() < 1e-3, source


def with_packages(folder: Path) -> None:
    """Runs this again in an environment that has what it needs, made unless it is there."""
    python = folder / "venv" / "bin" / "python"
    if Path(sys.executable) == python:
        sys.exit("numpy and gguf cannot be had")
    if not python.exists():
        venv.create(folder / "venv", with_pip=True)
        command = [python, "-m", "pip", "install", "--quiet", "numpy", "gguf"]
        subprocess.run([*map(str, command)], check=True)
    os.execv(python, [str(python), *sys.argv])


if __name__ == "__main__":
    try:
        import gguf
        import numpy as np
        from gguf import GGMLQuantizationType as Type
    except ImportError:
        with_packages(Path(sys.argv[2]).resolve())
    main(Path(sys.argv[1]), Path(sys.argv[2]))
