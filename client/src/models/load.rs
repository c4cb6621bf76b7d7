//! `models load`: a model brought into memory, one of the daemon's or another.

use std::path::{Path, absolute};

use clap::Args;
use tinygpt_proto::v1::{LoadRequest, LoadResponse};

use crate::cli::heading;
use crate::failure::{Failure, Outcome};
use crate::patience;
use crate::render;
use crate::session::Session;

/// Loads a model and waits until it can serve
///
/// The daemon reads the file with its own rights. A model that it was not started with is gone when
/// it ends.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// A file, a directory, or a name: of one of the daemon's models, or of one that `models` finds
    #[arg(value_name = "PATH|NAME")]
    model: String,
    /// What requests will call it [default: its own name, or the file's stem]
    #[arg(long, value_name = "NAME", help_heading = heading::OUTPUT)]
    name: Option<String>,
}

impl LoadArgs {
    /// The daemon may have another working directory.
    fn request(self) -> Result<LoadRequest, Failure> {
        let is_path = Path::new(&self.model).exists();
        Ok(match (is_path, self.name) {
            (true, name) => LoadRequest {
                path: absolute(&self.model)?.to_string_lossy().into_owned(),
                name: name.unwrap_or_default(),
            },
            (false, Some(name)) => LoadRequest { path: self.model, name },
            (false, None) => LoadRequest { path: String::new(), name: self.model },
        })
    }
}

pub(crate) async fn run(args: LoadArgs, session: &Session) -> Outcome {
    let request = args.request()?;
    let connection = session.connect().await?;
    let name = request.name.clone();
    let call = async |left| {
        let request = session.request_within(request.clone(), left)?;
        connection.models().load(request).await
    };
    let loaded = patience::while_loading(&connection, session, &name, call).await?;
    let loaded = session.accept(loaded);
    render::answer(session, "tinygpt.models.load/1", "LoadResponse", &loaded, text)
}

fn text(loaded: &LoadResponse) -> String {
    let model = loaded.model.clone().unwrap_or_default();
    render::printable(&format!(
        "loaded {}: {} of weights in {:.0} ms",
        model.name,
        render::bytes(model.weight_bytes),
        model.load_ms
    ))
}
