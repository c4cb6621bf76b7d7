//! `score`: how likely given tokens are.

use clap::Args;
use comfy_table::CellAlignment;
use serde_json::{Map, Value};
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::{ScoreRequest, ScoreResponse, TokenLogprobs};

use crate::caching::ReuseArgs;
use crate::cli::{AdapterArg, ModelArg, PriorityArg, heading};
use crate::failure::Outcome;
use crate::patience;
use crate::prompt::PromptArgs;
use crate::session::Session;
use crate::{json, render};

/// Tells the log-probability of each given token but the first.
#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    #[command(flatten)]
    input: PromptArgs,
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    adapter: AdapterArg,
    #[command(flatten)]
    priority: PriorityArg,
    #[command(flatten)]
    reuse: ReuseArgs,
    /// Report the K likeliest tokens beside each
    #[arg(long, value_name = "K", default_value_t = 0, allow_negative_numbers = true, help_heading = heading::OUTPUT)]
    logprobs: u32,
}

pub(crate) async fn run(args: ScoreArgs, session: &Session) -> Outcome {
    let request = ScoreRequest {
        model: args.model.name,
        adapter: args.adapter.name,
        input: Some(args.input.read()?.into()),
        logprobs: args.logprobs,
        cache_policy: args.reuse.policy().into(),
        priority: args.priority.wire().into(),
        namespace: args.reuse.namespace,
        kv_dtype: args.reuse.kv_dtype,
    };
    let connection = session.connect().await?;
    let call = async |left| {
        let request = session.request_within(request.clone(), left)?;
        connection.inference().score(request).await
    };
    let response =
        session.accept(patience::while_loading(&connection, session, &request.model, call).await?);
    if session.json {
        render::json(&report(&response))?;
    } else {
        session.say(&sum(&response.tokens));
        render::line(&table(&response.tokens))?;
    }
    Ok(Exit::Done)
}

fn table(tokens: &[TokenLogprobs]) -> String {
    let mut table = render::columns(&["TOKEN", "LOGPROB", "LIKELIEST"]);
    render::align(&mut table, &[0, 1], CellAlignment::Right);
    for token in tokens {
        let logprob = token.logprob.map_or_else(|| "-".into(), |value| format!("{value:.4}"));
        let top = token.top.iter().map(|other| format!("{} {:.4}", other.id, other.logprob));
        table.add_row([token.id.to_string(), logprob, top.collect::<Vec<_>>().join(", ")]);
    }
    render::table(&table)
}

/// The sum over all tokens that have a log-probability, and their perplexity.
fn sum(tokens: &[TokenLogprobs]) -> String {
    let scored: Vec<f64> = tokens.iter().filter_map(|token| token.logprob).map(f64::from).collect();
    if scored.is_empty() {
        return "no tokens scored: the first one has no log-probability".into();
    }
    let total: f64 = scored.iter().sum();
    let count = scored.len() as f64;
    format!(
        "{} scored, sum {total:.4}, perplexity {:.4}",
        render::counted(scored.len() as u64, "token"),
        (-total / count).exp()
    )
}

/// As JSON, with the names that generations use.
fn report(response: &ScoreResponse) -> Map<String, Value> {
    let mut report = json::object("tinygpt.score/1", "ScoreResponse", response);
    let tokens = report.shift_remove("tokens").unwrap_or_default();
    report.insert("token_ids".into(), response.tokens.iter().map(|token| token.id).collect());
    report.insert("logprobs".into(), tokens);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(logprobs: &[Option<f32>]) -> String {
        let token =
            |logprob: &Option<f32>| TokenLogprobs { logprob: *logprob, ..Default::default() };
        sum(&logprobs.iter().map(token).collect::<Vec<_>>())
    }

    #[test]
    fn perplexity_is_of_the_tokens_that_have_a_log_probability() {
        let words = scored(&[None, Some(-2.0), Some(-1.0)]);
        assert_eq!(words, "2 tokens scored, sum -3.0000, perplexity 4.4817");
        assert_eq!(scored(&[None, Some(0.0)]), "1 token scored, sum 0.0000, perplexity 1.0000");
        assert_eq!(scored(&[None]), "no tokens scored: the first one has no log-probability");
    }
}
