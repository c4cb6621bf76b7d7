//! A `tokenizer.json` for directories that have none, from the files that older libraries write:
//! `tokenizer.model` of SentencePiece, or `vocab.json` with `merges.txt`.
//!
//! What is written here is what Hugging Face's library makes of those files, so ids are its ids,
//! and everything behind it reads one format.

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::config::Config;
use super::directory::{ADDED, Directory, MERGES, MODEL, TOKENIZER, TOKENIZER_CONFIG, VOCAB};
use super::pieces::{BYTE, CONTROL, Pieces, UNKNOWN, USER_DEFINED};
use crate::model::load::LoadError;

/// How pieces write a space.
const SPACE: &str = "\u{2581}";

/// How words are cut where the library's own way is not the family's.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Keys of tokens that are never cut.
const NAMED: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

/// A file of the library.
#[derive(Serialize)]
struct Tokenizer<'a> {
    added_tokens: Vec<Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model<'a>,
}

/// A byte-pair model. Its type comes first, and its tokens before its merges.
#[derive(Serialize)]
struct Model<'a> {
    r#type: &'static str,
    unk_token: Option<&'a str>,
    fuse_unk: bool,
    byte_fallback: bool,
    #[serde(serialize_with = "by_text")]
    vocab: Vec<(&'a str, u64)>,
    merges: Vec<(&'a str, &'a str)>,
}

fn by_text<S: Serializer>(vocab: &[(&str, u64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(vocab.iter().copied())
}

impl Directory {
    /// What stands in for a `tokenizer.json`.
    pub(super) fn stand_in(&self, config: &Config) -> Result<Vec<u8>, LoadError> {
        if let Some(bytes) = self.text(MODEL)? {
            let pieces = Pieces::read(&bytes).map_err(|error| error.within(MODEL))?;
            return self.of_pieces(&pieces);
        }
        match (self.json(VOCAB)?, self.text(MERGES)?) {
            (Some(vocab), Some(merges)) => self.of_words(config, &vocab, &merges),
            _ => Err(LoadError::Absent { file: TOKENIZER.into() }),
        }
    }

    fn of_pieces(&self, Pieces { pieces, prefix, bos }: &Pieces) -> Result<Vec<u8>, LoadError> {
        let ids = (0..).zip(pieces);
        let special = ids.clone().filter(|(_, piece)| [UNKNOWN, CONTROL].contains(&piece.kind));
        let own = ids.clone().filter(|(_, piece)| piece.kind == USER_DEFINED);
        let named = special.map(|(id, piece)| added(id, &piece.text, true));
        let named = named.chain(own.map(|(id, piece)| added(id, &piece.text, false)));
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let front = prefix.then(|| json!({"type": "Prepend", "prepend": SPACE}));
        let normalisers: Vec<_> = front.into_iter().chain([replace(" ", SPACE)]).collect();
        let decoders =
            [replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        let unknown = pieces.iter().find(|piece| piece.kind == UNKNOWN);
        let begins = usize::try_from(*bos).ok().and_then(|bos| pieces.get(bos));
        written(&Tokenizer {
            added_tokens: self.all_added(named.collect())?,
            normalizer: json!({"type": "Sequence", "normalizers": normalisers}),
            pre_tokenizer: Value::Null,
            post_processor: begins.map_or(Value::Null, |piece| in_front(*bos, &piece.text)),
            decoder: json!({"type": "Sequence", "decoders": decoders}),
            model: Model {
                r#type: "BPE",
                unk_token: unknown.map(|piece| &*piece.text),
                fuse_unk: true,
                byte_fallback: pieces.iter().any(|piece| piece.kind == BYTE),
                vocab: ids.map(|(id, piece)| (&*piece.text, id)).collect(),
                merges: merges(pieces),
            },
        })
    }

    fn of_words(
        &self,
        config: &Config,
        vocab: &Value,
        merges: &[u8],
    ) -> Result<Vec<u8>, LoadError> {
        let settings = self.json(TOKENIZER_CONFIG)?.unwrap_or_default();
        let vocab = ids(vocab).map_err(|error| error.within(VOCAB))?;
        let text = str::from_utf8(merges);
        let not_text = |_| LoadError::NotUtf8 { what: "it".into() }.within(MERGES);
        let lines = text.map_err(not_text)?.lines();
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("#version"));
        let merges = lines.map(pair).collect::<Result<Vec<_>, _>>()?;
        let named = NAMED.iter().filter_map(|key| named(&settings, key));
        let id = |text: &&str| vocab.iter().find(|(token, _)| token == text);
        let named = named.chain(["<|endoftext|>"]);
        let named = named.filter_map(|text| id(&text)).map(|(text, id)| added(*id, text, true));
        let (normalizer, pre_tokenizer) = cut(config, &settings)?;
        written(&Tokenizer {
            added_tokens: self.all_added(named.collect())?,
            normalizer,
            pre_tokenizer,
            post_processor: Value::Null,
            decoder: byte_level(true),
            model: Model {
                r#type: "BPE",
                unk_token: None,
                fuse_unk: false,
                byte_fallback: false,
                vocab,
                merges,
            },
        })
    }

    /// These tokens, and those that other files add; each once, in the order of their ids.
    fn all_added(&self, named: Vec<Value>) -> Result<Vec<Value>, LoadError> {
        let settings = self.json(TOKENIZER_CONFIG)?.unwrap_or_default();
        let decoder = settings.get("added_tokens_decoder").and_then(Value::as_object);
        let described = decoder.into_iter().flatten().filter_map(|(id, token)| {
            let mut token = token.as_object()?.clone();
            token.insert("id".into(), id.parse::<u64>().ok()?.into());
            Some(Value::Object(token))
        });
        let listed = self.json(ADDED)?.unwrap_or_default();
        let listed = listed.as_object().into_iter().flatten();
        let listed = listed.filter_map(|(text, id)| Some(added(id.as_u64()?, text, true)));
        let mut tokens: Vec<Value> = described.chain(listed).chain(named).collect();
        let id = |token: &Value| token.get("id").and_then(Value::as_u64);
        tokens.sort_by_key(id);
        tokens.dedup_by_key(|token| id(token));
        Ok(tokens)
    }
}

fn written(tokenizer: &Tokenizer<'_>) -> Result<Vec<u8>, LoadError> {
    serde_json::to_vec(tokenizer).map_err(|error| LoadError::Json { reason: error.to_string() })
}

/// A token that is found before anything is cut.
fn added(id: u64, text: &str, special: bool) -> Value {
    json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special})
}

/// Puts a token in front of a text.
fn in_front(id: u64, text: &str) -> Value {
    let sequence = |of: &str, kind: u32| json!({"Sequence": {"id": of, "type_id": kind}});
    let token = json!({"SpecialToken": {"id": text, "type_id": 0}});
    let mut tokens = Map::new();
    tokens.insert(text.into(), json!({"id": text, "ids": [id], "tokens": [text]}));
    json!({"type": "TemplateProcessing", "single": [token, sequence("A", 0)],
        "pair": [sequence("A", 0), sequence("B", 1)], "special_tokens": tokens})
}

/// Every way to make a piece of two others, those of the best pieces first.
fn merges(pieces: &[super::pieces::Piece]) -> Vec<(&str, &str)> {
    let ids: HashMap<&str, usize> =
        pieces.iter().enumerate().map(|(id, piece)| (&*piece.text, id)).collect();
    let mut found = Vec::new();
    for piece in pieces {
        let cuts = piece.text.char_indices().skip(1).map(|(at, _)| piece.text.split_at(at));
        let known = |(left, right): (&'_ str, &'_ str)| Some((*ids.get(left)?, *ids.get(right)?));
        let start = found.len();
        found.extend(cuts.filter_map(|cut| Some((piece.score, known(cut)?))));
        found[start..].sort_unstable_by_key(|(_, pair)| *pair);
    }
    let length = |id: usize| pieces[id].text.chars().count();
    found.sort_by(|(a, one), (b, other)| {
        let lengths = |pair: &(usize, usize)| (length(pair.0), length(pair.1));
        b.total_cmp(a).then_with(|| lengths(other).cmp(&lengths(one)))
    });
    found
        .into_iter()
        .map(|(_, (left, right))| (&*pieces[left].text, &*pieces[right].text))
        .collect()
}

/// Tokens in the order of their ids.
fn ids(vocab: &Value) -> Result<Vec<(&str, u64)>, LoadError> {
    let wrong = |found: String| LoadError::WrongKind {
        key: "vocabulary".into(),
        expected: "tokens with ids",
        found,
    };
    let tokens = vocab.as_object().ok_or_else(|| wrong("no object".into()))?;
    let id = |(text, id): (&'_ String, &Value)| {
        id.as_u64().ok_or_else(|| wrong(format!("{text}: {id}")))
    };
    let tokens = tokens.iter().map(|token| Ok((&**token.0, id(token)?)));
    let mut tokens = tokens.collect::<Result<Vec<_>, LoadError>>()?;
    tokens.sort_unstable_by_key(|(_, id)| *id);
    Ok(tokens)
}

/// The two tokens of a line.
fn pair(line: &str) -> Result<(&str, &str), LoadError> {
    line.split_once(' ').ok_or_else(|| {
        let (what, found) = ("a line".into(), format!("{line:?}"));
        LoadError::OutOfRange { what, found, expected: "two tokens".into() }.within(MERGES)
    })
}

/// The text of a token by its key.
fn named<'a>(settings: &'a Value, key: &str) -> Option<&'a str> {
    let token = settings.get(key)?;
    token.get("content").unwrap_or(token).as_str()
}

/// Characters for bytes, and whether words are cut as GPT-2 does.
fn byte_level(regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": regex})
}

/// How a text is changed and cut into words, by who wrote the files: they do not say.
fn cut(config: &Config, settings: &Value) -> Result<(Value, Value), LoadError> {
    const KEY: &str = "tokenizer_class";
    let class = settings.get(KEY).and_then(Value::as_str);
    let family = config.text("model_type")?;
    match (class, family) {
        (Some("GPT2Tokenizer" | "GPT2TokenizerFast"), _) | (None, Some("gpt2")) => {
            Ok((Value::Null, byte_level(true)))
        }
        (Some("Qwen2Tokenizer" | "Qwen2TokenizerFast"), _) | (None, Some("qwen2" | "qwen3")) => {
            let split = json!({"type": "Split", "pattern": {"Regex": QWEN2},
                "behavior": "Isolated", "invert": false});
            let both = json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]});
            Ok((json!({"type": "NFC"}), both))
        }
        (found, _) => {
            let found = found.map_or("no name".into(), |class| format!("\"{class}\""));
            let detail = format!("{found} with {VOCAB}; GPT2Tokenizer and Qwen2Tokenizer are");
            let error = LoadError::Unsupported { what: format!("key \"{KEY}\""), detail };
            Err(error.within(TOKENIZER_CONFIG))
        }
    }
}
