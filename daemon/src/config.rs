//! Raw arguments, environment and file become one resolved [`Config`].
//!
//! Precedence: default < `tinygptd.toml` < environment < flags. Unknown keys are errors.
//! [`ServeArgs`] is what was said, [`Config`] what holds: every default is here and nowhere else.
//! Each component defines its own settings and receives nothing else.

mod adapters;
mod arguments;
mod spelling;
mod warm;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytesize::ByteSize;
use etcetera::BaseStrategy;
use tinygpt_proto::socket::SocketPath;

pub use self::arguments::{Args, Command, LogFormat, ServeArgs, WarmArgs};

use crate::exit::Usage;
use crate::kv::index::Budget;
use crate::model::device::Choice;
use crate::model::found::Places;
use crate::service::Warmth;
use crate::service::models::Rules;
use crate::service::scrape::Place;
use crate::sys::processors;
use crate::{engine, store};

/// Everything that the daemon needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen, unless a supervisor hands sockets over.
    pub socket: SocketPath,
    /// The disk tier; `None` writes nothing.
    pub store: Option<store::Settings>,
    /// What to serve; the first is the default.
    pub models: Vec<engine::Source>,
    /// Where models may lie that are not served.
    pub places: Places,
    /// Every engine's settings.
    pub engine: engine::Settings,
    /// When models leave memory by themselves.
    pub rules: Rules,
    /// Compute threads.
    pub threads: NonZeroUsize,
    /// Where to compute.
    pub device: Choice,
    /// Most bytes of each model's KV on a device.
    pub device_memory: usize,
    /// What to compute at start.
    pub warm: Vec<Warmth>,
    /// Exit when idle for so long.
    pub idle_exit: Option<Duration>,
    /// What running requests get after SIGTERM.
    pub grace: Duration,
    /// Where to tell what is measured.
    pub metrics: Option<Place>,
    /// Log filter.
    pub log: String,
    /// Log form.
    pub log_format: LogFormat,
}

impl Config {
    /// Resolves arguments (which hold the environment already) over the configuration file.
    ///
    /// # Errors
    /// When the file cannot be read or has unknown keys, or a value makes no sense.
    pub fn resolve(args: ServeArgs) -> Result<Self, Usage> {
        let file = file(args.config.as_deref())?;
        Ok(Self::new(args.over(file))?)
    }

    /// The effective configuration as `tinygptd.toml`, under the socket as a comment.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn print(args: ServeArgs) -> Result<String, Usage> {
        let config = Self::resolve(args)?;
        let printed = toml::to_string(&ServeArgs::from(&config));
        let printed = printed.context("cannot write the configuration as TOML")?;
        Ok(format!("# It listens on {:?}.\n{printed}", config.socket.path()))
    }

    fn new(given: ServeArgs) -> anyhow::Result<Self> {
        let socket = SocketPath::resolve(given.socket.as_deref())?;
        let places = places(&given)?;
        let models = models(&given, &places)?;
        let warm = given.warm.iter().map(|warm| warm::warmth(warm, &models));
        Ok(Self {
            store: store_settings(&given, socket.path())?,
            socket,
            warm: warm.collect::<Result<_, _>>()?,
            models,
            places,
            engine: engine::Settings {
                queue: given.queue.unwrap_or(256),
                active_budget: bytes(given.active_memory, ByteSize::gib(4))?,
                cache_budget: Budget {
                    heap: bytes(given.cache_memory, ByteSize::gib(2))?,
                    mappings: MAPPINGS,
                },
                stall: Duration::from_secs(60),
                silence: Duration::from_secs(60),
            },
            rules: Rules {
                unload_after: given.unload_after.map(Into::into),
                memory: given.model_memory.map(|bytes| bytes.as_u64()),
            },
            threads: threads(given.threads)?,
            device: given.device.unwrap_or_default(),
            device_memory: bytes(given.device_memory, ByteSize::gib(4))?,
            idle_exit: given.idle_exit.map(Into::into),
            grace: grace(given.grace)?,
            metrics: given.metrics,
            log: given.log.unwrap_or_else(|| "info".into()),
            log_format: given.log_format.unwrap_or_default(),
        })
    }
}

/// As many as the machine has processors for, unless it is said otherwise.
fn threads(given: Option<NonZeroUsize>) -> anyhow::Result<NonZeroUsize> {
    let Some(threads) = given else { return Ok(processors::compute_threads()?) };
    ensure!(threads.get() <= MOST_THREADS, "at most {MOST_THREADS} threads, not {threads}");
    Ok(threads)
}

fn grace(given: Option<humantime::Duration>) -> anyhow::Result<Duration> {
    let grace = given.map_or(Duration::from_secs(5), Into::into);
    ensure!(grace <= MOST_GRACE, "a grace time is a day at most, not {} s", grace.as_secs());
    Ok(grace)
}

/// More than any machine has cores.
const MOST_THREADS: usize = 1024;

/// Supervisors wait for less.
const MOST_GRACE: Duration = Duration::from_secs(24 * 3600);

/// The named file, else the user's own if there is one.
fn file(named: Option<&Path>) -> anyhow::Result<ServeArgs> {
    let own = base().ok().map(|base| base.config_dir().join("tinygpt/tinygptd.toml"));
    let path = match (named, own) {
        (Some(path), _) => path.to_owned(),
        (None, Some(path)) if path.is_absolute() && path.exists() => path,
        _ => return Ok(ServeArgs::default()),
    };
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let mut said = parse(&text).with_context(|| format!("cannot use {}", path.display()))?;
    warm::locate(&path, &mut said.warm);
    Ok(said)
}

/// What a file says, or what is wrong with it, on one line.
fn parse(text: &str) -> anyhow::Result<ServeArgs> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        anyhow!("line {}: {}", before.matches('\n').count() + 1, error.message())
    })
}

/// The words that say all of it.
impl From<&Config> for ServeArgs {
    fn from(config: &Config) -> Self {
        let size = |bytes: usize| Some(ByteSize(bytes as u64));
        let store = config.store.as_ref();
        Self {
            socket: Some(config.socket.path().to_owned()),
            cache_dir: store.map(|store| store.dir.clone()),
            no_persist: store.is_none(),
            model: config.models.iter().map(model_words).collect(),
            adapter: config.models.iter().flat_map(adapters::words).collect(),
            models_dir: config.places.configured().cloned().collect(),
            config: None,
            threads: Some(config.threads),
            kv_dtype: config.models.first().map(|model| model.codec),
            numerics: config.models.first().map(|model| model.numerics),
            context: config.models.first().and_then(|model| model.context),
            device: Some(config.device),
            device_memory: size(config.device_memory),
            model_memory: config.rules.memory.map(ByteSize),
            unload_after: config.rules.unload_after.map(Into::into),
            queue: Some(config.engine.queue),
            active_memory: size(config.engine.active_budget),
            cache_memory: size(config.engine.cache_budget.heap),
            cache_disk: store.map(|store| ByteSize(store.disk_budget)),
            free_floor: store.map(|store| ByteSize(store.free_floor)),
            daily_writes: store.and_then(|store| store.daily_writes).map(ByteSize),
            idle_exit: config.idle_exit.map(Into::into),
            grace: Some(config.grace.into()),
            metrics: config.metrics.clone(),
            log: Some(config.log.clone()),
            log_format: Some(config.log_format),
            warm: config.warm.iter().map(warm::words).collect(),
        }
    }
}

fn model_words(source: &engine::Source) -> String {
    match &source.path {
        Some(path) => format!("{}={}", source.name, path.display()),
        None => source.name.clone(),
    }
}

/// Segments mapped at once: systems limit mappings of one process to some 65,000.
const MAPPINGS: usize = 4096;

fn store_settings(given: &ServeArgs, socket: &Path) -> anyhow::Result<Option<store::Settings>> {
    if given.no_persist {
        return Ok(None);
    }
    let dir = match &given.cache_dir {
        Some(dir) => dir.clone(),
        None => default_cache_parent()?.join("tinygpt"),
    };
    Ok(Some(store::Settings {
        dir,
        disk_budget: given.cache_disk.unwrap_or(ByteSize::gib(20)).as_u64(),
        free_floor: given.free_floor.unwrap_or(ByteSize::gib(2)).as_u64(),
        daily_writes: given.daily_writes.map(|limit| limit.as_u64()),
        mappings: MAPPINGS,
        minimum_tokens: 64,
        socket: socket.to_owned(),
    }))
}

/// The user's directory for caches.
fn default_cache_parent() -> anyhow::Result<PathBuf> {
    let dir = base()?.cache_dir();
    // XDG's variables are ignored when they are relative, so this comes from HOME.
    ensure!(
        dir.is_absolute(),
        "the default cache directory would be in {dir:?}: set HOME to an absolute path, or name \
         one with --cache-dir"
    );
    Ok(dir)
}

/// Where the user's directories are.
fn base() -> anyhow::Result<impl BaseStrategy> {
    etcetera::choose_base_strategy().context("cannot find the user's home directory")
}

/// The default place for caches, made with its parents when it is the one that is used.
///
/// # Errors
/// When the user's cache directory cannot be made.
pub fn prepare_default_cache(dir: &Path) -> anyhow::Result<()> {
    // Without a default place the one that is used was named.
    let Ok(base) = default_cache_parent() else { return Ok(()) };
    if dir.parent() == Some(base.as_path()) {
        let made = std::fs::create_dir_all(&base);
        made.with_context(|| format!("cannot create {}", base.display()))?;
    }
    Ok(())
}

/// The folders that were named, and those of this user's programs.
pub(crate) fn places(given: &ServeArgs) -> std::io::Result<Places> {
    let configured = given.models_dir.iter().map(std::path::absolute);
    Ok(Places::new(configured.collect::<Result<_, _>>()?))
}

/// `NAME=PATH`, or a path whose last part is the name, without a file's extension, or the name of a
/// model that is found; the built-in model when there is none.
fn models(given: &ServeArgs, places: &Places) -> anyhow::Result<Vec<engine::Source>> {
    let mut models: Vec<engine::Source> = Vec::new();
    let source = |(name, path): (String, _)| engine::Source {
        codec: given.kv_dtype.unwrap_or_default(),
        numerics: given.numerics.unwrap_or_default(),
        context: given.context,
        ..engine::Source::new(name, path)
    };
    for text in &given.model {
        let source = source(parse_model(text, places)?);
        let taken = models.iter().any(|known| known.name == source.name);
        ensure!(!taken, "two models are called {:?}; name one with NAME=PATH", source.name);
        models.push(source);
    }
    if !models.iter().any(|known| known.name == BUILTIN) {
        models.push(source((BUILTIN.into(), None)));
    }
    given.adapter.iter().try_for_each(|text| adapters::add(text, &mut models))?;
    Ok(models)
}

/// The name of the model that comes with the daemon.
pub const BUILTIN: &str = "builtin";

/// The name of a model, and its file.
fn parse_model(text: &str, places: &Places) -> anyhow::Result<(String, Option<PathBuf>)> {
    if text == BUILTIN {
        return Ok((BUILTIN.into(), None));
    }
    let (name, said) = named(text);
    let found = found(said, places);
    let name = match (name, &found) {
        (Some(name), _) => name.to_owned(),
        (None, Some(_)) => said.to_owned(),
        (None, None) => stem(said)?,
    };
    let path = found.unwrap_or_else(|| said.into());
    ensure!(!name.is_empty(), "the model {text:?} has no name before '='");
    ensure!(!path.as_os_str().is_empty(), "the model {text:?} has no path after '='");
    ensure!(
        name != BUILTIN,
        "the model {text:?} would hide the built-in one; call it something else with NAME=PATH"
    );
    Ok((name, Some(std::path::absolute(&path)?)))
}

/// The name of `NAME=PATH`, if it has one, and the path.
pub(crate) fn named(text: &str) -> (Option<&str>, &str) {
    text.split_once('=').map_or((None, text), |(name, path)| (Some(name), path))
}

/// Where the model lies that is found under this name, unless the name is a path.
pub(crate) fn found(name: &str, places: &Places) -> Option<PathBuf> {
    let is_path = Path::new(name).is_absolute() || Path::new(name).exists();
    (!is_path && !name.is_empty()).then(|| places.find(name)).flatten()
}

/// What a model without a name is called.
fn stem(text: &str) -> anyhow::Result<String> {
    let path = Path::new(text);
    let whole = if path.is_dir() { std::path::absolute(path)? } else { path.to_owned() };
    let name = engine::Source::name_of(&whole);
    name.with_context(|| format!("the model {text:?} is not a path of a file"))
}

fn bytes(given: Option<ByteSize>, default: ByteSize) -> anyhow::Result<usize> {
    Ok(usize::try_from(given.unwrap_or(default).as_u64())?)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::kv::codec::Codec;
    use crate::model::Numerics;

    /// The arguments, over a file that says `text`.
    fn given(args: &[&str], text: &str) -> anyhow::Result<ServeArgs> {
        let words = ["tinygptd", "--socket", "/s"].iter().chain(args);
        let args = Args::read(words.map(Into::into))?;
        Ok(args.serve.over(toml::from_str(text)?))
    }

    fn config(args: &[&str], text: &str) -> anyhow::Result<Config> {
        Config::new(given(args, text)?)
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let text = "threads = 3\nqueue = 7\nkv-dtype = \"bf16\"\ncache-disk = \"1 GiB\"";
        let config = config(&["--threads", "5"], text).unwrap();
        assert_eq!((config.threads.get(), config.engine.queue), (5, 7));
        assert_eq!(config.models[0].codec, Codec::BF16);
        assert_eq!(config.models[0].numerics, Numerics::Fast, "unless it is said otherwise");
        assert_eq!(config.store.unwrap().disk_budget, 1 << 30);
    }

    #[test]
    fn unknown_keys_and_unknown_values_are_errors_that_name_them() {
        assert!(config(&[], "socket = \"/x\"").unwrap_err().to_string().contains("socket"));
        assert!(config(&[], "thread = 3").unwrap_err().to_string().contains("thread"));
        assert!(config(&[], "kv-dtype = \"q9\"").unwrap_err().to_string().contains("q9"));
        for (flag, value, most) in [("--threads", "100000", "1024"), ("--grace", "2d", "day")] {
            let refused = config(&[flag, value], "").unwrap_err().to_string();
            assert!(refused.contains(most), "{refused}");
        }
        let numerics = config(&["--numerics", "quick"], "").unwrap_err().to_string();
        assert!(numerics.contains("quick") && numerics.contains("exact"), "{numerics}");
        let device = config(&["--device", "tpu"], "").unwrap_err().to_string();
        assert!(device.contains("tpu") && device.contains("candle-cpu"), "{device}");
    }

    #[test]
    fn a_limit_on_the_context_is_every_models_and_is_printed() {
        let config = config(&["--context", "4096", "--model", "x=/y"], "context = 7").unwrap();
        let limits: Vec<_> = config.models.iter().map(|model| model.context).collect();
        assert_eq!(limits, [NonZeroUsize::new(4096); 2]);
        assert_eq!(ServeArgs::from(&config).context, NonZeroUsize::new(4096));
        assert!(self::config(&["--context", "0"], "").is_err());
    }

    #[test]
    fn a_model_is_named_by_its_stem_or_explicitly_and_the_builtin_is_always_there() {
        let names = |args: &[&str]| {
            let config = config(args, "").unwrap();
            config.models.into_iter().map(|model| model.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["builtin"]);
        assert_eq!(names(&["--model", "/a/b.c.gguf", "--model", "x=/y"]), ["b.c", "x", "builtin"]);
        assert!(config(&["--model", "/a/x.gguf", "--model", "/b/x.gguf"], "").is_err());
        let directory = tempfile::Builder::new().prefix("q-0.").suffix(".6B").tempdir().unwrap();
        let name = directory.path().file_name().unwrap().to_str().unwrap();
        assert_eq!(names(&["--model", directory.path().to_str().unwrap()])[0], name);
    }

    #[test]
    fn a_model_that_has_no_name_no_path_or_the_builtins_name_is_refused_as_it_was_said() {
        let cases = [
            ("x=", "no path"),
            ("=/x.gguf", "no name"),
            ("", "not a path"),
            ("/", "not a path"),
            ("builtin=/other.gguf", "built-in"),
            ("/other/builtin.gguf", "built-in"),
        ];
        for (said, why) in cases {
            let refused = config(&["--model", said], "").unwrap_err().to_string();
            assert!(refused.contains(&format!("{said:?}")) && refused.contains(why), "{refused}");
        }
        assert_eq!(config(&["--model", "builtin"], "").unwrap().models.len(), 1);
    }

    #[test]
    fn times_and_sizes_read_the_same_as_flags_and_in_the_file() {
        let said = |args: &[&str], text: &str| {
            let config = config(args, text).unwrap();
            (config.grace.as_secs(), config.store.unwrap().disk_budget)
        };
        assert_eq!(said(&["--grace", "7", "--cache-disk", "4096"], ""), (7, 4096));
        for text in ["grace = 7\ncache-disk = 4096", "grace = \"7\"\ncache-disk = \"4 KiB\""] {
            assert_eq!(said(&[], text), (7, 4096), "{text}");
        }
        let refusals = [
            config(&["--grace", "0.5"], ""),
            config(&[], "grace = 0.5"),
            config(&["--cache-disk", "0.5"], ""),
            config(&[], "cache-disk = 0.5"),
        ];
        for refused in refusals {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("\"0.5\" is no"), "{refused}");
        }
    }

    #[test]
    fn no_persist_has_no_store() {
        assert!(config(&["--no-persist"], "").unwrap().store.is_none());
    }

    #[test]
    fn the_printed_configuration_reads_back_as_itself() {
        let cases = [
            "threads = 3\nmetrics = \"127.0.0.1:9100\"",
            "metrics = \"/run/m.sock\"",
            "no-persist = true\nidle-exit = \"90s\"",
            "unload-after = \"15m\"\nmodel-memory = \"3 GiB\"",
            "model = [\"a=/m.gguf\"]\nadapter = [\"x=/x.lora\", \"builtin/x=/a=b\"]",
            "threads = 2\n[[warm]]\nprompt-file = \"/p\"\nkv-dtype = \"f32\"\npin = \"90m\"\n[[warm]]\nprompt-file = \"/q\"",
            "device = \"cuda:1\"\ncache-disk = 1500000001\ndaily-writes = \"1.5 GiB\"\nkv-dtype = \"f32\"",
        ];
        for text in cases {
            let config = config(&[], text).unwrap();
            let printed = toml::to_string(&ServeArgs::from(&config)).unwrap();
            let again = super::tests::config(&[], &printed).unwrap();
            assert_eq!(format!("{config:?}"), format!("{again:?}"), "{printed}");
        }
    }
}
