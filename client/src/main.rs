//! `tinygpt-client`: the daemon's command line.
//!
//! One file per command, named like the RPC it calls. A command gets its own arguments and the
//! [`Session`], prints its answer through [`render`], and ends with an [`Exit`] or a [`Failure`],
//! from which this file makes the exit status. Everything runs on one thread: the process lives
//! for a few milliseconds, and starting more threads would take longer than they could save.
#![forbid(unsafe_code)]

mod batch;
mod bench;
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
mod pull;
mod render;
mod sample;
mod sampling;
mod score;
mod session;
mod shell;
mod status;
mod summary;
mod tokenize;
mod top;
mod version;
mod view;
mod wait;
mod warm;

use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::Builder;

use cli::{Asking, Cli, Command};
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
    match cli.command {
        Command::Asking(command) => {
            let session = Session::new(&cli.common)?;
            complete(answer(command, &session))
        }
        Command::Pull(args) => complete(pull::run(args, &cli.common)),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { dir } => shell::man(&dir),
    }
}

fn complete(command: impl Future<Output = Outcome>) -> Outcome {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(until_interrupted(command));
    // A thread may still read stdin, write to a reader that does not read, or fetch a model.
    runtime.shutdown_background();
    outcome
}

async fn answer(command: Asking, session: &Session) -> Outcome {
    match command {
        Asking::Sample(args) => sample::run(*args, session).await,
        Asking::Warm(args) => warm::run(args, session).await,
        Asking::Score(args) => score::run(args, session).await,
        Asking::Tokenize(args) => tokenize::run(args, session).await,
        Asking::Detokenize(args) => detokenize::run(args, session).await,
        Asking::Status => status::run(session).await,
        Asking::Top(args) => top::run(args, session).await,
        Asking::Models(args) => models::run(args, session).await,
        Asking::Cache(command) => cache::run(command, session).await,
        Asking::Wait(args) => wait::run(args, session).await,
        Asking::Bench(args) => bench::run(args, session).await,
        Asking::BenchAgent => bench::agent::run(session).await,
        Asking::Doctor => doctor::run(session).await,
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

fn report(failure: &Failure) {
    if !failure.is_silent() {
        render::remark(&format!("tinygpt-client: {failure}"));
    }
}
