//! What a client says that was built without the feature.

use tinygpt_client::exit::Exit;

use super::PullArgs;
use crate::cli::Common;
use crate::failure::{Failure, Outcome};

pub(crate) async fn run(_: PullArgs, _: &Common) -> Outcome {
    Err(Failure::Pull { exit: Exit::Refused, words: WORDS.into() })
}

const WORDS: &str = "this client was built without the feature `pull`: build it with \
                     `cargo build --release --workspace --features tinygpt-client/pull`, or install it with `make install`";
