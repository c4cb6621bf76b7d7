//! `status`: what the daemon is and does.

use tinygpt_proto::Label;
use tinygpt_proto::v1::{Model, StatusRequest, StatusResponse};

use crate::failure::Outcome;
use crate::render;
use crate::session::Session;

pub(crate) async fn run(session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let request = session.request(StatusRequest {})?;
    let status = session.accept(session.at_once(connection.admin().status(request)).await?);
    render::answer(session, "tinygpt.status/1", "StatusResponse", &status, |status| {
        for warning in &status.warnings {
            session.say(&format!("warning: {warning}"));
        }
        render::pairs(rows(status))
    })
}

fn rows(status: &StatusResponse) -> Vec<(String, String)> {
    let queue = status.queue.unwrap_or_default();
    let row = |name: &str, value: String| (name.to_owned(), value);
    let mut rows = vec![
        row("state", status.state().label().to_owned()),
        row("version", status.version.clone()),
        row("process", status.pid.to_string()),
        row("socket", status.socket.clone()),
        row("started", render::ago(status.started)),
        row("models", models(&status.models)),
        row("running", status.running.to_string()),
        row(
            "waiting",
            match queue.limit {
                Some(limit) => format!("{} of {limit}", queue.used),
                None => queue.used.to_string(),
            },
        ),
        row("threads", status.threads.to_string()),
        row("KV in memory", render::budget(status.memory)),
        row("KV on disk", render::budget(status.disk)),
        row("KV of running", render::budget(status.active)),
        row(
            "cache",
            match &*status.cache_dir {
                "" => "nothing is written to disk".to_owned(),
                folder => folder.to_owned(),
            },
        ),
    ];
    let counters = status.counters.iter().map(|(name, value)| (name.clone(), value.to_string()));
    rows.extend(counters);
    rows
}

/// Their names, the default one first, with their state where there is something to say.
fn models(models: &[Model]) -> String {
    let words = models.iter().map(|model| match model.state() {
        tinygpt_proto::v1::ModelState::Ready => model.name.clone(),
        state => format!("{} ({} {})", model.name, state.label(), model.error).replace(" )", ")"),
    });
    words.collect::<Vec<_>>().join(", ")
}
