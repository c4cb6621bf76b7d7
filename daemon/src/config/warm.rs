//! `[[warm]]`: prompts that the daemon computes at its start, and pins.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};

use super::arguments::WarmArgs;
use crate::engine::Source;
use crate::service::Warmth;
use crate::store::LONGEST_LEASE;

/// Finds the files that the configuration in `file` names.
pub(super) fn locate(file: &Path, warm: &mut [WarmArgs]) {
    let folder = file.parent().unwrap_or(Path::new(""));
    warm.iter_mut().for_each(|warm| warm.prompt_file = folder.join(&warm.prompt_file));
}

/// What is meant for one of `models`. Whether the prompt can be read is seen at the start.
pub(super) fn warmth(given: &WarmArgs, models: &[Source]) -> anyhow::Result<Warmth> {
    let WarmArgs { model, prompt_file, namespace, kv_dtype, adapter, pin } = given.clone();
    let shown = prompt_file.display();
    ensure!(prompt_file != PathBuf::new(), "a prompt to warm has no prompt-file");
    let found = models.iter().find(|source| model.is_empty() || source.name == model);
    let source = found
        .with_context(|| format!("{shown} is to be warmed for {model:?}, which is no model"))?;
    let known = adapter.is_empty() || source.adapters.iter().any(|known| known.name == adapter);
    ensure!(known, "{shown} is to be warmed with the adapter {adapter:?}, which {model:?} lacks");
    let pin: Option<Duration> = pin.map(Into::into);
    let possible = Duration::from_secs(1)..=LONGEST_LEASE;
    let days = LONGEST_LEASE.as_secs() / 86_400;
    ensure!(
        pin.is_none_or(|pin| possible.contains(&pin)),
        "{shown} is to be pinned for a time that is not between 1 s and {days} days"
    );
    Ok(Warmth {
        model: source.name.clone(),
        prompt_file: std::path::absolute(&prompt_file)?,
        namespace,
        kv_dtype: kv_dtype.map(|codec| codec.name().to_owned()).unwrap_or_default(),
        adapter,
        pin,
    })
}

/// The words that say the same.
pub(super) fn words(warmth: &Warmth) -> WarmArgs {
    WarmArgs {
        model: warmth.model.clone(),
        prompt_file: warmth.prompt_file.clone(),
        namespace: warmth.namespace.clone(),
        kv_dtype: warmth.kv_dtype.parse().ok(),
        adapter: warmth.adapter.clone(),
        pin: warmth.pin.map(Into::into),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::{Config, ServeArgs};

    fn models() -> Vec<Source> {
        ["first", "second"].map(|name| Source::new(name, None)).into()
    }

    fn read(text: &str) -> anyhow::Result<Vec<Warmth>> {
        let said: ServeArgs = toml::from_str(text)?;
        said.warm.iter().map(|warm| warmth(warm, &models())).collect()
    }

    #[test]
    fn a_prompt_file_is_relative_to_the_configuration_and_the_rest_has_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tinygptd.toml");
        let words =
            "[[warm]]\nprompt-file = \"a/b\"\n[[warm]]\nprompt_file = \"/c\"\npin = \"24h\"";
        std::fs::write(&file, words).unwrap();
        let args =
            ServeArgs { socket: Some("/s".into()), config: Some(file), ..ServeArgs::default() };
        let warm = Config::resolve(args).unwrap().warm;
        let [one, other] = &warm[..] else { panic!("two prompts are named") };
        assert_eq!((&*one.model, &*one.kv_dtype, one.pin), ("builtin", "", None));
        assert_eq!(one.prompt_file, folder.path().join("a/b"));
        assert_eq!(other.prompt_file, Path::new("/c"));
        assert_eq!(other.pin, Some(Duration::from_hours(24)));
    }

    #[test]
    fn what_the_daemon_does_not_have_or_cannot_do_is_an_error_that_names_it() {
        let cases = [
            ("", "prompt-file"),
            ("prompt-file = \"/p\"\nmodel = \"third\"", "\"third\""),
            ("prompt-file = \"/p\"\nadapter = \"mine\"", "\"mine\""),
            ("prompt-file = \"/p\"\nkv-dtype = \"q9\"", "q9"),
            ("prompt-file = \"/p\"\npin = \"31days\"", "30 days"),
            ("prompt-file = \"/p\"\npin = \"0s\"", "1 s"),
            ("prompt-file = \"/p\"\nlease = \"1h\"", "lease"),
        ];
        for (said, why) in cases {
            let refused = read(&format!("[[warm]]\n{said}")).unwrap_err().to_string();
            assert!(refused.contains(why), "{said}: {refused}");
        }
    }
}
