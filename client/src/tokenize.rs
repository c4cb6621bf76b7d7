//! `tokenize`: text into token ids.

use clap::Args;
use serde_json::json;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::TokenizeRequest;

use crate::cli::{ModelArg, heading};
use crate::failure::Outcome;
use crate::prompt::TextArgs;
use crate::render;
use crate::session::Session;

/// Prints the ids of a text, as --token-ids takes them.
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    #[command(flatten)]
    prompt: TextArgs,
    #[command(flatten)]
    model: ModelArg,
    /// Leave out the beginning token that sample would add
    #[arg(long, help_heading = heading::PROMPT)]
    bare: bool,
}

pub(crate) async fn run(args: TokenizeArgs, session: &Session) -> Outcome {
    let text = args.prompt.read("--prompt or --prompt-file")?;
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
