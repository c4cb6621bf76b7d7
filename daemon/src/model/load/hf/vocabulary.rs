//! What the directory says about text: `tokenizer.json` as it is, and the few keys beside it that
//! say which tokens begin and end.

use serde_json::Value;

use super::config::Config;
use super::directory::{CONFIG, Directory, GENERATION, TOKENIZER, TOKENIZER_CONFIG};
use crate::model::load::canon::Canon;
use crate::model::load::{HfVocabulary, LoadError};

const EOS: &str = "eos_token_id";

/// Classes of tokenizers that put tokens around a text by these keys, whatever `tokenizer.json`
/// says.
const BY_KEY: [&str; 6] = [
    "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast",
    "GemmaTokenizer",
    "GemmaTokenizerFast",
    "LlamaTokenizer",
    "LlamaTokenizerFast",
];

impl Directory {
    /// The vocabulary of a model with `vocab` ids.
    pub(super) fn vocabulary(
        &self,
        config: &Config,
        vocab: usize,
    ) -> Result<HfVocabulary, LoadError> {
        let json = match self.text(TOKENIZER)? {
            Some(json) => compact(json),
            None => self.stand_in(config)?.into(),
        };
        let mut vocabulary = HfVocabulary { json, vocab, ..HfVocabulary::default() };
        if let Some(settings) = self.settings(TOKENIZER_CONFIG)? {
            settle(&mut vocabulary, &settings).map_err(|error| error.within(TOKENIZER_CONFIG))?;
        }
        let generation = self.settings(GENERATION)?;
        let [begins, ends] = ["bos_token_id", EOS].map(|key| {
            let generation = generation.as_ref().filter(|generation| generation.get(key).is_some());
            let ids = generation.map(|settings| {
                ids(settings, key, vocab).map_err(|error| error.within(GENERATION))
            });
            let otherwise = || ids_of_config(config, key, vocab);
            ids.unwrap_or_else(otherwise)
        });
        vocabulary.bos_id = begins?.first().copied();
        vocabulary.eos_ids = ends?;
        Ok(vocabulary)
    }

    fn settings(&self, file: &'static str) -> Result<Option<Config>, LoadError> {
        let value = self.json(file)?;
        value.map(|value| Config::new(value).map_err(|error| error.within(file))).transpose()
    }
}

/// The same JSON without the white space that pleases the eye, which is half of most files. What
/// is behind a number or a word stays: without it, two of them would be one.
fn compact(mut json: Vec<u8>) -> Box<[u8]> {
    let (mut quoted, mut escaped, mut last) = (false, false, b'{');
    json.retain(|&byte| {
        if !quoted && b" \t\r\n".contains(&byte) && b"{}[]:,\"".contains(&last) {
            return false;
        }
        quoted ^= byte == b'"' && !escaped;
        escaped = quoted && byte == b'\\' && !escaped;
        last = byte;
        true
    });
    json.into()
}

fn ids_of_config(config: &Config, key: &str, vocab: usize) -> Result<Vec<u32>, LoadError> {
    ids(config, key, vocab).map_err(|error| error.within(CONFIG))
}

/// One id, or a list of them.
fn ids(config: &Config, key: &str, vocab: usize) -> Result<Vec<u32>, LoadError> {
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let ids = match config.get(key) {
        None => Vec::new(),
        Some(Value::Array(_)) => config.list(key, "a list of ids", id)?.unwrap_or_default(),
        Some(value) => vec![id(value).ok_or_else(|| {
            config.out_of_range(key, &value.to_string(), "an id or a list of ids")
        })?],
    };
    match ids.iter().find(|&&id| id as usize >= vocab) {
        None => Ok(ids),
        Some(id) => {
            let expected = format!("one of the {vocab} ids");
            Err(config.out_of_range(key, &id.to_string(), &expected))
        }
    }
}

/// Takes in what `tokenizer_config.json` says.
fn settle(vocabulary: &mut HfVocabulary, settings: &Config) -> Result<(), LoadError> {
    vocabulary.bos = token(settings, "bos_token")?;
    vocabulary.eos = token(settings, "eos_token")?;
    let class = settings.text("tokenizer_class")?;
    if class.is_some_and(|class| BY_KEY.contains(&class)) {
        let stated = settings.get("add_bos_token").is_some();
        let adds = settings.flag("add_bos_token", true)?;
        vocabulary.adds_bos = stated.then_some(adds);
        if settings.flag("add_eos_token", false)? {
            return Err(settings.unsupported("add_eos_token", "true".into()));
        }
    }
    let Some(added) = settings.object("added_tokens_decoder")? else { return Ok(()) };
    vocabulary.added = added
        .entries()
        .map(|(id, token)| {
            let text = token.get("content").and_then(Value::as_str);
            let both = id.parse().ok().zip(text.map(str::to_owned));
            both.ok_or_else(|| added.unsupported(id, token.to_string()))
        })
        .collect::<Result<_, _>>()?;
    Ok(())
}

/// The text of a token: as it is, or in an object that says more about it.
fn token(settings: &Config, key: &str) -> Result<Option<String>, LoadError> {
    let text = settings.get(key).map(|token| token.get("content").unwrap_or(token));
    let text = text.map(|text| text.as_str().map(str::to_owned));
    text.map(|text| {
        text.ok_or_else(|| {
            let found = settings.get(key).map(ToString::to_string).unwrap_or_default();
            settings.out_of_range(key, &found, "the text of a token")
        })
    })
    .transpose()
}

impl HfVocabulary {
    /// Everything that text becomes token ids by.
    pub(super) fn canonical(&self) -> Canon {
        Canon::default()
            .text("vocabulary", "tokenizer.json")
            .bytes("json", &self.json)
            .option("bos", self.bos.as_deref(), |canon, bos| canon.text("", bos))
            .option("bos_id", self.bos_id, |canon, id| canon.number("", id as usize))
            .option("adds_bos", self.adds_bos, |canon, adds| canon.number("", adds.into()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_without_its_white_space() {
        let json = " { \"a \\\" b\" :\t[1,\n\r 2.5e1 , true], \"\\\\\": \" \\n \", \"c\":{ } } ";
        let short = compact(json.into());
        assert_eq!(&*short, br#"{"a \" b":[1,2.5e1 ,true],"\\":" \n ","c":{}}"#);
        let read = |json: &[u8]| serde_json::from_slice::<Value>(json);
        assert_eq!(read(&short).unwrap(), read(json.as_bytes()).unwrap());
        for wrong in ["[1 2]", "[tru e]", "[\"a\" \"b\"]", "[1\n2]"] {
            assert!(read(&compact(wrong.into())).is_err(), "{wrong}");
        }
    }
}
