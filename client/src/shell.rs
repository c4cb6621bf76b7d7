//! Completion scripts and the manual page, made from the command line itself.

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

pub(crate) fn man() -> Outcome {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page)?;
    render::text(&String::from_utf8_lossy(&page))?;
    Ok(Exit::Done)
}
