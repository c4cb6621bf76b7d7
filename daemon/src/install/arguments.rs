//! What was typed after `tinygptd install`, as the words a supervisor starts the daemon with.
//!
//! A service runs elsewhere and with another environment than the shell it was installed from.
//! So paths become absolute, and what the environment said (it is in the arguments already) becomes a flag.

use std::io;
use std::path::Path;

use clap::ValueEnum;

use crate::config::ServeArgs;

/// The words that say the same as `args`, wherever they are said.
///
/// # Errors
/// A relative path while the current directory is gone.
pub(super) fn words(args: &ServeArgs) -> io::Result<Vec<String>> {
    // Without `..`, so that a flag that is added later is not forgotten here.
    let ServeArgs {
        socket,
        cache_dir,
        no_persist,
        model,
        config,
        threads,
        kv_dtype,
        numerics,
        device,
        queue,
        active_memory,
        cache_memory,
        cache_disk,
        free_floor,
        daily_writes,
        idle_exit,
        grace,
        log,
        log_format,
        self_check: _,
    } = args;
    let mut words = Words::default();
    words.path("--socket", socket.as_deref())?;
    words.path("--cache-dir", cache_dir.as_deref())?;
    words.switch("--no-persist", *no_persist);
    for model in model {
        words.value("--model", Some(absolute_model(model)?));
    }
    words.path("--config", config.as_deref())?;
    words.value("--threads", *threads);
    words.value("--kv-dtype", *kv_dtype);
    words.value("--numerics", numerics.and_then(name));
    words.value("--device", device.as_deref());
    words.value("--queue", *queue);
    words.value("--active-memory", active_memory.map(|size| size.as_u64()));
    words.value("--cache-memory", cache_memory.map(|size| size.as_u64()));
    words.value("--cache-disk", cache_disk.map(|size| size.as_u64()));
    words.value("--free-floor", free_floor.map(|size| size.as_u64()));
    words.value("--daily-writes", daily_writes.map(|size| size.as_u64()));
    words.value("--idle-exit", *idle_exit);
    words.value("--grace", *grace);
    words.value("--log", log.as_deref());
    words.value("--log-format", log_format.and_then(name));
    Ok(words.0)
}

#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    /// One word for flag and value, so that a value may start with a hyphen.
    fn value(&mut self, flag: &str, value: Option<impl ToString>) {
        self.0.extend(value.map(|value| format!("{flag}={}", value.to_string())));
    }

    fn path(&mut self, flag: &str, path: Option<&Path>) -> io::Result<()> {
        let absolute = path.map(std::path::absolute).transpose()?;
        self.value(flag, absolute.as_deref().map(Path::to_string_lossy));
        Ok(())
    }

    fn switch(&mut self, flag: &str, on: bool) {
        self.0.extend(on.then(|| flag.to_owned()));
    }
}

fn name(value: impl ValueEnum) -> Option<String> {
    value.to_possible_value().map(|value| value.get_name().to_owned())
}

/// `NAME=PATH` or a path; the built-in model has a name only.
fn absolute_model(model: &str) -> io::Result<String> {
    if model == crate::config::BUILTIN {
        return Ok(model.to_owned());
    }
    let (prefix, path) = match model.split_once('=') {
        Some((name, path)) => (format!("{name}="), path),
        None => (String::new(), model),
    };
    Ok(format!("{prefix}{}", std::path::absolute(path)?.display()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::Args;

    fn parsed(words: &[String]) -> ServeArgs {
        let program = "tinygptd".to_owned();
        Args::try_parse_from(std::iter::once(&program).chain(words)).unwrap().serve
    }

    fn said_again(line: &str) -> Vec<String> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        super::words(&parsed(&words)).unwrap()
    }

    #[test]
    fn every_flag_is_said_again_in_words_that_mean_the_same() {
        let line = "--socket=/s --cache-dir=/c --no-persist --model=a=/m.gguf --model=/n.gguf \
            --model=builtin --config=/t.toml --threads=3 --kv-dtype=bf16 --numerics=exact \
            --device=cpu --queue=7 --active-memory=1024 --cache-memory=2048 --cache-disk=4096 \
            --free-floor=512 --daily-writes=8192 --idle-exit=15m --grace=5s --log=-x --log-format=json";
        assert_eq!(said_again(line), line.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn sizes_with_units_keep_their_bytes() {
        assert_eq!(said_again("--cache-disk 1GiB"), ["--cache-disk=1073741824"]);
    }

    #[test]
    fn relative_paths_become_absolute_also_behind_a_name() {
        let here = std::env::current_dir().unwrap().display().to_string();
        let words = said_again("--model a=m.gguf --model n.gguf --socket s");
        let expected = ["--socket={}/s", "--model=a={}/m.gguf", "--model={}/n.gguf"];
        assert_eq!(words, expected.map(|word| word.replace("{}", &here)));
    }

    #[test]
    fn nothing_said_is_nothing_said_again() {
        assert!(super::words(&ServeArgs::default()).unwrap().is_empty());
    }
}
