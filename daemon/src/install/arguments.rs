//! What was typed after `tinygptd install`, as the words a supervisor starts the daemon with.
//!
//! A service runs elsewhere and with another environment than the shell it was installed from.
//! So paths become absolute, and what the environment said (it is in the arguments already) becomes a flag.

use std::io;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::config::{self, ServeArgs};
use crate::model::found::Places;

/// The words that say the same as `args`, wherever they are said.
///
/// # Errors
/// A relative path while the current directory is gone, or a path that no text can hold.
pub(super) fn words(args: &ServeArgs) -> io::Result<Vec<String>> {
    let places = config::places(args)?;
    let args = ServeArgs {
        cache_dir: absolute(args.cache_dir.as_deref())?,
        model: args
            .model
            .iter()
            .map(|model| absolute_model(model, &places))
            .collect::<Result<_, _>>()?,
        models_dir: args.models_dir.iter().map(std::path::absolute).collect::<Result<_, _>>()?,
        adapter: args
            .adapter
            .iter()
            .map(|named| absolute_behind_name(named))
            .collect::<Result<_, _>>()?,
        ..args.clone()
    };
    // The two that are no keys of the file; all others are.
    let mut options = Table::try_from(&args).map_err(io::Error::other)?;
    for (name, path) in [("socket", &args.socket), ("config", &args.config)] {
        let path = absolute(path.as_deref())?.map(Value::try_from).transpose();
        options.extend(path.map_err(io::Error::other)?.map(|path| (name.to_owned(), path)));
    }
    Ok(options.into_iter().flat_map(|(name, value)| said(&name, value)).collect())
}

/// An option as words, one for each value, so that a value may start with a hyphen.
fn said(name: &str, value: Value) -> Vec<String> {
    match value {
        Value::Boolean(on) => on.then(|| format!("--{name}")).into_iter().collect(),
        Value::Array(values) => values.into_iter().flat_map(|value| said(name, value)).collect(),
        Value::String(text) => vec![format!("--{name}={text}")],
        value => vec![format!("--{name}={value}")],
    }
}

fn absolute(path: Option<&Path>) -> io::Result<Option<PathBuf>> {
    path.map(std::path::absolute).transpose()
}

/// `NAME=PATH` or a path, also of what was said by the name that it is found under; the built-in
/// model has a name only.
fn absolute_model(model: &str, places: &Places) -> io::Result<String> {
    if model == config::BUILTIN {
        return Ok(model.to_owned());
    }
    let (name, path) = config::named(model);
    let found = config::found(path, places);
    let name = name.or_else(|| found.is_some().then_some(path));
    let path = found.map_or_else(|| std::path::absolute(path), Ok)?;
    Ok(join(name, &path))
}

/// A path, the name before it left as it is.
fn absolute_behind_name(words: &str) -> io::Result<String> {
    let (name, path) = config::named(words);
    Ok(join(name, &std::path::absolute(path)?))
}

fn join(name: Option<&str>, path: &Path) -> String {
    let path = path.display();
    name.map_or_else(|| path.to_string(), |name| format!("{name}={path}"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::config::Args;

    fn said_again(line: &str) -> Vec<String> {
        let words = ["tinygptd"].into_iter().chain(line.split_whitespace());
        super::words(&Args::try_parse_from(words).unwrap().serve).unwrap()
    }

    /// What is said again, in the order of the flags' names.
    fn check(line: &str, expected: &[&str]) {
        let mut words = said_again(line);
        words.sort();
        assert_eq!(words, expected);
    }

    #[test]
    fn every_flag_is_said_again_in_words_that_mean_the_same() {
        let line = "--active-memory=1KiB --adapter=m/a=/a.lora --cache-dir=/c --cache-disk=4KiB --cache-memory=2001 \
            --config=/t.toml --context=4096 --daily-writes=8KiB --device-memory=9MiB --device=cpu --free-floor=512 --grace=5s \
            --idle-exit=15m --kv-dtype=bf16 --log-format=json --log=-x --metrics=127.0.0.1:9 \
            --model-memory=6KiB --model=/n.gguf --model=a=/m.gguf --model=builtin --models-dir=/a --models-dir=/b \
            --no-persist --numerics=exact --queue=7 --socket=/s --threads=3 --unload-after=9s";
        check(line, &line.split_whitespace().collect::<Vec<_>>());
        let flags = Args::command();
        let flags = flags.get_arguments().filter_map(|flag| flag.get_long());
        for flag in flags.filter(|flag| *flag != "self-check") {
            assert!(line.contains(&format!("--{flag}")), "--{flag} is not tried here");
        }
    }

    #[test]
    fn models_keep_their_order() {
        let line = "--model=b=/b.gguf --model=/a.gguf";
        assert_eq!(said_again(line), line.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn relative_paths_become_absolute_also_behind_a_name() {
        let here = std::env::current_dir().unwrap().display().to_string();
        let expected =
            ["--adapter=x={}/y", "--model={}/n.gguf", "--model=a={}/m.gguf", "--socket={}/s"];
        let expected = expected.map(|word| word.replace("{}", &here));
        let expected: Vec<_> = expected.iter().map(String::as_str).collect();
        check("--model a=m.gguf --model n.gguf --adapter x=y --socket s", &expected);
    }

    #[test]
    fn nothing_said_is_nothing_said_again() {
        assert!(super::words(&ServeArgs::default()).unwrap().is_empty());
    }
}
