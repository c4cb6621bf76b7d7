//! `Find`.
//!
//! A search waits for disks, also for dead ones, so it has a thread of its own, which nobody waits
//! for at the end. There is one at a time: the next begins when it has ended.

use std::collections::HashMap;
use std::path::PathBuf;
use std::thread;

use tinygpt_proto::v1 as wire;
use tinygpt_proto::v1::FindResponse;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::engine::EngineHandle;
use crate::model::found::{Candidate, Kind, Outline};
use crate::service::Daemon;
use crate::service::convert::reply::count;
use crate::service::refusal::Refusal;
use crate::service::stream::Responses;
use crate::sys::heap;
use crate::text::Tokenizer;

/// Answers that wait for a client that does not read.
const WAITING: usize = 16;

/// Most bytes of one thing that is said of a model.
const MOST: usize = 4096;

impl Daemon {
    /// Looks for models, and at each, one search at a time; a client that goes away ends it before
    /// the next model.
    pub(super) async fn find(&self) -> Result<Responses<FindResponse>, Refusal> {
        let turn = self.searches.clone().acquire_owned().await.expect("it is never closed");
        let (client, responses) = mpsc::channel(WAITING);
        let (places, sources) = (self.facts.places.clone(), self.sources());
        let search = move || {
            let _turn = turn;
            // By where the files are, whatever links lead there.
            let served = sources
                .into_iter()
                .filter_map(|(path, name)| path.canonicalize().ok().map(|path| (path, name)));
            let served: HashMap<_, _> = served.collect();
            for candidate in places.candidates() {
                if client.blocking_send(Ok(respond(candidate, &served))).is_err() {
                    break;
                }
            }
            heap::give_back();
        };
        let started = thread::Builder::new().name("find".into()).spawn(search);
        started.map_err(|error| Refusal::NoThread { why: error.to_string() })?;
        Ok(ReceiverStream::new(responses))
    }

    /// The models of the daemon that come from files, loaded or not.
    fn sources(&self) -> Vec<(PathBuf, String)> {
        let slots = self.models.all();
        let source = |engine: &EngineHandle| Some((engine.path()?.into(), engine.name().into()));
        slots.iter().filter_map(|slot| source(slot.engine())).collect()
    }
}

fn respond(mut found: Candidate, served: &HashMap<PathBuf, String>) -> FindResponse {
    let outlined = found.outline().map_err(|unfit| unfit.to_string());
    let (glimpse, parameters, error) = match outlined.and_then(with_tokenizer) {
        Ok(outline) => (outline.glimpse, outline.parameters, String::new()),
        Err(error) => (found.glimpse(), 0, error),
    };
    let path = found.path.canonicalize().ok();
    let served_as = path.and_then(|path| served.get(&path).cloned());
    let file_bytes = found.bytes();
    let [name, path] = [found.name, found.path.display().to_string()].map(brief);
    let model = wire::FoundModel {
        place: place(found.kind).into(),
        path,
        file_bytes,
        name,
        error: brief(error),
        served_as: served_as.unwrap_or_default(),
        architecture: brief(glimpse.architecture),
        format: glimpse.format.to_owned(),
        weight_type: brief(glimpse.quantisation),
        parameters,
        context: count(glimpse.context),
    };
    FindResponse { model: Some(model) }
}

/// What fits into a message, of words that come from files which nobody has looked at.
fn brief(mut words: String) -> String {
    if words.len() > MOST {
        words.truncate(words.floor_char_boundary(MOST));
        words.push('…');
    }
    words
}

/// A model whose tokenizer can be built, too.
fn with_tokenizer(outline: Outline) -> Result<Outline, String> {
    match Tokenizer::new(&outline.vocabulary) {
        Ok(_) => Ok(outline),
        Err(error) => Err(format!("cannot build the tokenizer: {error}")),
    }
}

fn place(kind: Kind) -> wire::ModelPlace {
    match kind {
        Kind::Configured => wire::ModelPlace::Configured,
        Kind::HuggingFace => wire::ModelPlace::HuggingFace,
        Kind::LmStudio => wire::ModelPlace::LmStudio,
        Kind::Ollama => wire::ModelPlace::Ollama,
    }
}
