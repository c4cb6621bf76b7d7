"""Makes tests/golden/tokenizer/pre.json and prefix.json: llama.cpp's ids under changed settings.

    pip install llama-cpp-python
    python make_tokenizer_goldens.py SmolLM2-135M-Instruct.Q4_1.gguf gemma-3-270m-q4_k_m.gguf

pre.json has SmolLM2's vocabulary under every kind of `tokenizer.ggml.pre` we read, prefix.json
Gemma 3's with a space before every text, as Llama 2, Mistral and Phi-3 want it. The strings are
those of the SmolLM2 golden file, and some that tell the kinds apart.
"""

import json
import sys
from pathlib import Path

import llama_cpp

GOLDEN = Path(__file__).parent / "tokenizer"

#: One name of each kind. Of "tekken" and "gpt-4o" llama.cpp has its own approximation, which puts
#: combining marks elsewhere than the published patterns, so those are not asked here.
NAMES = [
    "default",
    "gpt-2",
    "smollm",
    "llama-bpe",
    "dbrx",
    "glm4",
    "qwen2",
    "qwen35",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "falcon",
    "seed-coder",
    "minicpm5",
    "bloom",
    "viking",
]

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


def main(bpe: str, sentencepiece: str) -> None:
    golden = json.loads((GOLDEN / "smollm2-135m-instruct-q4_1.json").read_text())
    strings = [case["text"] for case in golden["encode"]] + MORE
    pre = lambda name: ids(bpe, {"tokenizer.ggml.pre": name}, strings, False)
    write("pre", {"strings": strings, "ids": {name: pre(name) for name in NAMES}})
    prefix = {"tokenizer.ggml.add_space_prefix": True}
    write("prefix", {"strings": strings, "ids": ids(sentencepiece, prefix, strings, True)})


def write(name: str, result: dict) -> None:
    (GOLDEN / f"{name}.json").write_text(json.dumps(result, ensure_ascii=False) + "\n")


def ids(model: str, override: dict, strings: list[str], special: bool) -> list[list[int]]:
    llama = llama_cpp.Llama(model, vocab_only=True, verbose=False, kv_overrides=override)
    return [llama.tokenize(text.encode(), add_bos=False, special=special) for text in strings]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
