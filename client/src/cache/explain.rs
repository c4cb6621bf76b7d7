//! `cache explain`: what would be reused for a prompt, and why no more.

use clap::Args;
use comfy_table::CellAlignment;
use tinygpt_proto::Label;
use tinygpt_proto::v1::{ExplainRequest, ExplainResponse, Reason, Relative};

use crate::cli::{AdapterArg, ModelArg};
use crate::failure::Outcome;
use crate::prompt::PromptArgs;
use crate::session::Session;
use crate::{render, summary};

/// Tells what would be reused for a prompt now, without running anything.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    adapter: AdapterArg,
    /// The namespace of your own to look in
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    namespace: String,
    /// How the KV cache is stored [default: the daemon's]
    #[arg(long, value_name = "D", default_value = "", hide_default_value = true)]
    kv_dtype: String,
}

pub(crate) async fn run(args: ExplainArgs, session: &Session) -> Outcome {
    let request = ExplainRequest {
        model: args.model.name,
        adapter: args.adapter.name,
        prompt: Some(args.prompt.read()?.into()),
        namespace: args.namespace,
        kv_dtype: args.kv_dtype,
    };
    let connection = session.connect().await?;
    let response = session.accept(connection.cache().explain(session.request(request)?).await?);
    render::answer(session, "tinygpt.cache.explain/1", "ExplainResponse", &response, text)
}

fn text(response: &ExplainResponse) -> String {
    let rows = render::pairs(rows(response));
    match &*response.relatives {
        [] => rows,
        relatives => format!("{rows}\n\n{}", table(relatives)),
    }
}

fn rows(response: &ExplainResponse) -> Vec<(&'static str, String)> {
    let cached = response.cached.unwrap_or_default();
    let mut rows = vec![
        ("verdict", response.verdict().label().to_owned()),
        ("reason", reason(response.reason())),
        ("cached", cached_of(response)),
        (
            "from",
            format!("memory {}, disk {}, joined {}", cached.memory, cached.disk, cached.joined),
        ),
        ("model", response.model.clone()),
        ("key", response.prompt_key.clone()),
    ];
    rows.extend(response.divergence.as_ref().map(|found| ("parting", summary::parting(found))));
    rows
}

fn cached_of(response: &ExplainResponse) -> String {
    format!("{} of {}", response.cached_tokens, render::counted(response.prompt_tokens, "token"))
}

fn table(relatives: &[Relative]) -> String {
    let mut table =
        render::columns(&["RELATIVE", "TOKENS", "COMMON", "NO MORE BECAUSE", "PARTING"]);
    render::align(&mut table, &[1, 2], CellAlignment::Right);
    for relative in relatives {
        table.add_row([
            relative.prompt_key.chars().take(12).collect(),
            relative.tokens.to_string(),
            relative.common_tokens.to_string(),
            reason(relative.reason()),
            relative.divergence.as_ref().map(summary::parting).unwrap_or_default(),
        ]);
    }
    render::table(&table)
}

fn reason(reason: Reason) -> String {
    match reason {
        Reason::Unspecified => "-".into(),
        reason => reason.label().into(),
    }
}
