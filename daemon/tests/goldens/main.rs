//! Model files, tokenizers and whole models against reference results.
//!
//! Small golden files lie in `tests/golden`; `TINYGPT_GOLDEN` names the folder of the full set.
//! Real models are found through `TINYGPT_REAL_MODEL` or in `target/models`; what
//! `tests/make-gguf-cases.py` makes, through `TINYGPT_GGUF_CASES` or in `target/gguf-cases`.

#![expect(clippy::unwrap_used, reason = "tests")]

mod builtin;
mod files;
mod gguf;
mod hf;
mod mlx;
mod real;
mod runner;
mod tinygpt;
mod tokenizer;
mod tokenizer_json;
mod weights;
