//! What the daemon is told, as it was said.
//!
//! The flags of serving and the keys of `tinygptd.toml` are the same thing, [`ServeArgs`], so that
//! an option has one name and one type wherever it is said. Nothing is defaulted here: what nobody
//! said is `None`, and [`Config`](super::Config) decides.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::spelling;
use crate::exit::Exit;
use crate::kv::codec::Codec;
use crate::model::Numerics;
use crate::model::device::Choice;
use crate::service::scrape::Place;

/// Owns a language model and its KV caches, and serves them over a Unix socket.
#[derive(Debug, Parser)]
#[command(
    name = "tinygptd",
    version,
    after_help = exit_table(),
    args_override_self = true
)]
pub struct Args {
    /// Flags of the daemon itself.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Recompute a sample of cached prompts, compare bit for bit, and exit
    #[arg(long)]
    pub self_check: bool,
    /// Something else than serving.
    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Args {
    /// Reads a command line and the environment, in which an empty variable counts as unset, as
    /// it does for every client. Flags may stand on either side of a command that takes them.
    ///
    /// # Errors
    /// When the words make no sense, or ask for help.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = without_empty_variables(Self::command());
        let matches = command.try_get_matches_from_mut(words)?;
        refuse_strays(&mut command, &matches)?;
        let mut args =
            Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        if let Some(Command::Config(own) | Command::Install(own) | Command::PrintPlist(own)) =
            &mut args.command
        {
            *own = std::mem::take(own).over(std::mem::take(&mut args.serve));
        }
        Ok(args)
    }
}

/// The environment is read once, before the commands: their own flags win over it, and so do those
/// that stand before them.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let look = |arg: Arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(Resettable::Reset),
        _ => arg,
    };
    let silent = |command: clap::Command| command.mut_args(|arg| arg.env(Resettable::Reset));
    command.mut_args(look).mut_subcommands(silent)
}

/// Flags before a command that has no use for them.
fn refuse_strays(command: &mut clap::Command, matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some((name, _)) = matches.subcommand() else { return Ok(()) };
    let taken: Vec<_> = command.find_subcommand(name).into_iter().collect();
    let taken: Vec<_> = taken.into_iter().flat_map(clap::Command::get_arguments).collect();
    let stray = command.get_arguments().find(|arg| {
        let said = matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        said && !taken.iter().any(|taken| taken.get_id() == arg.get_id())
    });
    let Some(flag) = stray.and_then(Arg::get_long) else { return Ok(()) };
    let words = format!("--{flag} says nothing to the command '{name}'");
    Err(command.error(ErrorKind::ArgumentConflict, words))
}

/// The table of exit codes, as `--help` shows it.
fn exit_table() -> String {
    let row = |exit: Exit| format!("  {:>2}  {}\n", exit.code(), exit.meaning());
    format!("Exit codes:\n{}", Exit::ALL.map(row).concat())
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
    /// Write the manual pages, one for each command, into a directory
    #[command(hide = true)]
    Man {
        /// The directory.
        dir: PathBuf,
    },
    /// Print completions for a shell
    #[command(hide = true)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Flags of the daemon. Each is also a key of `tinygptd.toml`, except `--config` and `--socket`: no
/// client reads that file, so none would find a socket that it names. What to warm is said in the
/// file only.
#[derive(Debug, Clone, Default, clap::Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServeArgs {
    /// Socket to listen on
    #[arg(long, value_name = "PATH", env = "TINYGPT_SOCKET")]
    #[serde(skip)]
    pub socket: Option<PathBuf>,
    /// Directory of the persistent KV caches
    #[arg(long, value_name = "DIR", env = "TINYGPT_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Write nothing to disk
    #[arg(long)]
    pub no_persist: bool,
    /// Model to serve (.tinygpt, .gguf, a Hugging Face directory, or the name of one that `tinygpt-client models` finds), repeatable; the first one serves requests that name none and is loaded at the start, the others when they are asked for
    #[arg(long, value_name = "[NAME=]PATH")]
    pub model: Vec<String>,
    /// LoRA adapter that requests may name (.lora or a PEFT directory), repeatable; of the first model, or of MODEL
    #[arg(long, value_name = "[MODEL/]NAME=PATH")]
    pub adapter: Vec<String>,
    /// Folder with models to find beside those of Hugging Face, LM Studio and Ollama, repeatable
    #[arg(long, value_name = "DIR")]
    pub models_dir: Vec<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "TINYGPT_CONFIG")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Compute threads [default: one for each core; on a Mac, each performance core]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// KV codec of requests that name none: f32, f16 or bf16 [default: f16]
    #[arg(long, value_name = "D")]
    #[serde(with = "spelling")]
    pub kv_dtype: Option<Codec>,
    /// Arithmetic: fast (8-bit activations over quantised weights) or exact [default: fast]
    #[arg(long, value_name = "N")]
    #[serde(with = "spelling")]
    pub numerics: Option<Numerics>,
    /// Most tokens of one sequence, prompt and answer together [default: as many as the model allows]
    #[arg(long, value_name = "N")]
    pub context: Option<NonZeroUsize>,
    /// Where to compute: auto, cpu, cuda, cuda:N, metal or candle-cpu [default: auto]
    #[arg(long)]
    #[serde(with = "spelling")]
    pub device: Option<Choice>,
    /// Most bytes of each model's KV on a device [default: 4 GiB]
    #[arg(long, value_name = "BYTES")]
    #[serde(with = "spelling")]
    pub device_memory: Option<ByteSize>,
    /// Most bytes of the weights of all models: for more, the ones that were without a request for longest are unloaded [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = spelling::read::<ByteSize>)]
    #[serde(with = "spelling")]
    pub model_memory: Option<ByteSize>,
    /// Unload a model after this long without a request for it: 15m, or seconds; the next one loads it again [default: never]
    #[arg(long, value_name = "TIME", value_parser = spelling::read::<humantime::Duration>)]
    #[serde(with = "spelling")]
    pub unload_after: Option<humantime::Duration>,
    /// Most requests waiting for each model [default: 256]
    #[arg(long, value_name = "N")]
    pub queue: Option<usize>,
    /// Most bytes of KV that running requests may own [default: 4 GiB]
    #[arg(long, value_name = "BYTES", value_parser = spelling::read::<ByteSize>)]
    #[serde(with = "spelling")]
    pub active_memory: Option<ByteSize>,
    /// Most heap bytes of cached blocks [default: 2 GiB]
    #[arg(long, value_name = "BYTES", value_parser = spelling::read::<ByteSize>)]
    #[serde(with = "spelling")]
    pub cache_memory: Option<ByteSize>,
    /// Most bytes of cached blocks on disk [default: 20 GiB]
    #[arg(long, value_name = "BYTES", value_parser = spelling::read::<ByteSize>)]
    #[serde(with = "spelling")]
    pub cache_disk: Option<ByteSize>,
    /// Free disk space below which nothing is written [default: 2 GiB]
    #[arg(long, value_name = "BYTES", value_parser = spelling::read::<ByteSize>)]
    #[serde(with = "spelling")]
    pub free_floor: Option<ByteSize>,
    /// Most bytes written to disk in a day [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = spelling::read::<ByteSize>)]
    #[serde(with = "spelling")]
    pub daily_writes: Option<ByteSize>,
    /// Exit after this long without a request: 15m, or seconds [default: never]
    #[arg(long, value_name = "TIME", value_parser = spelling::read::<humantime::Duration>)]
    #[serde(with = "spelling")]
    pub idle_exit: Option<humantime::Duration>,
    /// Time that running requests get to end after SIGTERM: 5s, or seconds [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = spelling::read::<humantime::Duration>)]
    #[serde(with = "spelling")]
    pub grace: Option<humantime::Duration>,
    /// Where to tell Prometheus what is measured: 127.0.0.1:PORT or the path of a Unix socket [default: nowhere]
    #[arg(long, value_name = "PLACE")]
    #[serde(with = "spelling")]
    pub metrics: Option<Place>,
    /// Log filter, such as info or tinygptd=debug [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Form of log lines on stderr
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Prompts to compute at start: tables `[[warm]]` of the file.
    #[arg(skip)]
    pub warm: Vec<WarmArgs>,
}

/// A prompt to compute at start, and maybe to pin.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct WarmArgs {
    /// Name of the model; empty is the first one.
    #[serde(default)]
    pub model: String,
    /// The file that has the prompt, relative to that of the configuration.
    #[serde(alias = "prompt_file")]
    pub prompt_file: PathBuf,
    /// Sub-namespace within the user's own.
    #[serde(default)]
    pub namespace: String,
    /// KV codec; unset is the daemon's default.
    #[serde(default, with = "spelling", alias = "kv_dtype")]
    pub kv_dtype: Option<Codec>,
    /// Name of an adapter; empty is none.
    #[serde(default)]
    pub adapter: String,
    /// For how long to pin it, renewed while the daemon lives; unset is not at all.
    #[serde(default, with = "spelling")]
    pub pin: Option<humantime::Duration>,
}

impl ServeArgs {
    /// What is said here, else in `file`, or in whatever else has less weight.
    pub(super) fn over(self, file: Self) -> Self {
        Self {
            socket: self.socket.or(file.socket),
            cache_dir: self.cache_dir.or(file.cache_dir),
            no_persist: self.no_persist || file.no_persist,
            model: if self.model.is_empty() { file.model } else { self.model },
            adapter: if self.adapter.is_empty() { file.adapter } else { self.adapter },
            models_dir: if self.models_dir.is_empty() { file.models_dir } else { self.models_dir },
            config: self.config.or(file.config),
            threads: self.threads.or(file.threads),
            kv_dtype: self.kv_dtype.or(file.kv_dtype),
            numerics: self.numerics.or(file.numerics),
            context: self.context.or(file.context),
            device: self.device.or(file.device),
            device_memory: self.device_memory.or(file.device_memory),
            model_memory: self.model_memory.or(file.model_memory),
            unload_after: self.unload_after.or(file.unload_after),
            queue: self.queue.or(file.queue),
            active_memory: self.active_memory.or(file.active_memory),
            cache_memory: self.cache_memory.or(file.cache_memory),
            cache_disk: self.cache_disk.or(file.cache_disk),
            free_floor: self.free_floor.or(file.free_floor),
            daily_writes: self.daily_writes.or(file.daily_writes),
            idle_exit: self.idle_exit.or(file.idle_exit),
            grace: self.grace.or(file.grace),
            metrics: self.metrics.or(file.metrics),
            log: self.log.or(file.log),
            log_format: self.log_format.or(file.log_format),
            warm: if self.warm.is_empty() { file.warm } else { self.warm },
        }
    }
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Args, clap::Error> {
        Args::read(line.split_whitespace().map(Into::into))
    }

    #[test]
    fn flags_may_stand_on_either_side_of_a_command_and_the_nearer_wins() {
        let lines = [
            "tinygptd config --config f --threads 3",
            "tinygptd --config f config --threads 3",
            "tinygptd --config f --threads 3 config",
            "tinygptd --config g --threads 2 config --config f --threads 3",
        ];
        for line in lines {
            let Some(Command::Config(args)) = read(line).unwrap().command else { panic!("{line}") };
            assert_eq!(args.config, Some("f".into()), "{line}");
            assert_eq!(args.threads, NonZeroUsize::new(3), "{line}");
        }
    }

    #[test]
    fn a_flag_that_a_command_has_no_use_for_is_named() {
        for line in ["tinygptd --threads 3 uninstall", "tinygptd --self-check config"] {
            let words: Vec<_> = line.split_whitespace().collect();
            let refused = read(line).unwrap_err().to_string();
            assert!(refused.contains(words[1]) && refused.contains("says nothing"), "{refused}");
        }
    }

    #[test]
    fn every_exit_code_is_in_the_help() {
        let help = read("tinygptd --help").unwrap_err().to_string();
        for exit in Exit::ALL {
            assert!(help.contains(exit.meaning()), "{help}");
        }
    }
}
