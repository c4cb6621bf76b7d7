//! `detokenize`: token ids into text.

use clap::Args;
use serde_json::json;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::DetokenizeRequest;

use crate::cli::{ModelArg, heading};
use crate::failure::{Failure, Outcome};
use crate::prompt::read_piped;
use crate::render;
use crate::session::Session;

/// Prints the text of token ids, exactly.
#[derive(Debug, Args)]
pub(crate) struct DetokenizeArgs {
    /// The ids: 1,2,3 [default: from stdin]
    #[arg(long, value_name = "IDS", value_delimiter = ',', allow_negative_numbers = true, help_heading = heading::PROMPT)]
    token_ids: Option<Vec<u32>>,
    #[command(flatten)]
    model: ModelArg,
}

pub(crate) async fn run(args: DetokenizeArgs, session: &Session) -> Outcome {
    let token_ids = match args.token_ids {
        Some(ids) => ids,
        None => parse(&read_piped("--token-ids")?)?,
    };
    let connection = session.connect().await?;
    let request = DetokenizeRequest { model: args.model.name, token_ids };
    let response = connection.inference().detokenize(session.request(request)?).await?;
    let text = session.accept(response).text;
    if session.json {
        render::json(&json!({ "schema": "tinygpt.detokenize/1", "text": text }))?;
    } else {
        render::text(&text)?;
    }
    Ok(Exit::Done)
}

/// Ids between commas or white space.
fn parse(text: &str) -> Result<Vec<u32>, Failure> {
    let words = text.split([',', ' ', '\t', '\r', '\n']).filter(|word| !word.is_empty());
    words
        .map(|word| word.parse().map_err(|_| Failure::Usage(format!("{word:?} is no token id"))))
        .collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn ids_stand_between_commas_or_white_space() {
        assert_eq!(parse("1, 2,3\n4\n").unwrap(), [1, 2, 3, 4]);
        assert!(parse("1 -2").is_err());
    }
}
