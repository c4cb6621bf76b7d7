//! The command line: what every command understands, and the list of commands.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use tinygpt_client::exit::Exit;

use crate::cache::CacheCommand;
use crate::detokenize::DetokenizeArgs;
use crate::sample::SampleArgs;
use crate::score::ScoreArgs;
use crate::tokenize::TokenizeArgs;
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
    args_override_self = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command understands.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The daemon's socket; without it TINYGPT_SOCKET, else the user's own default
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Give up after this long: 30s, 2m, 500ms, or seconds
    #[arg(long, global = true, value_name = "TIME", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) timeout: Option<Duration>,
}

/// What every command about one model understands.
#[derive(Debug, Clone, Args)]
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

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Asking(Asking),
    /// Print a completion script
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man,
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
    /// List the daemon's models and what their KV costs
    Models,
    /// Look at the KV cache and tend it
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Wait for the daemon
    Wait(WaitArgs),
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

fn duration(text: &str) -> Result<Duration, String> {
    let time = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string()),
    }?;
    if time > LONGEST {
        return Err("more than 365 days".into());
    }
    Ok(time)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::CommandFactory;

    use super::*;

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
