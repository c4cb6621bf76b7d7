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

use super::error::TokenizerError;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

/// Words that change from small letters to capitals are cut there.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";

const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";

const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+";

const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##;

/// The letters of scripts that have capitals, as they were when the pattern was made.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[",
    r"A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}",
    r"\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}",
    r"\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}",
    r"\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}",
    r"\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}",
    r"\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}",
    r"\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}",
    r"\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}",
    r"\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}",
    r"\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}",
    r"\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}",
    r"\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}",
    r"\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}",
    r"\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}",
    r"\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}",
    r"\u{1e900}-\u{1e943}",
    r"]+"
);

const DEEPSEEK_HAN: &str = "[一-龥\u{800}-一가-\u{d7ff}]+";

const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// A way of cutting, and what comes with it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pre {
    names: &'static [&'static str],
    /// Each cuts the pieces that the one before it left.
    patterns: &'static [&'static str],
    /// Whether a word that is itself a token is taken whole, before any merge.
    pub(super) whole_words: bool,
    /// Whether prompts begin with the beginning-of-sequence token if the file does not say.
    pub(super) adds_bos: bool,
}

impl Pre {
    const fn new(names: &'static [&'static str], patterns: &'static [&'static str]) -> Self {
        Self { names, patterns, whole_words: false, adds_bos: false }
    }

    const fn whole(self) -> Self {
        Self { whole_words: true, ..self }
    }

    const fn with_bos(self) -> Self {
        Self { adds_bos: true, ..self }
    }

    pub(super) fn named(name: Option<&str>) -> Result<&'static Self, TokenizerError> {
        let Some(name) = name else { return Err(TokenizerError::NoPre { known: known() }) };
        let found = TABLE.iter().find(|pre| pre.names.contains(&name));
        found.ok_or_else(|| TokenizerError::Pre { found: name.into(), known: known() })
    }

    /// The cut. No space is ever put in front of a text.
    pub(super) fn cut(&self) -> Result<Cut, TokenizerError> {
        let patterns = self.patterns.iter().map(|pattern| Pattern::new(pattern));
        Ok(Cut(patterns.collect::<Result<_, _>>()?))
    }
}

/// Names that are known, for messages.
fn known() -> String {
    TABLE.iter().flat_map(|pre| pre.names).copied().collect::<Vec<_>>().join(", ")
}

/// Every way of cutting.
static TABLE: [Pre; 18] = [
    // llama.cpp's own, for files that were converted without knowing the right one.
    Pre::new(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]),
    Pre::new(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "mellum",
            "a.x-4.0",
        ],
        &[GPT2],
    ),
    Pre::new(
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[r"\p{N}", GPT2],
    ),
    Pre::new(
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        &[LLAMA3],
    )
    .whole()
    .with_bos(),
    Pre::new(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    Pre::new(&["glm4"], &[LLAMA3]).whole(),
    Pre::new(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "megrez",
            "hunyuan",
            "grok-2",
            "kormo",
            "solar-open",
        ],
        &[QWEN2],
    ),
    Pre::new(&["qwen35"], &[QWEN35]),
    Pre::new(&["tekken"], &[TEKKEN]).whole().with_bos(),
    Pre::new(&["gpt-4o", "llama4", "kanana2"], &[GPT4O]),
    Pre::new(
        &["deepseek-llm"],
        &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
            r"\s+$",
            DEEPSEEK_HAN,
            r"\p{N}+",
        ],
    ),
    Pre::new(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_HAN, r"\p{N}"]),
    Pre::new(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        &[r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+", DEEPSEEK3],
    ),
    Pre::new(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"]),
    Pre::new(&["seed-coder"], &[SEED_CODER]),
    Pre::new(&["minicpm5"], &[r"\p{N}{1,3}", MINICPM5]).whole(),
    Pre::new(&["bloom", "gpt3-finnish", "poro-chat"], &[BLOOM]),
    Pre::new(&["viking"], &[BLOOM, r"\p{N}"]),
];

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
struct Pattern {
    regex: Regex,
    /// Whether runs of white space leave their last character to what follows.
    leaves: bool,
    /// Whether runs of white space end in the last newline among them.
    lines: bool,
}

impl Pattern {
    fn new(pattern: &str) -> Result<Self, TokenizerError> {
        let wrong = |error: regex::Error| TokenizerError::Build { reason: error.to_string() };
        let regex = Regex::new(pattern).map_err(wrong)?;
        let (leaves, lines) = (pattern.ends_with(r"|\s+"), pattern.contains(r"\s*[\r\n]+"));
        Ok(Self { regex, leaves, lines })
    }

    fn split<'t>(&self, piece: &'t str, words: &mut Vec<&'t str>) {
        let mut push = |start: usize, end: usize| {
            if start < end {
                words.push(&piece[start..end]);
            }
        };
        let mut done = 0;
        while let Some(found) = self.regex.find_at(piece, done) {
            let end = self.end(piece, found.start(), found.end());
            push(done, found.start());
            push(found.start(), end);
            done = end;
        }
        push(done, piece.len());
    }

    /// Where a match ends: a run of white space before something else leaves its last character.
    /// Runs that end a line do not, and are told by the newline that they end in.
    fn end(&self, piece: &str, start: usize, end: usize) -> usize {
        if !self.leaves {
            return end;
        }
        let last = piece[start..end].chars().next_back().filter(|last| last.is_whitespace());
        match last {
            Some('\r' | '\n') if self.lines => end,
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

    /// Every cut, ours and the library's.
    static ALL: LazyLock<Vec<(Cut, PreTokenizerWrapper)>> =
        LazyLock::new(|| TABLE.iter().map(|pre| (pre.cut().unwrap(), oracle(pre))).collect());

    fn split(pattern: &str) -> PreTokenizerWrapper {
        let pattern = SplitPattern::Regex(pattern.into());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap().into()
    }

    /// A pattern as it was published, with its look-ahead.
    fn published(pattern: &str) -> String {
        match pattern.strip_suffix(r"|\s+") {
            Some(rest) => format!(r"{rest}|\s+(?!\S)|\s+"),
            None => pattern.into(),
        }
    }

    /// The cut by the library, with a backtracking engine, and by its own parts where it has them.
    fn oracle(pre: &Pre) -> PreTokenizerWrapper {
        let gpt2 = || PreTokenizerWrapper::from(ByteLevel::new(false, false, true));
        match pre.names[0] {
            "gpt-2" => gpt2(),
            "smollm" => Sequence::new(vec![Digits::new(true).into(), gpt2()]).into(),
            _ => {
                let patterns = pre.patterns.iter().map(|pattern| split(&published(pattern)));
                Sequence::new(patterns.collect()).into()
            }
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
        assert_eq!(words("gpt-2", "a   b \n\n c  "), "a|  | b| \n\n| c|  ");
        assert_eq!(words("llama-bpe", "a   b \n\n c\t\tD'LL"), "a|  | b| \n\n| c|\t|\tD|'LL");
        assert_eq!(words("smollm", "a  12"), "a|  |1|2");
    }

    #[test]
    fn kinds_differ_in_digits_capitals_and_marks() {
        assert_eq!(words("llama-bpe", "12345 fooBar!\n"), "123|45| fooBar|!\n");
        assert_eq!(words("qwen2", "12345 fooBar!\n"), "1|2|3|4|5| fooBar|!\n");
        assert_eq!(words("tekken", "12345 fooBar!\n"), "1|2|3|4|5| foo|Bar|!\n");
        assert_eq!(words("gpt-4o", "12345 fooBar's!\n"), "123|45| foo|Bar's|!\n");
        assert_eq!(words("deepseek-v3", "12345 fooBar!\n"), "123|45| fooBar|!\n");
        assert_eq!(words("qwen35", "e\u{301}a"), "e\u{301}a");
        assert_eq!(words("qwen2", "e\u{301}a"), "e|\u{301}a");
    }

    fn words(name: &str, text: &str) -> String {
        Pre::named(Some(name)).unwrap().cut().unwrap().words(text).join("|")
    }

    #[test]
    fn a_megabyte_of_white_space_is_cut_in_linear_time_and_what_follows_as_ever() {
        let text = " ".repeat(1 << 20) + "a b";
        for pre in &TABLE {
            let words = pre.cut().unwrap().words(&text);
            let lengths: Vec<_> = words.iter().map(|word| word.len()).collect();
            if pre.patterns.iter().any(|pattern| pattern.ends_with(r"|\s+")) {
                assert_eq!(lengths, [(1 << 20) - 1, 2, 2], "{pre:?}");
            }
            assert_eq!(lengths.iter().sum::<usize>(), text.len());
        }
    }

    #[test]
    fn no_name_is_in_two_rows() {
        let message = known();
        let mut names: Vec<&str> = message.split(", ").collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "{message}");
    }

    #[test]
    fn an_unknown_or_missing_name_is_refused_with_the_known_ones() {
        let error = Pre::named(Some("kimi-k2")).unwrap_err().to_string();
        assert!(error.contains("\"kimi-k2\"") && error.contains("smollm"), "{error}");
        let error = Pre::named(None).unwrap_err().to_string();
        assert!(error.contains("tokenizer.ggml.pre") && error.contains("gpt-2"), "{error}");
    }
}
