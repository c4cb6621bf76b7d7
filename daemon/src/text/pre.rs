//! How text is cut before byte-pair encoding, by the name a GGUF file gives it.
//!
//! The name is all the file says, so an unknown one is an error: a guess would tokenise most texts
//! right and some wrong. Every row of the table is held against reference ids in a test.
//!
//! The patterns are the published ones but for one thing: they say of white space
//! `\s+(?!\S)|\s+`, which leaves the last character of a run to the word behind it.
//! Without the look-ahead they are regular, so that any text is cut in linear time and without
//! a limit on backtracking; [`Pattern::end`] gives the character back.

use regex::Regex;

use super::bpe::TokenizerError;

/// Names that are known, for messages.
pub(super) const KNOWN: &str = "default, gpt-2, llama-bpe, llama3, llama-v3, smollm";

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

/// llama.cpp's own cut, for files that were converted without knowing the right one.
const DEFAULT: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"];

/// A way of cutting, and what comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pre {
    /// Punctuation, then GPT-2's words, then runs of three digits.
    Default,
    /// GPT-2's words.
    Gpt2,
    /// GPT-2's words, every digit on its own.
    Smollm,
    /// Llama 3's words: up to three digits, case-insensitive contractions.
    Llama3,
}

impl Pre {
    pub(super) fn named(name: Option<&str>) -> Result<Self, TokenizerError> {
        match name {
            Some("default") => Ok(Self::Default),
            Some("gpt-2") => Ok(Self::Gpt2),
            Some("smollm") => Ok(Self::Smollm),
            Some("llama-bpe" | "llama3" | "llama-v3") => Ok(Self::Llama3),
            Some(found) => Err(TokenizerError::Pre { found: found.into(), known: KNOWN }),
            None => Err(TokenizerError::NoPre { known: KNOWN }),
        }
    }

    /// The cut. No space is ever put in front of a text.
    pub(super) fn cut(self) -> Result<Cut, TokenizerError> {
        let patterns: &[&str] = match self {
            Self::Default => &DEFAULT,
            Self::Gpt2 => &[GPT2],
            Self::Smollm => &[r"\p{N}", GPT2],
            Self::Llama3 => &[LLAMA3],
        };
        Ok(Cut(patterns.iter().map(|pattern| Pattern::new(pattern)).collect::<Result<_, _>>()?))
    }

    /// Whether a word that is itself a token is taken whole, before any merge.
    pub(super) fn whole_words(self) -> bool {
        self == Self::Llama3
    }

    /// Whether prompts begin with the beginning-of-sequence token if the file does not say.
    pub(super) fn adds_bos(self) -> bool {
        self == Self::Llama3
    }
}

/// Patterns, each of which cuts the pieces that the one before it left.
#[derive(Debug)]
pub(super) struct Cut(Vec<Pattern>);

impl Cut {
    /// The words of a text, which together are the text.
    pub(super) fn words<'t>(&self, text: &'t str) -> Vec<&'t str> {
        self.0.iter().fold(vec![text], |pieces, pattern| {
            let mut finer = Vec::with_capacity(pieces.len());
            pieces.into_iter().for_each(|piece| pattern.split(piece, &mut finer));
            finer
        })
    }
}

/// A pattern whose matches are words, and so is what lies between them.
#[derive(Debug)]
struct Pattern(Regex);

impl Pattern {
    fn new(pattern: &str) -> Result<Self, TokenizerError> {
        let wrong = |error: regex::Error| TokenizerError::Build { reason: error.to_string() };
        Ok(Self(Regex::new(pattern).map_err(wrong)?))
    }

    fn split<'t>(&self, piece: &'t str, words: &mut Vec<&'t str>) {
        let mut push = |start: usize, end: usize| {
            if start < end {
                words.push(&piece[start..end]);
            }
        };
        let mut done = 0;
        while let Some(found) = self.0.find_at(piece, done) {
            let end = self.end(piece, found.start(), found.end());
            push(done, found.start());
            push(found.start(), end);
            done = end;
        }
        push(done, piece.len());
    }

    /// Where a match ends: a run of white space before something else leaves its last character.
    /// Llama 3's runs that end a line do not, and are told by the newline that they end in.
    fn end(&self, piece: &str, start: usize, end: usize) -> usize {
        let last = piece[start..end].chars().next_back().filter(|last| last.is_whitespace());
        let lines = self.0.as_str() == LLAMA3;
        match last {
            Some('\r' | '\n') if lines => end,
            Some(last) if end < piece.len() && start + last.len_utf8() < end => {
                end - last.len_utf8()
            }
            _ => end,
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::PreTokenizerWrapper;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::digits::Digits;
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::tokenizer::SplitDelimiterBehavior;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;

    /// The pattern as published, with its look-ahead.
    const PUBLISHED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    /// As llama.cpp has them.
    const LLAMA_CPP: [&str; 4] = [
        r"[\p{P}\$\+<=>\^~\|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+",
        r"[0-9][0-9][0-9]",
    ];

    /// Every cut, ours and the library's.
    static ALL: LazyLock<[(Cut, PreTokenizerWrapper); 4]> = LazyLock::new(|| {
        let all = [Pre::Default, Pre::Gpt2, Pre::Smollm, Pre::Llama3];
        all.map(|pre| (pre.cut().unwrap(), oracle(pre)))
    });

    fn split(pattern: &str) -> PreTokenizerWrapper {
        let pattern = SplitPattern::Regex(pattern.into());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap().into()
    }

    /// The cut by the library, with a backtracking engine.
    fn oracle(pre: Pre) -> PreTokenizerWrapper {
        let gpt2 = || PreTokenizerWrapper::from(ByteLevel::new(false, false, true));
        match pre {
            Pre::Default => Sequence::new(LLAMA_CPP.map(split).into()).into(),
            Pre::Gpt2 => gpt2(),
            Pre::Smollm => Sequence::new(vec![Digits::new(true).into(), gpt2()]).into(),
            Pre::Llama3 => split(PUBLISHED),
        }
    }

    fn check(text: &str) {
        for (cut, oracle) in &*ALL {
            let mut expected = PreTokenizedString::from(text);
            oracle.pre_tokenize(&mut expected).unwrap();
            let splits = expected.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let expected: Vec<&str> =
                splits.into_iter().map(|(_, (start, end), _)| &text[start..end]).collect();
            assert_eq!(cut.words(text), expected, "{cut:?}: {text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn words_are_those_of_the_published_patterns(
            text in r"([ \t\r\n\x{b}\x{a0}\x{2003}\x{3000}]{0,4}[aZé日\x{301}1٣½²'!.$+^|~😀\x{0}\x{200d}stremvld]{0,4}){0,8}[ \t\n\x{a0}]{0,3}",
        ) {
            check(&text);
        }

        #[test]
        fn words_of_any_text_are_those_of_the_published_patterns(text in r"[\PC\s]{0,40}") {
            check(&text);
        }
    }

    #[test]
    fn a_run_of_white_space_leaves_its_last_character_to_the_next_word() {
        let words = |pre: Pre, text| pre.cut().unwrap().words(text).join("|");
        assert_eq!(words(Pre::Gpt2, "a   b \n\n c  "), "a|  | b| \n\n| c|  ");
        assert_eq!(words(Pre::Llama3, "a   b \n\n c\t\tD'LL"), "a|  | b| \n\n| c|\t|\tD|'LL");
        assert_eq!(words(Pre::Smollm, "a  12"), "a|  |1|2");
    }

    #[test]
    fn a_megabyte_of_white_space_is_one_word_and_what_follows_is_cut_as_ever() {
        for (cut, _) in &*ALL {
            let text = " ".repeat(1 << 20) + "a b";
            let lengths: Vec<_> = cut.words(&text).iter().map(|word| word.len()).collect();
            assert_eq!(lengths, [(1 << 20) - 1, 2, 2], "{cut:?}");
        }
    }

    #[test]
    fn every_name_in_the_message_is_known() {
        for name in KNOWN.split(", ") {
            Pre::named(Some(name)).unwrap().cut().unwrap();
        }
    }

    #[test]
    fn an_unknown_or_missing_name_is_refused_with_the_known_ones() {
        let error = Pre::named(Some("tekken")).unwrap_err().to_string();
        assert!(error.contains("\"tekken\"") && error.contains("smollm"), "{error}");
        let error = Pre::named(None).unwrap_err().to_string();
        assert!(error.contains("tokenizer.ggml.pre") && error.contains("gpt-2"), "{error}");
    }
}
