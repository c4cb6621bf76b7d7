"""Makes tests/golden/gguf: small GGUF files of every weight type, and what they should compute.

    pip install numpy gguf llama-cpp-python
    python make_gguf_goldens.py GOLDEN OUT

GOLDEN is the folder of golden files (it holds hf/llama and hf/llama3rope), OUT the folder to write.

The models are those of hf/llama and hf/llama3rope, written as GGUF: Q and K rows permuted for
interleaved rotary pairs, norms in F32. Most 32-element types and BF16 come from the gguf
package's quantiser, the K-quants and the IQ types from llama.cpp's `llama_model_quantize` ("pure":
every matrix of one type).

The oracle is a float32 numpy forward over the weights as the gguf package dequantises them. It
first proves itself: on F32 files it must give the logits that mlx-lm and transformers gave for the
Hugging Face checkpoint.
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

#: file stem: (model, weight type)
PLAIN = {
    "llama3rope-BF16": ("llama3rope", Type.BF16),
    "llama3rope-Q4_1": ("llama3rope", Type.Q4_1),
    "llama3rope-Q5_0": ("llama3rope", Type.Q5_0),
    "llama3rope-Q5_1": ("llama3rope", Type.Q5_1),
}

#: file stem: (model, llama.cpp's file type, weight type)
QUANTS = {
    "llama-Q2_K": ("llama", "LLAMA_FTYPE_MOSTLY_Q2_K", Type.Q2_K),
    "llama-Q3_K": ("llama", "LLAMA_FTYPE_MOSTLY_Q3_K_S", Type.Q3_K),
    "llama-Q5_K": ("llama", "LLAMA_FTYPE_MOSTLY_Q5_K_S", Type.Q5_K),
    "llama-Q6_K": ("llama", "LLAMA_FTYPE_MOSTLY_Q6_K", Type.Q6_K),
    "llama3rope-IQ4_NL": ("llama3rope", "LLAMA_FTYPE_MOSTLY_IQ4_NL", Type.IQ4_NL),
    "llama-IQ4_XS": ("llama", "LLAMA_FTYPE_MOSTLY_IQ4_XS", Type.IQ4_XS),
}

#: Files with one layer only, so that they are small.
ONE_LAYER = {"llama3rope-BF16", "llama-Q2_K", "llama-Q3_K", "llama3rope-IQ4_NL", "llama-IQ4_XS"}

LAST = 8
GREEDY = 48


def main(golden: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    cases = {}
    for stem, (model, kind) in PLAIN.items():
        write_gguf(golden / "hf" / model, out / f"{stem}.gguf", kind, layers(stem))
        cases[stem] = case(golden / "hf" / model, out, stem)
    for stem, (model, file_type, kind) in QUANTS.items():
        quantize(golden / "hf" / model, out / f"{stem}.gguf", file_type, kind, layers(stem))
        cases[stem] = case(golden / "hf" / model, out, stem)
    (out / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


def layers(stem: str) -> int | None:
    return 1 if stem in ONE_LAYER else None


# --- the checkpoint ---------------------------------------------------------------------------


def safetensors(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        start, end = (8 + size + offset for offset in info["data_offsets"])
        raw = data[start:end]
        if info["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, "<f4")
        tensors[name] = values.reshape(info["shape"])
    return tensors


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Half-split rotary pairs to interleaved ones."""
    n, k = rows.shape
    return rows.reshape(heads, 2, n // heads // 2, k).swapaxes(1, 2).reshape(n, k)


def rope_factors(config: dict) -> np.ndarray | None:
    """Llama 3's scaling, as what each frequency is divided by."""
    scaling = config.get("rope_scaling")
    if scaling is None:
        return None
    dim = config["head_dim"]
    frequencies = config["rope_theta"] ** -(np.arange(0, dim, 2, dtype=np.float32) / dim)
    low = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
    high = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
    factors = []
    for wavelength in 2 * math.pi / frequencies:
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(scaling["factor"])
        else:
            smooth = (
                scaling["original_max_position_embeddings"] / wavelength
                - scaling["low_freq_factor"]
            ) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


# --- GGUF -------------------------------------------------------------------------------------


def write_gguf(model: Path, path: Path, kind: Type, layers: int | None = None) -> None:
    config = json.loads((model / "config.json").read_text())
    layers = layers or config["num_hidden_layers"]
    writer = gguf.GGUFWriter(path, "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    write_tokenizer(writer, model, config)
    for name, values in safetensors(model / "model.safetensors").items():
        name, values = renamed(name, values, heads, kv_heads)
        if name.startswith("blk.") and int(name.split(".")[1]) >= layers:
            continue
        plain = kind if values.ndim == 2 else Type.F32
        writer.add_tensor(name, gguf.quants.quantize(values, plain), raw_dtype=plain)
    factors = rope_factors(config)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def renamed(name: str, values: np.ndarray, heads: int, kv_heads: int) -> tuple[str, np.ndarray]:
    parts = name.split(".")
    outer = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    inner = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "q_proj": "attn_q",
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "o_proj": "attn_output",
        "gate_proj": "ffn_gate",
        "up_proj": "ffn_up",
        "down_proj": "ffn_down",
    }
    if parts[-2] in outer:
        return f"{outer[parts[-2]]}.weight", values
    if parts[-2] == "q_proj":
        values = permute(values, heads)
    if parts[-2] == "k_proj":
        values = permute(values, kv_heads)
    return f"blk.{parts[2]}.{inner[parts[-2]]}.weight", values


def write_tokenizer(writer: gguf.GGUFWriter, model: Path, config: dict) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokens = {id: (text, gguf.TokenType.NORMAL) for text, id in tokenizer["model"]["vocab"].items()}
    for token in tokenizer["added_tokens"]:
        tokens[token["id"]] = (token["content"], gguf.TokenType.CONTROL)
    texts, kinds = zip(*(tokens[id] for id in range(len(tokens))))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe" if config["rope_scaling"] else "gpt-2")
    writer.add_token_list(list(texts))
    writer.add_token_types(list(kinds))
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    if config["bos_token_id"] is not None:
        writer.add_bos_token_id(config["bos_token_id"])
    writer.add_add_bos_token(config["bos_token_id"] is not None)


def quantize(model: Path, path: Path, file_type: str, kind: Type, layers: int | None) -> None:
    import llama_cpp

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "F32.gguf"
        write_gguf(model, source, Type.F32, layers)
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = getattr(llama_cpp, file_type)
        params.pure = True
        params.nthread = 1
        params.token_embedding_type = kind
        params.output_tensor_type = kind
        failed = llama_cpp.llama_model_quantize(bytes(source), bytes(path), params)
        assert failed == 0, f"llama_model_quantize: {failed}"
    for tensor in gguf.GGUFReader(path).tensors:
        expected = kind if len(tensor.shape) == 2 else Type.F32
        assert tensor.tensor_type == expected, (tensor.name, tensor.tensor_type)


# --- the oracle -------------------------------------------------------------------------------


class Oracle:
    """The Llama forward over a GGUF file's dequantised weights."""

    def __init__(self, path: Path):
        reader = gguf.GGUFReader(path)
        self.weights = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            .astype(np.float32)
            .reshape(tuple(reversed(tensor.shape.tolist())))
            for tensor in reader.tensors
        }
        field = lambda key: reader.fields[f"llama.{key}"].contents()
        self.layers, self.width = field("block_count"), field("embedding_length")
        self.heads, self.kv_heads = field("attention.head_count"), field("attention.head_count_kv")
        self.eps = np.float32(field("attention.layer_norm_rms_epsilon"))
        self.base = field("rope.freq_base")
        self.dim = self.width // self.heads

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.eps) * self.weights[name]

    def rotate(self, x: np.ndarray) -> np.ndarray:
        """Interleaved pairs of [T, heads, D]."""
        frequencies = self.base ** -(np.arange(0, self.dim, 2) / self.dim)
        if "rope_freqs.weight" in self.weights:
            frequencies = frequencies / self.weights["rope_freqs.weight"]
        angles = np.arange(len(x))[:, None, None] * frequencies
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.float32(math.sqrt(self.dim))
        scores += np.triu(np.full(scores.shape[1:], -np.inf, np.float32), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)

    def logits(self, ids: list[int]) -> np.ndarray:
        w = self.weights
        x = w["token_embd.weight"][ids]
        for layer in range(self.layers):
            weight = lambda part: w[f"blk.{layer}.{part}.weight"].T
            normed = self.norm(x, f"blk.{layer}.attn_norm.weight")
            heads = lambda part: (normed @ weight(part)).reshape(len(ids), -1, self.dim)
            attended = self.attend(
                self.rotate(heads("attn_q")), self.rotate(heads("attn_k")), heads("attn_v")
            )
            x = x + attended.reshape(len(ids), -1) @ weight("attn_output")
            normed = self.norm(x, f"blk.{layer}.ffn_norm.weight")
            gate = normed @ weight("ffn_gate")
            x = x + (gate / (1 + np.exp(-gate)) * (normed @ weight("ffn_up"))) @ weight("ffn_down")
        head = w.get("output.weight", w["token_embd.weight"])
        return self.norm(x, "output_norm.weight") @ head.T


def case(model: Path, out: Path, stem: str) -> dict:
    prove(model)
    prompt = json.loads((model / "case.json").read_text())["prompt_ids"]
    oracle = Oracle(out / f"{stem}.gguf")
    np.save(out / f"{stem}.logits.npy", oracle.logits(prompt)[-LAST:])
    ids, margins = list(prompt), []
    for _ in range(GREEDY):
        last = oracle.logits(ids)[-1]
        second, first = np.sort(last)[-2:]
        margins.append(round(float(first - second), 5))
        ids.append(int(last.argmax()))
    return {"prompt_ids": prompt, "greedy": ids[len(prompt) :], "margin": margins}


def prove(model: Path) -> None:
    """On unquantised weights the oracle is the reference."""
    prompt = json.loads((model / "case.json").read_text())["prompt_ids"]
    expected = np.load(model / "logits_last8.npy")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "F32.gguf"
        write_gguf(model, path, Type.F32)
        error = np.abs(Oracle(path).logits(prompt)[-LAST:] - expected).max()
    assert error < 1e-4, f"{model.name}: {error}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
