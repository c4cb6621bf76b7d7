//! Tokenizers of every kind, and any text. The first byte chooses the kind; behind it come the text,
//! the tokens and the merges.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tinygpt_fuzz::{SEPARATOR, check_text};
use tinygptd::model::load::{GgufVocabulary, HfVocabulary, Vocabulary};
use tinygptd::text::Tokenizer;

/// More than the seeds have, so that ids of added tokens are inside, too.
const VOCAB: usize = 64;

/// Ways of cutting, one for each shape of pattern.
const PRE: [&str; 8] =
    ["gpt-2", "smollm", "llama-bpe", "tekken", "deepseek-llm", "deepseek-v3", "bloom", "default"];

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let mut parts = bytes.splitn(3, |byte| *byte == SEPARATOR).map(String::from_utf8_lossy);
    let [text, tokens, merges] = std::array::from_fn(|_| parts.next().unwrap_or_default());
    let vocabulary = match choice % 3 {
        0 => hugging_face(&tokens),
        1 => Vocabulary::Gguf(GgufVocabulary { model: "gpt2".into(), ..gguf(choice, &tokens, &merges) }),
        _ => Vocabulary::Gguf(GgufVocabulary { model: "llama".into(), ..gguf(choice, &tokens, "") }),
    };
    if let Ok(tokenizer) = Tokenizer::new(&vocabulary) {
        check_text(tokenizer, &text);
    }
});

fn hugging_face(json: &str) -> Vocabulary {
    let json = json.as_bytes().into();
    Vocabulary::HuggingFace(HfVocabulary { json, vocab: VOCAB, ..HfVocabulary::default() })
}

/// A token and a merge a line. A token's first character is its type and its score.
fn gguf(choice: u8, tokens: &str, merges: &str) -> GgufVocabulary {
    let lines = tokens.lines().filter_map(|line| {
        let kind = line.chars().next()?;
        Some((kind, line[kind.len_utf8()..].to_owned()))
    });
    let (kinds, tokens): (Vec<char>, Vec<String>) = lines.unzip();
    GgufVocabulary {
        pre: Some(PRE[usize::from(choice / 3) % PRE.len()].into()),
        unknown: (choice >= 128 && !tokens.is_empty()).then_some(0),
        add_space_prefix: Some(choice.is_multiple_of(2)),
        token_types: kinds.iter().map(|&kind| kind as i32 % 7).collect(),
        scores: kinds.iter().map(|&kind| -(kind as u32 as f32)).collect(),
        merges: merges.lines().map(String::from).collect(),
        tokens,
        ..GgufVocabulary::default()
    }
}
