//! `models`: the daemon's models, and what a token of their KV cache costs; then the models that lie
//! on this machine. And what can be done with one of them.

mod found;
mod load;
mod unload;

use clap::{Args, Subcommand};
use comfy_table::CellAlignment;
use indicatif::HumanCount;
use serde_json::json;
use tinygpt_client::connect::Connection;
use tinygpt_client::exit::Exit;
use tinygpt_proto::Label;
use tinygpt_proto::v1::{Model, ModelServiceListRequest};

use crate::cli::heading;
use crate::failure::{Failure, Outcome};
use crate::session::Session;
use crate::{json, render};

const COLUMNS: [&str; 11] = [
    "MODEL",
    "STATE",
    "KIND",
    "WEIGHTS",
    "PARAMETERS",
    "SIZE",
    "CONTEXT",
    "KV",
    "KV BYTES/TOKEN",
    "AS MHA",
    "ADAPTERS",
];

/// List the daemon's models and what their KV costs, and the models that lie on this machine
///
/// The daemon looks into the folders that it was told of with --models-dir, into Hugging Face's
/// cache, and into LM Studio's and Ollama's folders. NAME is what `tinygptd --model` takes.
/// SERVABLE says why a model cannot be served; one with a star is one of the daemon's.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    command: Option<ModelsCommand>,
    /// List only those that the daemon serves
    #[arg(long, help_heading = heading::OUTPUT)]
    served: bool,
}

/// What can be done with a model.
#[derive(Debug, Subcommand)]
enum ModelsCommand {
    Load(load::LoadArgs),
    Unload(unload::UnloadArgs),
}

pub(crate) async fn run(args: ModelsArgs, session: &Session) -> Outcome {
    match args.command {
        None => list(args.served, session).await,
        Some(ModelsCommand::Load(args)) => load::run(args, session).await,
        Some(ModelsCommand::Unload(args)) => unload::run(args, session).await,
    }
}

async fn list(only_served: bool, session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let models = served(&connection, session).await?;
    if !session.json {
        render::line(&table(&models))?;
    }
    let found = match only_served {
        true => Vec::new(),
        false => found::ask(&connection, session).await?,
    };
    if session.json {
        let (models, found) = (json::all("Model", &models), json::all("FoundModel", &found));
        let answer = json!({ "schema": "tinygpt.models/1", "models": models, "found": found });
        render::json(&answer)?;
    } else if !found.is_empty() {
        render::line(&format!("\n{}", found::table(&found)))?;
    }
    Ok(Exit::Done)
}

/// The daemon's models, the default one first.
async fn served(connection: &Connection, session: &Session) -> Result<Vec<Model>, Failure> {
    let request = session.request(ModelServiceListRequest {})?;
    let response = session.at_once(connection.models().list(request)).await?;
    Ok(session.accept(response).models)
}

fn table(models: &[Model]) -> String {
    let mut table = render::columns(&COLUMNS);
    render::align(&mut table, &[4, 5, 6, 8, 9], CellAlignment::Right);
    for model in models {
        table.add_row(row(model).map(|cell| render::printable(&cell)));
    }
    render::table(&table)
}

fn row(model: &Model) -> [String; 11] {
    let state = match &*model.error {
        "" => model.state().label().to_owned(),
        error => format!("{}: {error}", model.state().label()),
    };
    [
        format!("{}{}", model.name, if model.default { " *" } else { "" }),
        state,
        model.architecture.clone(),
        model.weight_type.clone(),
        HumanCount(model.parameters).to_string(),
        render::bytes(model.weight_bytes),
        HumanCount(model.context.into()).to_string(),
        model.kv_dtype.clone(),
        HumanCount(model.kv_bytes_per_token).to_string(),
        as_mha(model),
        adapters(model),
    ]
}

/// The names of its adapters.
fn adapters(model: &Model) -> String {
    let names: Vec<_> = model.adapters.iter().map(|adapter| &*adapter.name).collect();
    if names.is_empty() { "-".into() } else { names.join(", ") }
}

/// What a token would cost if every query head had a KV head of its own, and how many times more
/// that is.
fn as_mha(model: &Model) -> String {
    let (real, mha) = (model.kv_bytes_per_token, model.kv_bytes_per_token_mha);
    match real {
        0 => "-".into(),
        _ => format!("{} ({:.1}x)", HumanCount(mha), mha as f64 / real as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouped_heads_show_what_they_save() {
        let model = Model {
            kv_bytes_per_token: 11_520,
            kv_bytes_per_token_mha: 34_560,
            ..Default::default()
        };
        assert_eq!(as_mha(&model), "34,560 (3.0x)");
    }
}
