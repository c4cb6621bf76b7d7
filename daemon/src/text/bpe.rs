//! Byte-pair encoding over the vocabulary in a GGUF file (`tokenizer.ggml.model` = `gpt2`).
//!
//! Tokens that are no ordinary text are found by their names, words are cut in `pre`, and a word's
//! bytes are joined as the file's merges say.
//! Tokens are bytes here and merges are pairs of ids: the strings of the file are not kept, and
//! GPT-2's alphabet, which spells bytes as characters, ends where the file does.

use std::fmt;

use super::alphabet::{characters, spell};
use super::error::TokenizerError;
use super::literals::{Literals, is_literal};
use super::merge::merge;
use super::merges::{Merge, Merges};
use super::pieces::Pieces;
use super::pre::{Cut, Pre};
use super::tokens::Tokens;
use crate::model::load::GgufVocabulary;

/// A byte-pair tokenizer.
pub struct Bpe {
    literals: Literals,
    cut: Cut,
    pub(super) tokens: Tokens,
    merges: Merges,
    /// Tokens of single bytes.
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    /// Whether a word that is itself a token is taken whole, before any merge.
    whole_words: bool,
}

impl fmt::Debug for Bpe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bpe").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

impl Bpe {
    pub(super) fn new(vocabulary: &GgufVocabulary) -> Result<Self, TokenizerError> {
        let pre = Pre::named(vocabulary.pre.as_deref())?;
        let pieces = pieces(vocabulary);
        Ok(Self {
            literals: Literals::new(vocabulary)?,
            cut: pre.cut()?,
            merges: merges(vocabulary, &pieces)?,
            bytes: Box::new(std::array::from_fn(|byte| pieces.find(&[byte as u8]))),
            unknown: vocabulary.unknown,
            whole_words: pre.whole_words,
            tokens: Tokens {
                pieces,
                bos: vocabulary.bos,
                adds_bos: vocabulary.add_bos.unwrap_or(pre.adds_bos),
                ends: vocabulary.eos_ids.clone(),
            },
        })
    }

    /// Asks before every word whether anybody still wants the ids.
    pub(super) fn encode(
        &self,
        text: &str,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.literals.encode(text, |at, text, ids| self.encode_words(at, text, wanted, ids))
    }

    fn encode_words(
        &self,
        at: usize,
        words: &str,
        wanted: &dyn Fn() -> bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let unspellable = |byte: u8| self.byte(byte).is_none();
        if let Some(start) = words.bytes().position(unspellable) {
            let byte = words.as_bytes()[start];
            return Err(TokenizerError::NoToken { byte, at: at + start });
        }
        self.cut.words(words).into_iter().try_for_each(|word| match wanted() {
            true => self.encode_word(word.as_bytes(), wanted, ids),
            false => Err(TokenizerError::Unwanted),
        })
    }

    fn encode_word(
        &self,
        word: &[u8],
        wanted: &dyn Fn() -> bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if let Some(id) = self.tokens.pieces.find(word).filter(|_| self.whole_words) {
            ids.push(id);
            return Ok(());
        }
        let bytes = word.iter().filter_map(|&byte| Some((1, self.byte(byte)?)));
        let symbols = merge(&self.merges, word, bytes, wanted)?;
        ids.extend(symbols.into_iter().map(|symbol| symbol.id));
        Ok(())
    }

    /// The token of a byte, or the one that stands for what has none.
    fn byte(&self, byte: u8) -> Option<u32> {
        self.bytes[usize::from(byte)].or(self.unknown)
    }
}

/// Ordinary tokens spell bytes; the names of the others are text, and so are texts that spell none.
fn pieces(vocabulary: &GgufVocabulary) -> Pieces {
    let characters = characters();
    let kind = |id| vocabulary.token_types.get(id).copied().unwrap_or_default();
    Pieces::new(vocabulary.tokens.iter().enumerate().map(|(id, text)| {
        match spell(text, &characters) {
            Some(bytes) if !is_literal(kind(id)) => (bytes, true),
            // Merges may name them.
            Some(bytes) if bytes == text.as_bytes() => (bytes, true),
            _ => (text.clone().into_bytes(), false),
        }
    }))
}

/// The merges of a vocabulary, each of two tokens that it has and makes a third.
fn merges(vocabulary: &GgufVocabulary, pieces: &Pieces) -> Result<Merges, TokenizerError> {
    Merges::check(vocabulary.merges.len(), pieces)?;
    let characters = characters();
    let spelled = |text: &str| spell(text, &characters).unwrap_or_default();
    let merge = |(rank, merge): (usize, &String)| {
        let fault = |fault| TokenizerError::Merge { index: rank, merge: merge.clone(), fault };
        let (left, right) = merge.split_once(' ').ok_or_else(|| fault("is not two tokens"))?;
        let parts = [spelled(left), spelled(right)];
        let [Some(left), Some(right)] = [&parts[0], &parts[1]].map(|part| pieces.find(part)) else {
            return Err(fault("names a token that is not in the vocabulary"));
        };
        let whole = pieces.find(&parts.concat());
        let whole = whole.ok_or_else(|| fault("makes a token that is not in the vocabulary"))?;
        Ok(Merge { left, right, rank: rank as u32, whole })
    };
    let merges = vocabulary.merges.iter().enumerate().map(merge);
    Ok(Merges::new(merges.collect::<Result<_, _>>()?, pieces.len()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::super::literals::{CONTROL, USER_DEFINED};
    use super::*;
    use crate::model::load::Vocabulary;
    use crate::text::Tokenizer;

    /// Ids: a 0, b 1, ab 2, Ġ 3, <s> 4 (control), <s>> 5 (control), [x] 6 (user-defined).
    fn vocabulary() -> GgufVocabulary {
        GgufVocabulary {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens: ["a", "b", "ab", "Ġ", "<s>", "<s>>", "[x]"].map(String::from).into(),
            token_types: vec![1, 1, 1, 1, CONTROL, CONTROL, USER_DEFINED],
            merges: vec!["a b".into()],
            bos: Some(4),
            ..GgufVocabulary::default()
        }
    }

    fn tokenizer(change: impl FnOnce(&mut GgufVocabulary)) -> Result<Tokenizer, TokenizerError> {
        let mut vocabulary = vocabulary();
        change(&mut vocabulary);
        Tokenizer::new(&Vocabulary::Gguf(vocabulary))
    }

    fn encode(text: &str) -> Result<Vec<u32>, TokenizerError> {
        tokenizer(|_| {}).unwrap().encode(text)
    }

    #[test]
    fn the_names_of_control_and_user_defined_tokens_are_those_tokens() {
        assert_eq!(encode("ab<s>a b[x]").unwrap(), [2, 4, 0, 3, 1, 6]);
        let error = encode("ab<t>").unwrap_err();
        assert!(matches!(error, TokenizerError::NoToken { byte: b'<', at: 2 }), "{error}");
    }

    #[test]
    fn a_text_that_nobody_wants_any_more_is_left_at_the_next_word() {
        let tokenizer = tokenizer(|_| {}).unwrap();
        let asked = std::cell::Cell::new(0);
        let wanted = || asked.replace(asked.get() + 1) < 3;
        let refused = tokenizer.encode_while(&"ab ".repeat(1000), &wanted).unwrap_err();
        assert!(matches!(refused, TokenizerError::Unwanted), "{refused}");
        assert_eq!(asked.get(), 4);
    }

    #[test]
    fn the_longest_of_overlapping_names_is_the_token() {
        assert_eq!(encode("<s>><s>").unwrap(), [5, 4]);
    }

    #[test]
    fn a_byte_without_a_token_is_the_unknown_token_or_an_error_with_its_place() {
        let error = encode("[x]ab\nb").unwrap_err();
        assert!(matches!(error, TokenizerError::NoToken { byte: b'\n', at: 5 }), "{error}");
        let tokenizer = tokenizer(|vocabulary| vocabulary.unknown = Some(3)).unwrap();
        assert_eq!(tokenizer.encode("a\nb").unwrap(), [0, 3, 1]);
    }

    #[test]
    fn a_prompt_begins_with_bos_when_the_file_says_so_or_its_kind_does() {
        let prompt = |add: Option<bool>, pre: &str| {
            let set = |vocabulary: &mut GgufVocabulary| {
                (vocabulary.add_bos, vocabulary.pre) = (add, Some(pre.into()));
            };
            tokenizer(set).unwrap().encode_prompt("a").unwrap()
        };
        assert_eq!(prompt(None, "gpt-2"), [0]);
        assert_eq!(prompt(Some(true), "gpt-2"), [4, 0]);
        assert_eq!(prompt(None, "llama-bpe"), [4, 0]);
        assert_eq!(prompt(Some(false), "llama-bpe"), [0]);
    }

    #[test]
    fn two_bos_in_front_are_noticed() {
        let tokenizer = tokenizer(|_| {}).unwrap();
        assert!(tokenizer.doubles_bos(&[4, 4, 0]));
        assert!(!tokenizer.doubles_bos(&[4, 0, 4]) && !tokenizer.doubles_bos(&[4]));
    }

    #[test]
    fn a_token_spells_bytes_and_a_control_tokens_text_is_its_name() {
        let tokenizer = tokenizer(|_| {}).unwrap();
        assert_eq!(tokenizer.decode(&[2, 3, 4, 6, 99]), "ab <s>[x]");
    }

    #[test]
    fn a_merge_that_cannot_be_is_told_with_its_place() {
        for (merge, fault) in [
            ("ab", "is not two tokens"),
            ("a c", "names a token that is not in the vocabulary"),
            ("b a", "makes a token that is not in the vocabulary"),
        ] {
            let error = tokenizer(|vocabulary| vocabulary.merges.push(merge.into())).unwrap_err();
            assert_eq!(error.to_string(), format!("merge 1 (\"{merge}\") {fault}"));
        }
    }

    #[test]
    fn another_kind_of_model_is_refused_by_name() {
        let error = tokenizer(|vocabulary| vocabulary.model = "t5".into()).unwrap_err();
        assert!(error.to_string().contains("\"t5\" is not supported"), "{error}");
    }

    /// Letters, then tokens that are made by merges, each of two earlier tokens.
    fn grown(pairs: &[(usize, usize)]) -> GgufVocabulary {
        let mut tokens: Vec<String> = ["a", "b", "c"].map(String::from).into();
        let mut merges = Vec::new();
        for (left, right) in pairs {
            let [left, right] = [left, right].map(|at| &tokens[at % tokens.len()]);
            let (merge, token) = (format!("{left} {right}"), format!("{left}{right}"));
            if token.len() <= 16 && !tokens.contains(&token) {
                tokens.push(token);
                merges.push(merge);
            }
        }
        let token_types = vec![1; tokens.len()];
        GgufVocabulary { tokens, token_types, merges, bos: None, ..vocabulary() }
    }

    /// Byte-pair encoding as it is defined: the best merge anywhere, leftmost first, until none is.
    fn plainly(vocabulary: &GgufVocabulary, word: &str) -> Vec<u32> {
        let mut parts: Vec<String> = word.chars().map(String::from).collect();
        let rank = |pair: &[String]| {
            let merge = pair.join(" ");
            vocabulary.merges.iter().position(|known| *known == merge)
        };
        let best = |parts: &[String]| {
            let ranks = parts.windows(2).enumerate();
            ranks.filter_map(|(at, pair)| Some((rank(pair)?, at))).min()
        };
        while let Some((_, at)) = best(&parts) {
            let right = parts.remove(at + 1);
            parts[at] += &right;
        }
        let id = |part: &String| vocabulary.tokens.iter().position(|token| token == part).unwrap();
        parts.iter().map(|part| id(part) as u32).collect()
    }

    proptest! {
        #[test]
        fn words_have_the_ids_that_merging_plainly_gives(
            pairs in proptest::collection::vec((0usize..64, 0usize..64), 0..40),
            word in "[abc]{1,60}|a{1,200}|(ab){1,90}",
        ) {
            let vocabulary = grown(&pairs);
            let expected = plainly(&vocabulary, &word);
            let tokenizer = Tokenizer::new(&Vocabulary::Gguf(vocabulary)).unwrap();
            prop_assert_eq!(tokenizer.encode(&word).unwrap(), expected);
        }
    }

    #[test]
    fn a_word_of_a_megabyte_is_merged_like_a_short_one() {
        let doubling: Vec<_> = [0, 3, 4, 5].map(|at| (at, at)).into();
        let tokenizer = Tokenizer::new(&Vocabulary::Gguf(grown(&doubling))).unwrap();
        let ids = tokenizer.encode(&"a".repeat(1 << 20)).unwrap();
        assert_eq!(ids, vec![6; 1 << 16]);
    }
}
