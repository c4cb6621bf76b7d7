//! `tinygpt-client`: the daemon's command line.
//!
//! One file per command, named like the RPC it calls. A command gets its own arguments and the
//! [`Session`], prints its answer through [`render`], and ends with an [`Exit`] or a [`Failure`],
//! from which this file makes the exit status. Everything runs on one thread: the process lives
//! for a few milliseconds, and starting more threads would take longer than they could save.
#![forbid(unsafe_code)]

mod batch;
mod cache;
mod caching;
mod cli;
mod detokenize;
mod doctor;
mod failure;
mod generation;
mod json;
mod models;
mod patience;
mod progress;
mod prompt;
mod render;
mod sample;
mod sampling;
mod score;
mod session;
mod shell;
mod status;
mod summary;
mod tokenize;
mod version;
mod view;
mod wait;
mod warm;

use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::{Builder, Runtime};

use cli::{Cli, Command};
use failure::{Failure, Outcome};
use session::Session;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let exit = match run(cli) {
        Ok(exit) => exit,
        Err(failure) => {
            report(&failure);
            failure.exit()
        }
    };
    ExitCode::from(exit.code())
}

fn run(cli: Cli) -> Outcome {
    match &cli.command {
        Command::Completions(args) => return shell::completions(args),
        Command::Man(args) => return shell::man(args),
        _ => {}
    }
    let session = Session::new(&cli.common)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(until_interrupted(command(cli.command, &session)));
    leave(runtime);
    outcome
}

async fn command(command: Command, session: &Session) -> Outcome {
    match command {
        Command::Sample(args) => sample::run(*args, session).await,
        Command::Warm(args) => warm::run(args, session).await,
        Command::Score(args) => score::run(args, session).await,
        Command::Tokenize(args) => tokenize::run(args, session).await,
        Command::Detokenize(args) => detokenize::run(args, session).await,
        Command::Status => status::run(session).await,
        Command::Models => models::run(session).await,
        Command::Cache(command) => cache::run(command, session).await,
        Command::Wait(args) => wait::run(args, session).await,
        Command::Doctor(args) => doctor::run(args, session).await,
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
    }
}

/// Drops the command at Ctrl-C. What it had running in the daemon is cancelled with it.
async fn until_interrupted(command: impl Future<Output = Outcome>) -> Outcome {
    tokio::select! {
        biased;
        outcome = command => outcome,
        Ok(()) = tokio::signal::ctrl_c() => Err(Failure::Interrupted),
    }
}

/// Does not wait for a thread that reads stdin or writes to a reader that does not read.
fn leave(runtime: Runtime) {
    runtime.shutdown_background();
}

fn report(failure: &Failure) {
    if !failure.is_silent() {
        render::remark(&format!("tinygpt-client: {failure}"));
    }
}
