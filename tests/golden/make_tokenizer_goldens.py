"""Makes tests/golden/tokenizer/pre.json: llama.cpp's ids under every `tokenizer.ggml.pre` we read.

    pip install llama-cpp-python
    python make_tokenizer_goldens.py SmolLM2-135M-Instruct.Q4_1.gguf

The vocabulary and merges are SmolLM2's; only the name of the pre-tokeniser is overridden. The
strings are those of the SmolLM2 golden file, and some that tell the pre-tokenisers apart.
"""

import json
import sys
from pathlib import Path

import llama_cpp

GOLDEN = Path(__file__).parent / "tokenizer"

NAMES = ["gpt-2", "smollm", "llama-bpe", "llama3", "llama-v3", "default"]

MORE = [
    "x=1+2<3>4^5|6~7$8",
    "a1b22c333d4444",
    "12345 67890",
    "«quoted» — dash… (paren) [brackets]{}",
    "don't DON'T I'LL you'Re",
    "  \n \t x  \n\n  y ",
    "e\u0301 ½ ² ٣٤ Ⅷ",
    "foo_bar.baz(qux);  // ok!!!",
]


def main(model: str) -> None:
    golden = json.loads((GOLDEN / "smollm2-135m-instruct-q4_1.json").read_text())
    strings = [case["text"] for case in golden["encode"]] + MORE
    result = {"strings": strings, "ids": {name: ids(model, name, strings) for name in NAMES}}
    (GOLDEN / "pre.json").write_text(json.dumps(result, ensure_ascii=False) + "\n")


def ids(model: str, name: str, strings: list[str]) -> list[list[int]]:
    override = {"tokenizer.ggml.pre": name}
    llama = llama_cpp.Llama(model, vocab_only=True, verbose=False, kv_overrides=override)
    return [llama.tokenize(text.encode(), add_bos=False, special=False) for text in strings]


if __name__ == "__main__":
    main(sys.argv[1])
