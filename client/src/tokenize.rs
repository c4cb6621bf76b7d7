//! `tokenize`: text into token ids.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::TokenizeRequest;

use crate::cli::ModelArg;
use crate::failure::Outcome;
use crate::prompt::read_text;
use crate::render;
use crate::session::Session;

/// Prints the ids of a text, as --token-ids takes them.
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// The text; without it stdin
    #[arg(allow_hyphen_values = true)]
    text: Option<String>,
    /// A file with the text; - is stdin
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    prompt_file: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArg,
    /// Leave out the beginning token that sample would add
    #[arg(long)]
    bare: bool,
}

pub(crate) async fn run(args: TokenizeArgs, session: &Session) -> Outcome {
    let text = match args.text {
        Some(text) => text,
        None => read_text(args.prompt_file.as_deref().unwrap_or(Path::new("-")))?,
    };
    let connection = session.connect().await?;
    let request = TokenizeRequest { model: args.model.name, text, bare: args.bare };
    let response = connection.inference().tokenize(session.request(request)?).await?;
    let token_ids = session.accept(response).token_ids;
    if session.json {
        render::json(&json!({ "schema": "tinygpt.tokenize/1", "token_ids": token_ids }))?;
    } else {
        let ids: Vec<_> = token_ids.iter().map(u32::to_string).collect();
        render::line(&ids.join(","))?;
    }
    Ok(Exit::Done)
}
