//! `--adapter [MODEL/]NAME=PATH`: what requests may add to which model.

use std::path::PathBuf;

use anyhow::{Context, ensure};

use crate::engine::{AdapterSource, Source};

/// Gives an adapter to the model that it names, or to the first one.
pub(super) fn add(text: &str, models: &mut [Source]) -> anyhow::Result<()> {
    let (name, path) = text
        .split_once('=')
        .with_context(|| format!("the adapter {text:?} has no name: give NAME=PATH"))?;
    ensure!(!path.is_empty(), "the adapter {text:?} has no path after '='");
    let (model, name) = match name.rsplit_once('/') {
        Some((model, name)) => (Some(model), name),
        None => (None, name),
    };
    ensure!(!name.is_empty(), "the adapter {text:?} has no name before '='");
    let found = models.iter_mut().find(|source| model.is_none_or(|model| source.name == model));
    let source = found.with_context(|| format!("the adapter {text:?} is of a model not given"))?;
    let taken = source.adapters.iter().any(|adapter| adapter.name == name);
    ensure!(!taken, "two adapters of the model {} are called {name:?}", source.name);
    let path = std::path::absolute(PathBuf::from(path))?;
    source.adapters.push(AdapterSource { name: name.to_owned(), path });
    Ok(())
}

/// What says the same of a model's adapters.
pub(super) fn words(source: &Source) -> impl Iterator<Item = String> {
    let words = |adapter: &AdapterSource| {
        format!("{}/{}={}", source.name, adapter.name, adapter.path.display())
    };
    source.adapters.iter().map(words)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn models() -> Vec<Source> {
        ["first", "org/second"].map(|name| Source::new(name, None)).into()
    }

    #[test]
    fn an_adapter_is_of_the_first_model_unless_it_names_another() {
        let mut models = models();
        for text in ["a=/a.lora", "b=/x=y", "org/second/a=/c"] {
            add(text, &mut models).unwrap();
        }
        let names = |source: &Source| {
            let words =
                |adapter: &AdapterSource| format!("{}={}", adapter.name, adapter.path.display());
            source.adapters.iter().map(words).collect::<Vec<_>>()
        };
        assert_eq!(names(&models[0]), ["a=/a.lora", "b=/x=y"]);
        assert_eq!(names(&models[1]), ["a=/c"]);
    }

    #[test]
    fn an_adapter_without_a_name_a_path_or_a_model_is_refused_as_it_was_said() {
        let cases = [
            ("/a.lora", "no name"),
            ("=/a.lora", "no name"),
            ("first/=/a.lora", "no name"),
            ("a=", "no path"),
            ("other/a=/a.lora", "not given"),
        ];
        for (said, why) in cases {
            let refused = add(said, &mut models()).unwrap_err().to_string();
            assert!(refused.contains(&format!("{said:?}")) && refused.contains(why), "{refused}");
        }
        let mut models = models();
        add("a=/a.lora", &mut models).unwrap();
        let refused = add("first/a=/b.lora", &mut models).unwrap_err().to_string();
        assert!(refused.contains("two adapters") && refused.contains("first"), "{refused}");
    }
}
