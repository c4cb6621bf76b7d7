//! Model files, tokenizers and whole models against reference results.
//!
//! Small golden files lie in `tests/golden`; `TINYGPT_GOLDEN` names the folder of the full set.
//! The one real model is found through `TINYGPT_REAL_MODEL` or in `target/models`.

#![expect(clippy::unwrap_used, reason = "tests")]

mod builtin;
mod files;
mod gguf;
mod runner;
mod smollm2;
mod tinygpt;
mod tokenizer;
mod weights;
