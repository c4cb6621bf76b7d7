//! `models`: the daemon's models, and what a token of their KV cache costs.

use comfy_table::CellAlignment;
use indicatif::HumanCount;
use tinygpt_proto::Label;
use tinygpt_proto::v1::{Model, ModelServiceListRequest, ModelServiceListResponse};

use crate::failure::Outcome;
use crate::render;
use crate::session::Session;

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

pub(crate) async fn run(session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(ModelServiceListRequest {})?;
    let response = session.accept(session.at_once(connection.models().list(request)).await?);
    render::answer(session, "tinygpt.models/1", "ModelServiceListResponse", &response, table)
}

fn table(response: &ModelServiceListResponse) -> String {
    let mut table = render::columns(&COLUMNS);
    render::align(&mut table, &[4, 5, 6, 8, 9], CellAlignment::Right);
    for model in &response.models {
        table.add_row(row(model));
    }
    render::table(&table)
}

fn row(model: &Model) -> Vec<String> {
    let state = match &*model.error {
        "" => model.state().label().to_owned(),
        error => format!("{}: {error}", model.state().label()),
    };
    vec![
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
