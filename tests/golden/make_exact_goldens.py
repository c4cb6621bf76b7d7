"""Makes tests/golden/gguf_public/gemma3-270m-q4_k_m/exact.json: what Gemma 3's weights compute in f32.

    pip install gguf llama-cpp-python
    python make_exact_goldens.py gemma-3-270m-q4_k_m.gguf

llama.cpp rounds rows to 8 bits in products with quantised weights. Here it gets the weights as the
gguf package dequantises them, in F32, and rounds nothing but GELU, which it looks up in f16.
"""

import json
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

FOLDER = Path(__file__).parent / "gguf_public" / "gemma3-270m-q4_k_m"

BEST = 20


def main(model: Path) -> None:
    cases = json.loads((FOLDER / "cases.json").read_text())["cases"]
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.gguf"
        dequantise(model, plain)
        exact = {case["name"]: oracle(plain, case["ids"]) for case in cases}
    (FOLDER / "exact.json").write_text(json.dumps(exact, indent=1) + "\n")


def dequantise(model: Path, plain: Path) -> None:
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(plain, "gemma3")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values.reshape(tensor.shape[::-1].tolist()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def oracle(model: Path, ids: list[int]) -> dict:
    options = {"n_ctx": 1024, "n_threads": 2, "verbose": False, "flash_attn": False}
    f32 = llama_cpp.GGML_TYPE_F32
    llama = llama_cpp.Llama(str(model), type_k=f32, type_v=f32, **options)
    llama.eval(ids)
    logits = np.array(llama._ctx.get_logits_ith(-1)[: llama.n_vocab()], np.float64)
    best = np.argsort(-logits)[:BEST]
    largest = logits.max()
    return {
        "top20_ids": best.tolist(),
        "top20_logits": logits[best].round(5).tolist(),
        "logsumexp": round(float(largest + np.log(np.exp(logits - largest).sum())), 5),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
