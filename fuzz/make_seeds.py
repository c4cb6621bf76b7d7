#!/usr/bin/env python3
"""Writes the seeds of the fuzzers, small and whole: fuzz/seeds/TARGET/.

Those of `store` are heads of what a daemon wrote: fuzz/make_seeds.py [CACHE_DIRECTORY].
"""

import json
import math
import struct
import sys
from pathlib import Path

SEEDS = Path(__file__).resolve().parent / "seeds"
PAGE = 16384


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(given) -> bytes:
    match given:
        case int():
            return struct.pack("<II", 4, given)
        case float():
            return struct.pack("<If", 6, given)
        case str():
            return struct.pack("<I", 8) + text(given)
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(given)}i", 9, 5, len(given), *given)
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(given)}f", 9, 6, len(given), *given)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(given)) + b"".join(map(text, given))


def gguf(keys: dict, tensors: dict[str, list[int]]) -> bytes:
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, given in keys.items():
        out += text(key) + value(given)
    offset, data = 0, b""
    for name, dims in tensors.items():
        out += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, offset)
        size = 4
        for dim in dims:
            size *= dim
        offset += size
        data += bytes(size)
    return out + bytes(-len(out) % 32) + data


def blocks() -> dict[str, list[int]]:
    tensors = {"token_embd": [32, 6], "output_norm": [32]}
    tensors |= {f"blk.0.{name}": dims for name, dims in {
        "attn_norm": [32], "attn_q": [32, 32], "attn_k": [32, 16], "attn_v": [32, 16],
        "attn_output": [32, 32], "ffn_norm": [32], "ffn_gate": [32, 32], "ffn_up": [32, 32],
        "ffn_down": [32, 32]}.items()}
    return {f"{name}.weight": dims for name, dims in tensors.items()}


def model(architecture: str, tokenizer: dict, more: dict = {}, tensors=blocks()) -> bytes:
    keys = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32,
            "attention.head_count": 4, "attention.head_count_kv": 2,
            "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": 6} | more
    keys = {f"{architecture}.{key}": given for key, given in keys.items()}
    keys |= {f"tokenizer.ggml.{key}": given for key, given in tokenizer.items()}
    return gguf({"general.architecture": architecture} | keys, tensors)


def gemma(tokenizer: dict) -> bytes:
    norms = {"attn_q_norm": 8, "attn_k_norm": 8, "post_attention_norm": 32, "post_ffw_norm": 32}
    tensors = blocks() | {f"blk.0.{name}.weight": [width] for name, width in norms.items()}
    window = {"attention.sliding_window": 16, "attention.sliding_window_pattern": 2}
    return model("gemma3", tokenizer, window, tensors)


def phi(tokenizer: dict) -> bytes:
    parts = ("attn_q.", "attn_k.", "attn_v.", "ffn_gate.", "ffn_up.")
    tensors = {name: dims for name, dims in blocks().items() if not any(part in name for part in parts)}
    tensors |= {"blk.0.attn_qkv.weight": [32, 64], "blk.0.ffn_up.weight": [32, 64]}
    return model("phi3", tokenizer, {"attention.sliding_window": 16}, tensors)


def tinygpt() -> bytes:
    width, context, mlp = 8, 4, 16
    shapes = {"token_embedding.weight": [256, width], "position_embedding.weight": [context, width],
              "ln_final.weight": [width], "ln_final.bias": [width]}
    for half in ("ln1", "ln2"):
        shapes |= {f"blocks.0.{half}.weight": [width], f"blocks.0.{half}.bias": [width]}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        shapes |= {f"blocks.0.attn.{name}.weight": [width, width], f"blocks.0.attn.{name}.bias": [width]}
    shapes |= {"blocks.0.mlp.fc_in.weight": [mlp, width], "blocks.0.mlp.fc_in.bias": [mlp],
               "blocks.0.mlp.fc_out.weight": [width, mlp], "blocks.0.mlp.fc_out.bias": [width]}
    manifest, offset = [], 0
    for name, shape in shapes.items():
        manifest.append({"name": name, "shape": shape, "floatOffset": offset})
        offset += shape[0] * (shape[1] if len(shape) > 1 else 1)
    head = json.dumps({
        "config": {"layers": 1, "dModel": width, "ctx": context, "heads": 2, "dMlp": mlp},
        "manifest": manifest, "includesOptimizerState": False, "weightDtype": "fp16",
    }).encode()
    return b"TGPT" + struct.pack("<II", 2, len(head)) + head + bytes(4 + 2 * offset)


def lora() -> bytes:
    head = json.dumps({"rank": 1, "alpha": 2, "baseDModel": 192, "entries": [
        {"name": "blocks.0.attn.q_proj", "loraAShape": [192, 1], "loraBShape": [1, 192]}]}).encode()
    return b"TGLA" + struct.pack("<II", 1, len(head)) + head + bytes(2 * 4 * 192)


def peft() -> bytes:
    config = json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_modules": ["q_proj"],
                         "rank_pattern": {"k_proj": 2}, "use_rslora": True, "bias": "none"}).encode()
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = json.dumps({
        f"{name}.lora_A.weight": {"dtype": "F32", "shape": [1, 192], "data_offsets": [0, 768]},
        f"{name}.lora_B.weight": {"dtype": "BF16", "shape": [192, 1], "data_offsets": [768, 1152]},
    }).encode()
    return struct.pack("<H", len(config)) + config + struct.pack("<Q", len(tensors)) + tensors + bytes(1152)


TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": 7, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": True,
                      "normalized": False, "special": True}],
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\d+(?!x)"}, "behavior": "Isolated", "invert": False},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
              "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "\u2581": 4, "\u2581ab": 5, "<0x0A>": 6},
              "merges": [["a", "b"], ["\u2581", "ab"]]},
}
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTE_LEVEL = {
    "version": "1.0", "added_tokens": [], "normalizer": {"type": "NFC"},
    "pre_tokenizer": LEVEL, "post_processor": LEVEL, "decoder": LEVEL,
    "model": {"type": "BPE", "ignore_merges": True, "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u010a": 4},
              "merges": ["a b"]},
}


def compact(value) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def safetensors(tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    sizes = {"BF16": 2, "F32": 4, "U32": 4}
    head, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin = end
        end += sizes[dtype] * math.prod(shape)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    head = compact(head)
    return struct.pack("<Q", len(head)) + head + bytes(end)


def layer(width: int, norms=(), head_norms=0, fused=False) -> dict[str, list[int]]:
    shapes = {name: [width] for name in ("input_layernorm", "post_attention_layernorm", *norms)}
    shapes |= {f"self_attn.{name}_norm": [head_norms] for name in "qk" if head_norms}
    if fused:
        shapes |= {"self_attn.qkv_proj": [3 * width, width], "mlp.gate_up_proj": [2 * width, width]}
    else:
        shapes |= {f"self_attn.{name}_proj": [width, width] for name in "qkv"}
        shapes |= {f"mlp.{name}_proj": [width, width] for name in ("gate", "up")}
    shapes |= {"self_attn.o_proj": [width, width], "mlp.down_proj": [width, width]}
    return {f"model.layers.0.{name}.weight": shape for name, shape in shapes.items()}


def directory(kind: str, more: dict = {}, tokenizer=TOKENIZER, width=8, quantised=False, **parts) -> bytes:
    config = {"model_type": kind, "vocab_size": 8, "hidden_size": width, "intermediate_size": width,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
              "max_position_embeddings": 32, "tie_word_embeddings": True} | more
    tensors = {"model.embed_tokens.weight": [8, width], "model.norm.weight": [width]} | layer(width, **parts)
    stored = {}
    for name, shape in tensors.items():
        if quantised and len(shape) == 2:
            stored[name] = ("U32", [shape[0], shape[1] // 8])
            for part in ("scales", "biases"):
                stored[name.replace("weight", part)] = ("BF16", [shape[0], shape[1] // 32])
        else:
            stored[name] = ("BF16", shape)
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": {"content": "<s>"},
                "added_tokens_decoder": {"7": {"content": "<s>"}}}
    settings = settings if tokenizer is TOKENIZER else {}
    return b"\x1e".join([compact(config), compact(tokenizer), compact(settings), safetensors(stored)])


def texts(choice: int, text: str, tokens: bytes, merges: bytes = b"") -> bytes:
    return bytes([choice]) + b"\x1e".join([text.encode(), tokens, merges])


def frames() -> bytes:
    """A request whose authority is an encoded path: settings, headers, data."""
    field = b"run%2Fx%2Ft.sock"
    block = b"\x83\x86\x44\x01/" + b"\x41" + bytes([len(field)]) + field
    frame = lambda kind, flags, body: struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", kind and 1) + body
    settings = struct.pack(">I", 0)[1:] + bytes([4, 0, 0, 0, 0, 0])
    return b"\x07" + settings + frame(1, 4, block) + frame(0, 1, b"\0\0\0\0\0")


def write(target: str, name: str, seed: bytes) -> None:
    (SEEDS / target).mkdir(parents=True, exist_ok=True)
    (SEEDS / target / name).write_bytes(seed)


def heads(cache: Path) -> None:
    kinds = {"tgkv": ("segment", PAGE), "tgrec": ("record", 1024), "tgfp": ("digests", 4096)}
    for kind, (end, (name, most)) in enumerate(kinds.items()):
        for number, path in enumerate(sorted(cache.rglob(f"*.{end}"))[:2]):
            head = path.read_bytes()[:most]
            # Zeros fill a segment's head up to its data.
            head = head.rstrip(b"\0") if most == PAGE else head
            write("store", f"{name}-{number}", bytes([kind]) + head)


if __name__ == "__main__":
    bpe = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab", "\u0120", "<s>", "</s>"],
           "token_type": [1, 1, 1, 1, 3, 3], "merges": ["a b"], "bos_token_id": 4, "eos_token_id": 5}
    pieces = {"model": "llama", "tokens": ["<unk>", "<s>", "</s>", "<0x41>", "\u2581a", "a"],
              "scores": [0.0, 0.0, 0.0, 0.0, -1.0, -2.0], "token_type": [2, 3, 3, 6, 1, 1],
              "bos_token_id": 1, "eos_token_id": 2}
    write("model", "bpe.gguf", model("llama", bpe))
    write("model", "sentencepiece.gguf", model("llama", pieces))
    write("model", "gemma3.gguf", gemma(pieces))
    write("model", "phi3.gguf", phi(pieces))
    write("model", "fp16.tinygpt", tinygpt())
    write("adapter", "tiny.lora", lora())
    write("adapter", "peft", peft())
    longrope = {"type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 3.0]}
    write("directory", "llama", directory("llama", {"rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}}))
    write("directory", "mlx", directory("llama", {"quantization": {"bits": 4, "group_size": 32}}, width=32, quantised=True))
    write("directory", "qwen3", directory("qwen3", {"head_dim": 4}, BYTE_LEVEL, head_norms=4))
    write("directory", "phi3", directory("phi3", {"original_max_position_embeddings": 16, "rope_scaling": longrope}, fused=True))
    write("directory", "gemma3", directory("gemma3_text", {
        "head_dim": 4, "query_pre_attn_scalar": 4, "sliding_window": 8, "sliding_window_pattern": 2,
        "hidden_activation": "gelu_pytorch_tanh"}, head_norms=4,
        norms=("pre_feedforward_layernorm", "post_feedforward_layernorm")))
    write("safetensors", "tensors", safetensors({"a": ("BF16", [2, 3]), "b": ("F32", []), "c": ("U32", [0, 4])}))
    write("tokenizer", "pieces.json", texts(0, " ab12x\nab<s> c", compact(TOKENIZER)))
    write("tokenizer", "bytes.json", texts(0, "ab ab\n\u00e9", compact(BYTE_LEVEL)))
    write("tokenizer", "bpe", texts(1, "ab<s> a12", "\n".join(["1a", "1b", "1ab", "1\u0120", "3<s>", "11", "12"]).encode(), b"a b"))
    write("tokenizer", "scores", texts(128 + 3, "ab<s> \u2581a\u00e9", "\n".join(
        ["2<unk>", "3<s>", "6<0xC3>", "6<0xA9>", "1a", "!b", "#ab", "(\u2581ab"]).encode()))
    write("authority", "request", frames())
    if len(sys.argv) > 1:
        heads(Path(sys.argv[1]))
