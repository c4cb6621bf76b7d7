//! The command line: what every command understands, and the list of commands.

use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tinygpt_client::exit::Exit;

use crate::bench::BenchArgs;
use crate::cache::CacheCommand;
use crate::detokenize::DetokenizeArgs;
use crate::models::ModelsArgs;
use crate::pull::PullArgs;
use crate::sample::SampleArgs;
use crate::score::ScoreArgs;
use crate::tokenize::TokenizeArgs;
use crate::top::TopArgs;
use crate::wait::WaitArgs;
use crate::warm::WarmArgs;

/// Run text through a local model, and look after the daemon that serves it.
///
/// Generated text and answers go to stdout, everything else to stderr.
#[derive(Debug, Parser)]
#[command(
    name = "tinygpt-client",
    version,
    after_help = exit_table(),
    disable_help_subcommand = true,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true
)]
pub(crate) struct Cli {
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, help_heading = heading::OUTPUT)]
    version: Option<bool>,
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The sections of a command's flags, in the order in which a person thinks of them.
///
/// clap shows sections in the order in which it meets them, so a command declares its own flags in
/// this order; [`Common`] has those of the last two.
pub(crate) mod heading {
    pub(crate) const PROMPT: &str = "Prompt";
    pub(crate) const LOAD: &str = "Load";
    pub(crate) const LENGTH: &str = "Length";
    pub(crate) const SAMPLING: &str = "Sampling";
    pub(crate) const CACHE: &str = "Cache";
    pub(crate) const OUTPUT: &str = "Output";
    pub(crate) const CONNECTION: &str = "Connection";
}

/// What every command understands. These stand behind a command's own flags in their sections.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Print one JSON object
    #[arg(long, global = true, help_heading = heading::OUTPUT, display_order = 100)]
    pub(crate) json: bool,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true, help_heading = heading::OUTPUT, display_order = 101)]
    pub(crate) quiet: bool,
    /// Print help; -h is a summary
    #[arg(short, long, global = true, action = ArgAction::Help, help_heading = heading::OUTPUT, display_order = 102)]
    help: Option<bool>,
    /// The daemon's socket [default: TINYGPT_SOCKET, else the user's own]
    #[arg(long, global = true, value_name = "PATH", help_heading = heading::CONNECTION, display_order = 103)]
    pub(crate) socket: Option<PathBuf>,
    /// Give up after this long: 30s, 2m, 500ms, or seconds [default: none; 10s for what is at hand]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration, allow_negative_numbers = true, help_heading = heading::CONNECTION, display_order = 104)]
    pub(crate) timeout: Option<Duration>,
}

/// What a command understands that starts a daemon.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::CONNECTION)]
pub(crate) struct StartArg {
    /// Start a daemon even on a socket that was named
    #[arg(id = "start", long = "start", display_order = 105)]
    pub(crate) forced: bool,
}

/// What every command about one model understands.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::PROMPT)]
pub(crate) struct ModelArg {
    /// The model [default: the daemon's first]
    #[arg(
        id = "model",
        short,
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) name: String,
}

/// What every command understands that runs a model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::PROMPT)]
pub(crate) struct AdapterArg {
    /// The LoRA adapter of the model to run it with [default: none]
    #[arg(
        id = "adapter",
        long = "adapter",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) name: String,
}

/// What every command understands that waits for its turn.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::PROMPT)]
pub(crate) struct PriorityArg {
    /// Which requests go first; high ones may take the memory of low ones
    #[arg(id = "priority", long = "priority", value_name = "P", default_value = "normal")]
    level: Priority,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Priority {
    /// After everything else
    Low,
    /// As everything else
    Normal,
    /// Before everything else
    High,
}

impl PriorityArg {
    pub(crate) fn wire(&self) -> tinygpt_proto::v1::Priority {
        use tinygpt_proto::v1::Priority as Wire;
        match self.level {
            Priority::Low => Wire::Low,
            Priority::Normal => Wire::Normal,
            Priority::High => Wire::High,
        }
    }
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Asking(Asking),
    /// Fetch a model from Hugging Face, and print the path for `tinygptd --model`
    Pull(PullArgs),
    /// Print a completion script
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Write the manual pages, one for each command, into a directory
    #[command(hide = true)]
    Man {
        /// The directory
        dir: PathBuf,
    },
}

/// What needs a daemon, or a look for one.
#[derive(Debug, Subcommand)]
pub(crate) enum Asking {
    /// Generate text from a prompt
    Sample(Box<SampleArgs>),
    /// Compute a prompt and keep it, so that what begins with it starts at once
    Warm(WarmArgs),
    /// Tell how likely given tokens are
    Score(ScoreArgs),
    /// Turn text into token ids
    Tokenize(TokenizeArgs),
    /// Turn token ids into text
    Detokenize(DetokenizeArgs),
    /// Show what the daemon is and does
    Status,
    Top(TopArgs),
    Models(ModelsArgs),
    /// Look at the KV cache and tend it
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Wait for the daemon
    Wait(WaitArgs),
    Bench(BenchArgs),
    /// Ask as `bench` says on stdin
    #[command(hide = true)]
    BenchAgent,
    /// Check everything that could be in the way
    Doctor,
}

/// The table of exit codes, as `--help` shows it.
fn exit_table() -> String {
    let mut table = "Exit codes:\n".to_owned();
    for exit in Exit::ALL {
        // Writing to a string cannot fail.
        let _ = writeln!(table, "  {:>3}  {}", exit.code(), exit.meaning());
    }
    table
}

/// Beyond this a deadline has no room in a header, and none on the clock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let time = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string()),
    }?;
    if time > LONGEST {
        return Err("more than 365 days".into());
    }
    Ok(time)
}

/// How long a prompt is pinned.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    const BOUNDS: RangeInclusive<Duration> =
        Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 3600);
    let time = duration(text)?;
    let possible = BOUNDS.contains(&time);
    possible.then_some(time).ok_or_else(|| "a pin lasts from 1 s to 30 days".into())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::{Arg, CommandFactory};

    use super::*;

    /// A command with what all commands understand.
    fn command(name: &str) -> clap::Command {
        let mut cli = Cli::command();
        cli.build();
        cli.find_subcommand(name).unwrap().clone()
    }

    #[test]
    fn flags_stand_in_the_order_in_which_a_person_thinks_of_them() {
        let help = command("sample").render_long_help().to_string();
        let sections = ["Prompt:", "Length:", "Sampling:", "Cache:", "Output:", "Connection:"];
        let shown: Vec<_> = help.lines().filter(|line| sections.contains(line)).collect();
        assert_eq!(shown, sections);
        assert!(!help.contains("Options:"), "every flag has a section: {help}");
    }

    #[test]
    fn every_flag_with_a_value_states_its_default() {
        let silent = |arg: &&Arg| {
            let words = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let told = !arg.get_default_values().is_empty() && !arg.is_hide_default_value_set();
            arg.get_action().takes_values() && !told && !words.contains("[default: ")
        };
        for name in ["sample", "warm", "score", "tokenize", "detokenize", "bench"] {
            let command = command(name);
            let silent: Vec<_> = command.get_arguments().filter(silent).map(Arg::get_id).collect();
            assert!(silent.is_empty(), "{name}: {silent:?}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_exit_code_is_in_the_help() {
        let help = Cli::command().render_help().to_string();
        for exit in Exit::ALL {
            assert!(help.contains(exit.meaning()), "{exit:?}");
        }
    }

    #[test]
    fn a_time_is_in_seconds_unless_it_says_otherwise() {
        assert_eq!(duration("1.5").unwrap(), Duration::from_millis(1500));
        assert_eq!(duration("2m").unwrap(), Duration::from_secs(120));
        assert!(duration("-1").is_err());
        assert!(duration("soon").is_err());
    }

    #[test]
    fn a_time_is_a_year_at_most() {
        assert_eq!(duration("365days").unwrap(), LONGEST);
        for long in ["31536001", "1e18", "1e300", "1000000000000s", "18446744073709551615s"] {
            assert!(duration(long).is_err(), "{long}");
        }
        assert!(duration("nan").is_err());
    }
}
