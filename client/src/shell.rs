//! Completion scripts and manual pages, made from the command line itself.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use tinygpt_client::exit::Exit;

use crate::cli::Cli;
use crate::failure::Outcome;
use crate::render;

/// Prints a completion script.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// For which shell
    shell: Shell,
}

/// Prints the manual page, or writes one for each command.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The folder to write to
    folder: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tinygpt-client", &mut script);
    render::text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

pub(crate) fn man(args: &ManArgs) -> Outcome {
    let command = Cli::command();
    match &args.folder {
        Some(folder) => clap_mangen::generate_to(command, folder)?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            render::text(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(Exit::Done)
}
