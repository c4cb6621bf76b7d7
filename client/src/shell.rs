//! Completion scripts and the manual pages, made from the command line itself.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use tinygpt_client::exit::Exit;

use crate::cli::Cli;
use crate::failure::Outcome;
use crate::render;

pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tinygpt-client", &mut script);
    render::text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

pub(crate) fn man(dir: &Path) -> Outcome {
    clap_mangen::generate_to(Cli::command(), dir)?;
    Ok(Exit::Done)
}
