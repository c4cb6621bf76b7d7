//! Which files of a repository are a model that the daemon can load.
//!
//! A directory of safetensors has its weights in `model.safetensors`, or in the files that an index
//! names, or in all there are: the daemon's own order. Of GGUF files one is a model.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::error::PullError;
use super::hub::{Entry, Listing};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// What says something about a model beside its weights.
const KNOWN: [&str; 6] = [
    CONFIG,
    TOKENIZER,
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// The files to fetch.
#[derive(Debug)]
pub(super) enum Choice<'a> {
    /// One that is the model.
    File(&'a Entry),
    /// A directory's.
    Directory { files: Vec<&'a Entry>, index: Option<&'a Entry> },
}

/// The files of the model, or of the one GGUF file that is wanted.
pub(super) fn choose<'a>(
    listing: &'a Listing,
    wanted: Option<&str>,
) -> Result<Choice<'a>, PullError> {
    let weights: Vec<_> = listing.files.iter().filter(|file| is_weights(&file.name)).collect();
    match wanted {
        None if !weights.is_empty() => directory(listing, weights),
        _ => Ok(Choice::File(gguf(listing, wanted)?)),
    }
}

fn directory<'a>(listing: &'a Listing, weights: Vec<&'a Entry>) -> Result<Choice<'a>, PullError> {
    for name in [CONFIG, TOKENIZER] {
        listing.find(name)?;
    }
    let mut files: Vec<_> = KNOWN.iter().filter_map(|name| listing.find(name).ok()).collect();
    let whole = listing.find(WEIGHTS).ok();
    let index = listing.find(INDEX).ok().filter(|_| whole.is_none());
    match (whole, index) {
        (Some(whole), _) => files.push(whole),
        (None, Some(_)) => {}
        (None, None) => files.extend(weights),
    }
    Ok(Choice::Directory { files, index })
}

/// Whether a file at the root has weights of a whole model: adapters have not, and a second copy
/// with its maker's own names of tensors does not count.
fn is_weights(name: &str) -> bool {
    let other = name.starts_with("adapter") || name.starts_with("consolidated");
    name.ends_with(".safetensors") && !name.contains('/') && !other
}

/// The files that an index names.
pub(super) fn shards<'a>(listing: &'a Listing, index: &[u8]) -> Result<Vec<&'a Entry>, PullError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(index)
        .map_err(|error| listing.nonsense(format!("{INDEX}: {error}")))?;
    let names: BTreeSet<_> = index.weight_map.into_values().collect();
    names.iter().map(|name| listing.find(name)).collect()
}

fn gguf<'a>(listing: &'a Listing, wanted: Option<&str>) -> Result<&'a Entry, PullError> {
    let models: Vec<_> = listing.files.iter().filter(|file| is_gguf(&file.name)).collect();
    let is_wanted = |file: &&Entry| wanted.is_none_or(|wanted| fits(&file.name, wanted));
    let mut fitting: Vec<_> = models.iter().copied().filter(is_wanted).collect();
    if let Some(exact) = fitting.iter().find(|file| Some(&*file.name) == wanted) {
        fitting = vec![exact];
    }
    let names = |files: &[&Entry]| files.iter().map(|file| file.name.clone()).collect();
    let repository = listing.repository.clone();
    match (&*fitting, wanted) {
        ([part, ..], _) if fitting.iter().all(|file| is_part(&file.name)) => {
            Err(PullError::Split { file: part.name.clone() })
        }
        ([file], _) => Ok(file),
        ([], Some(wanted)) if !models.is_empty() => {
            Err(PullError::NoMatch { repository, wanted: wanted.into(), there: names(&models) })
        }
        ([], _) => Err(PullError::NoModel(repository)),
        (files, _) => Err(PullError::Ambiguous { repository, choices: names(files) }),
    }
}

/// Whether a file is a model: what sees for one, and what one was quantised with, are none.
fn is_gguf(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    file.ends_with(".gguf") && !file.contains("mmproj") && !file.contains("imatrix")
}

/// Whether a name ends in `-00001-of-00003.gguf`.
fn is_part(name: &str) -> bool {
    let stem = name.strip_suffix(".gguf").unwrap_or(name);
    let mut fields = stem.rsplit('-');
    let number = |field: Option<&str>| {
        field.is_some_and(|f| f.len() == 5 && f.bytes().all(|b| b.is_ascii_digit()))
    };
    number(fields.next()) && fields.next() == Some("of") && number(fields.next())
}

/// Whether a file is what somebody wants: by its name, by a glob, or by a quantisation in its name.
fn fits(name: &str, wanted: &str) -> bool {
    name == wanted || matches(name.as_bytes(), wanted.as_bytes()) || has_word(name, wanted)
}

/// Whether a glob of `*` and `?` matches a whole name.
fn matches(name: &[u8], glob: &[u8]) -> bool {
    match (glob.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', glob)), _) => (0..=name.len()).any(|skip| matches(&name[skip..], glob)),
        (Some((b'?', glob)), Some((_, name))) => matches(name, glob),
        (Some((a, glob)), Some((b, name))) => a == b && matches(name, glob),
        _ => false,
    }
}

/// Whether a word stands in a name with no letter or digit before it and none of its kind behind
/// it: `Q4_K` is not in `Q4_K_M`, nor `Q4_NL` in `IQ4_NL`.
fn has_word(name: &str, word: &str) -> bool {
    let (name, word) = (name.to_ascii_lowercase(), word.to_ascii_lowercase());
    let name = name.strip_suffix(".gguf").unwrap_or(&name);
    let begins = |before: &str| !before.ends_with(|c: char| c.is_ascii_alphanumeric());
    let ends = |after: &str| !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let mut places = name.match_indices(&word);
    !word.is_empty() && places.any(|(at, _)| begins(&name[..at]) && ends(&name[at + word.len()..]))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        Listing::of_names("a/b", names)
    }

    fn chosen(names: &[&str], wanted: Option<&str>) -> Result<Vec<String>, String> {
        let listing = listing(names);
        match choose(&listing, wanted).map_err(|error| error.to_string())? {
            Choice::File(file) => Ok(vec![file.name.clone()]),
            Choice::Directory { files, index } => {
                Ok(files.into_iter().chain(index).map(|file| file.name.clone()).collect())
            }
        }
    }

    #[test]
    fn of_safetensors_all_that_the_daemon_reads_is_fetched_and_no_more() {
        let there = [
            "README.md",
            "config.json",
            "tokenizer.json",
            "tokenizer.model",
            "chat_template.jinja",
            "model.safetensors",
            "model.safetensors.index.json",
            "consolidated.safetensors",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "x.gguf",
        ];
        let expected =
            ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"];
        assert_eq!(chosen(&there, None).unwrap(), expected);
    }

    #[test]
    fn an_index_says_which_files_have_the_weights() {
        let there = [
            "config.json",
            "tokenizer.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "extra.safetensors",
        ];
        let expected = ["config.json", "tokenizer.json", "model.safetensors.index.json"];
        assert_eq!(chosen(&there, None).unwrap(), expected);
        let listing = listing(&there);
        let index = br#"{"weight_map": {"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}}"#;
        let names: Vec<_> =
            shards(&listing, index).unwrap().iter().map(|file| &file.name).collect();
        assert_eq!(names, there[3..5].iter().collect::<Vec<_>>());
        let lie = br#"{"weight_map": {"a": "elsewhere.safetensors"}}"#;
        assert!(
            shards(&listing, lie).unwrap_err().to_string().contains("no elsewhere.safetensors")
        );
    }

    #[test]
    fn what_the_daemon_cannot_load_is_refused_before_anything_is_fetched() {
        let error = chosen(&["config.json", "tokenizer.model", "model.safetensors"], None);
        assert!(error.unwrap_err().starts_with("a/b has no tokenizer.json"));
        let error = chosen(&["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"], None);
        assert!(error.unwrap_err().contains("one of several parts"));
        let error = chosen(&["pytorch_model.bin"], None).unwrap_err();
        assert_eq!(error, "a/b has neither safetensors nor GGUF files");
    }

    #[test]
    fn a_gguf_file_is_chosen_by_name_by_glob_or_by_quantisation() {
        let there =
            ["m-IQ4_NL.gguf", "m-Q4_K.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "UD/m_Q8_0.gguf"];
        for (wanted, expected) in [
            ("m-Q4_K.gguf", "m-Q4_K.gguf"),
            ("Q4_K", "m-Q4_K.gguf"),
            ("q4_k_m", "m-Q4_K_M.gguf"),
            ("Q8_0", "UD/m_Q8_0.gguf"),
            ("*K_S*", "m-Q4_K_S.gguf"),
            ("m-?Q4_NL.gguf", "m-IQ4_NL.gguf"),
        ] {
            assert_eq!(chosen(&there, Some(wanted)).unwrap(), [expected], "{wanted}");
        }
        let error = chosen(&there, Some("*Q4_K_*")).unwrap_err();
        assert!(error.starts_with("2 GGUF files of a/b come into question"), "{error}");
        assert!(error.ends_with("\n  m-Q4_K_M.gguf\n  m-Q4_K_S.gguf"), "{error}");
        let error = chosen(&there, Some("Q4_NL")).unwrap_err();
        assert!(error.starts_with("no GGUF file of a/b is \"Q4_NL\""), "{error}");
    }

    #[test]
    fn the_only_gguf_file_needs_no_name_whatever_lies_beside_it() {
        let there = ["config.json", "m.gguf", "mmproj-m.gguf", "m.imatrix.gguf"];
        assert_eq!(chosen(&there, None).unwrap(), ["m.gguf"]);
    }
}
