//! Raw arguments, environment and file become one resolved [`Config`].
//!
//! Precedence: default < `tinygptd.toml` < environment < flags. Unknown keys are errors.
//! Each component defines its own settings and receives nothing else.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytesize::ByteSize;
use clap::builder::Resettable;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use etcetera::BaseStrategy;
use serde::{Deserialize, Serialize};
use tinygpt_proto::socket::SocketPath;

use crate::exit::Usage;
use crate::kv::codec::Codec;
use crate::kv::index::Budget;
use crate::{engine, store};

/// Owns a language model and its KV caches, and serves them over a Unix socket.
#[derive(Debug, Parser)]
#[command(
    name = "tinygptd",
    version,
    args_conflicts_with_subcommands = true,
    args_override_self = true
)]
pub struct Args {
    /// Flags of the daemon itself.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Something else than serving.
    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Args {
    /// Reads a command line and the environment, in which an empty variable counts as unset, as
    /// it does for every client.
    ///
    /// # Errors
    /// When the words make no sense, or ask for help.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = without_empty_variables(Self::command());
        let matches = command.try_get_matches_from_mut(words)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

fn without_empty_variables(command: clap::Command) -> clap::Command {
    let look = |arg: Arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(Resettable::Reset),
        _ => arg,
    };
    command.mut_args(look).mut_subcommands(without_empty_variables)
}

/// What to do instead of serving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print the effective configuration as TOML
    Config(ServeArgs),
    /// Install the service for this user (launchd or systemd), activated by its socket
    Install(ServeArgs),
    /// Remove the service of this user
    Uninstall,
    /// Print the launchd property list that `install` would write for this user
    PrintPlist(ServeArgs),
    /// Print the manual page
    #[command(hide = true)]
    Man,
    /// Print completions for a shell
    #[command(hide = true)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Flags of the daemon. Each is also a key of `tinygptd.toml`, except `--config`, `--self-check`
/// and `--socket`: no client reads that file, so none would find a socket that it names.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ServeArgs {
    /// Socket to listen on
    #[arg(long, value_name = "PATH", env = "TINYGPT_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Directory of the persistent KV caches
    #[arg(long, value_name = "DIR", env = "TINYGPT_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Write nothing to disk
    #[arg(long)]
    pub no_persist: bool,
    /// Model to serve (.tinygpt or .gguf), repeatable; the first one serves requests that name none
    #[arg(long, value_name = "[NAME=]PATH")]
    pub model: Vec<String>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "TINYGPT_CONFIG")]
    pub config: Option<PathBuf>,
    /// Compute threads [default: one for each core]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// KV codec of requests that name none: f32, f16 or bf16 [default: f16]
    #[arg(long, value_name = "D")]
    pub kv_dtype: Option<Codec>,
    /// Arithmetic; `fast` is not in this version
    #[arg(long, value_enum)]
    pub numerics: Option<Numerics>,
    /// Where to compute: auto or cpu; cuda, metal and candle-cpu are not in this version
    #[arg(long)]
    pub device: Option<String>,
    /// Most requests waiting for each model [default: 256]
    #[arg(long, value_name = "N")]
    pub queue: Option<usize>,
    /// Most bytes of KV that running requests may own [default: 4 GiB]
    #[arg(long, value_name = "BYTES")]
    pub active_memory: Option<ByteSize>,
    /// Most heap bytes of cached blocks [default: 2 GiB]
    #[arg(long, value_name = "BYTES")]
    pub cache_memory: Option<ByteSize>,
    /// Most bytes of cached blocks on disk [default: 20 GiB]
    #[arg(long, value_name = "BYTES")]
    pub cache_disk: Option<ByteSize>,
    /// Free disk space below which nothing is written [default: 2 GiB]
    #[arg(long, value_name = "BYTES")]
    pub free_floor: Option<ByteSize>,
    /// Most bytes written to disk in a day [default: no limit]
    #[arg(long, value_name = "BYTES")]
    pub daily_writes: Option<ByteSize>,
    /// Exit after this long without a request, such as 15m [default: never]
    #[arg(long, value_name = "TIME")]
    pub idle_exit: Option<humantime::Duration>,
    /// Time that running requests get to end after SIGTERM [default: 5s]
    #[arg(long, value_name = "TIME")]
    pub grace: Option<humantime::Duration>,
    /// Log filter, such as info or tinygptd=debug [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Form of log lines on stderr
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Recompute a sample of cached prompts, compare bit for bit, and exit
    #[arg(long)]
    pub self_check: bool,
}

/// Which arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numerics {
    /// f32 activations over packed weights.
    Exact,
    /// int8 activations; refused in this version.
    Fast,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// `tinygptd.toml`, and the form in which `tinygptd config` prints.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    cache_dir: Option<PathBuf>,
    no_persist: Option<bool>,
    model: Option<Vec<String>>,
    threads: Option<NonZeroUsize>,
    kv_dtype: Option<String>,
    numerics: Option<Numerics>,
    device: Option<String>,
    queue: Option<usize>,
    active_memory: Option<ByteSize>,
    cache_memory: Option<ByteSize>,
    cache_disk: Option<ByteSize>,
    free_floor: Option<ByteSize>,
    daily_writes: Option<ByteSize>,
    idle_exit: Option<String>,
    grace: Option<String>,
    log: Option<String>,
    log_format: Option<LogFormat>,
}

/// Everything that the daemon needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen, unless a supervisor hands sockets over.
    pub socket: SocketPath,
    /// The disk tier; `None` writes nothing.
    pub store: Option<store::Settings>,
    /// What to serve; the first is the default.
    pub models: Vec<engine::Source>,
    /// Every engine's settings.
    pub engine: engine::Settings,
    /// Compute threads.
    pub threads: NonZeroUsize,
    /// Exit when idle for so long.
    pub idle_exit: Option<Duration>,
    /// What running requests get after SIGTERM.
    pub grace: Duration,
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
        Ok(Self::with_file(args)?.0)
    }

    /// The effective configuration as `tinygptd.toml`, under the socket as a comment.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn print(args: ServeArgs) -> Result<String, Usage> {
        let (config, mut file) = Self::with_file(args)?;
        file.fill(&config);
        let printed = toml::to_string(&file).context("cannot write the configuration as TOML")?;
        Ok(format!("# It listens on {:?}.\n{printed}", config.socket.path()))
    }

    /// The configuration, and what of it was given.
    fn with_file(args: ServeArgs) -> anyhow::Result<(Self, File)> {
        let socket = SocketPath::resolve(args.socket.as_deref())?;
        let found = File::find(args.config.as_deref())?;
        let file = args.over(found);
        Ok((Self::new(socket, file.clone())?, file))
    }
}

impl File {
    /// The named file, else the user's own if there is one.
    fn find(named: Option<&Path>) -> anyhow::Result<Self> {
        let own = etcetera::choose_base_strategy().ok();
        let own = own.map(|base| base.config_dir().join("tinygpt/tinygptd.toml"));
        let path = match (named, own) {
            (Some(path), _) => path.to_owned(),
            (None, Some(path)) if path.exists() => path,
            _ => return Ok(Self::default()),
        };
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("cannot use {}", path.display()))
    }

    /// Fills in what was defaulted.
    fn fill(&mut self, config: &Config) {
        let bytes = |n: usize| Some(ByteSize(n as u64));
        self.cache_dir = config.store.as_ref().map(|store| store.dir.clone());
        self.no_persist = Some(config.store.is_none());
        let model = |source: &engine::Source| match &source.path {
            Some(path) => format!("{}={}", source.name, path.display()),
            None => source.name.clone(),
        };
        self.model = Some(config.models.iter().map(model).collect());
        self.threads = Some(config.threads);
        self.kv_dtype.get_or_insert_with(|| Codec::default().to_string());
        self.numerics = Some(Numerics::Exact);
        self.device = Some("cpu".into());
        self.queue = Some(config.engine.queue);
        self.active_memory = bytes(config.engine.active_budget);
        self.cache_memory = bytes(config.engine.cache_budget.heap);
        self.cache_disk = config.store.as_ref().map(|store| ByteSize(store.disk_budget));
        self.free_floor = config.store.as_ref().map(|store| ByteSize(store.free_floor));
        self.grace = Some(humantime::format_duration(config.grace).to_string());
        self.log = Some(config.log.clone());
        self.log_format = Some(config.log_format);
    }
}

impl ServeArgs {
    fn over(self, file: File) -> File {
        let duration = |duration: humantime::Duration| duration.to_string();
        File {
            cache_dir: self.cache_dir.or(file.cache_dir),
            no_persist: if self.no_persist { Some(true) } else { file.no_persist },
            model: if self.model.is_empty() { file.model } else { Some(self.model) },
            threads: self.threads.or(file.threads),
            kv_dtype: self.kv_dtype.map(|codec| codec.to_string()).or(file.kv_dtype),
            numerics: self.numerics.or(file.numerics),
            device: self.device.or(file.device),
            queue: self.queue.or(file.queue),
            active_memory: self.active_memory.or(file.active_memory),
            cache_memory: self.cache_memory.or(file.cache_memory),
            cache_disk: self.cache_disk.or(file.cache_disk),
            free_floor: self.free_floor.or(file.free_floor),
            daily_writes: self.daily_writes.or(file.daily_writes),
            idle_exit: self.idle_exit.map(duration).or(file.idle_exit),
            grace: self.grace.map(duration).or(file.grace),
            log: self.log.or(file.log),
            log_format: self.log_format.or(file.log_format),
        }
    }
}

impl Config {
    fn new(socket: SocketPath, file: File) -> anyhow::Result<Self> {
        if file.numerics == Some(Numerics::Fast) {
            bail!("numerics = \"fast\" is not in this version; \"exact\" is");
        }
        match file.device.as_deref().unwrap_or("auto") {
            "auto" | "cpu" => {}
            other => bail!("device {other:?} is not in this version; auto and cpu are"),
        }
        let codec = file.kv_dtype.as_deref().map_or(Ok(Codec::default()), str::parse)?;
        let store = store_settings(&file, socket.path())?;
        let models = models(file.model.unwrap_or_default(), codec)?;
        let span = |text: &Option<String>| text.as_deref().map(humantime::parse_duration);
        Ok(Self {
            socket,
            store,
            models,
            engine: engine::Settings {
                queue: file.queue.unwrap_or(256),
                active_budget: bytes(file.active_memory, ByteSize::gib(4))?,
                cache_budget: Budget {
                    heap: bytes(file.cache_memory, ByteSize::gib(2))?,
                    mappings: MAPPINGS,
                },
                stall: Duration::from_secs(60),
            },
            threads: match file.threads {
                Some(threads) => threads,
                None => std::thread::available_parallelism()?,
            },
            idle_exit: span(&file.idle_exit).transpose()?,
            grace: span(&file.grace).transpose()?.unwrap_or(Duration::from_secs(5)),
            log: file.log.unwrap_or_else(|| "info".into()),
            log_format: file.log_format.unwrap_or_default(),
        })
    }
}

/// Segments mapped at once: systems limit mappings of one process to some 65,000.
const MAPPINGS: usize = 4096;

fn store_settings(file: &File, socket: &Path) -> anyhow::Result<Option<store::Settings>> {
    if file.no_persist == Some(true) {
        return Ok(None);
    }
    let dir = match &file.cache_dir {
        Some(dir) => dir.clone(),
        None => default_cache_parent()?.join("tinygpt"),
    };
    Ok(Some(store::Settings {
        dir,
        disk_budget: file.cache_disk.unwrap_or(ByteSize::gib(20)).as_u64(),
        free_floor: file.free_floor.unwrap_or(ByteSize::gib(2)).as_u64(),
        daily_writes: file.daily_writes.map(|limit| limit.as_u64()),
        mappings: MAPPINGS,
        minimum_tokens: 64,
        socket: socket.to_owned(),
    }))
}

/// The user's directory for caches.
///
/// # Errors
/// When the user has no home directory.
pub fn default_cache_parent() -> anyhow::Result<PathBuf> {
    Ok(etcetera::choose_base_strategy()?.cache_dir())
}

/// `NAME=PATH`, or a path whose stem is the name; the built-in model when there is none.
fn models(given: Vec<String>, codec: Codec) -> anyhow::Result<Vec<engine::Source>> {
    let mut models: Vec<engine::Source> = Vec::new();
    for text in given {
        let source = parse_model(&text, codec)?;
        let taken = models.iter().any(|known| known.name == source.name);
        ensure!(!taken, "two models are called {:?}; name one with NAME=PATH", source.name);
        models.push(source);
    }
    if !models.iter().any(|known| known.name == BUILTIN) {
        models.push(engine::Source { name: BUILTIN.into(), path: None, codec });
    }
    Ok(models)
}

/// The name of the model that comes with the daemon.
pub const BUILTIN: &str = "builtin";

fn parse_model(text: &str, codec: Codec) -> anyhow::Result<engine::Source> {
    if text == BUILTIN {
        return Ok(engine::Source { name: BUILTIN.into(), path: None, codec });
    }
    let (name, path) = match text.split_once('=') {
        Some((name, path)) => (name.to_owned(), PathBuf::from(path)),
        None => {
            let path = PathBuf::from(text);
            let stem = path.file_stem().context("a model path needs a file name")?;
            (stem.to_string_lossy().into_owned(), path)
        }
    };
    ensure!(!name.is_empty(), "a model needs a name before '=' in {text:?}");
    let path = std::path::absolute(&path)?;
    Ok(engine::Source { name, path: Some(path), codec })
}

fn bytes(given: Option<ByteSize>, default: ByteSize) -> anyhow::Result<usize> {
    Ok(usize::try_from(given.unwrap_or(default).as_u64())?)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn file(text: &str) -> anyhow::Result<File> {
        Ok(toml::from_str(text)?)
    }

    fn socket() -> SocketPath {
        SocketPath::resolve(Some(Path::new("/s"))).unwrap()
    }

    fn config(args: &[&str], text: &str) -> anyhow::Result<Config> {
        let args = Args::try_parse_from([&["tinygptd"], args].concat())?;
        Config::new(socket(), args.serve.over(file(text)?))
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let text = "threads = 3\nqueue = 7\nkv-dtype = \"bf16\"\ncache-disk = \"1 GiB\"";
        let config = config(&["--threads", "5"], text).unwrap();
        assert_eq!((config.threads.get(), config.engine.queue), (5, 7));
        assert_eq!(config.models[0].codec, Codec::BF16);
        assert_eq!(config.store.unwrap().disk_budget, 1 << 30);
    }

    #[test]
    fn unknown_keys_and_unknown_values_are_errors_that_name_them() {
        assert!(config(&[], "socket = \"/x\"").unwrap_err().to_string().contains("socket"));
        assert!(config(&[], "thread = 3").unwrap_err().to_string().contains("thread"));
        assert!(config(&[], "kv-dtype = \"q9\"").unwrap_err().to_string().contains("q9"));
        assert!(config(&["--numerics", "fast"], "").unwrap_err().to_string().contains("fast"));
        assert!(config(&["--device", "cuda"], "").unwrap_err().to_string().contains("cuda"));
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
    }

    #[test]
    fn no_persist_has_no_store() {
        assert!(config(&["--no-persist"], "").unwrap().store.is_none());
    }

    #[test]
    fn the_printed_configuration_reads_back_as_itself() {
        let mut printed = file("threads = 3").unwrap();
        let config = Config::new(socket(), printed.clone()).unwrap();
        printed.fill(&config);
        let text = toml::to_string(&printed).unwrap();
        let again = Config::new(socket(), file(&text).unwrap()).unwrap();
        assert_eq!(format!("{config:?}"), format!("{again:?}"));
    }
}
