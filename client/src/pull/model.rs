//! From a name on the command line to a path for the daemon.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use tinygpt_client::exit::Exit;
use tokio::task;

use super::PullArgs;
use super::cache::{Snapshot, at};
use super::choice::{self, Choice};
use super::download::Download;
use super::error::PullError;
use super::hub::{Entry, Hub};
use super::meter::Meter;
use super::surroundings::Surroundings;
use crate::cli::Common;
use crate::failure::{Failure, Outcome};
use crate::render;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Pulled {
    schema: &'static str,
    /// What to give to `tinygptd --model`.
    path: PathBuf,
    repository: String,
    revision: String,
    commit: String,
    files: Vec<String>,
    /// Of all files.
    bytes: u64,
}

pub(crate) async fn run(args: PullArgs, common: &Common) -> Outcome {
    let (json, quiet) = (common.json, common.quiet);
    let work = task::spawn_blocking(move || pull(args, quiet));
    let done = match common.timeout {
        None => work.await,
        Some(limit) => {
            tokio::time::timeout(limit, work).await.map_err(|_| Failure::Overdue(limit))?
        }
    };
    let pulled = done.map_err(std::io::Error::from)??;
    match json {
        true => render::json(&pulled),
        false => render::line(&pulled.path.display().to_string()),
    }?;
    Ok(Exit::Done)
}

fn pull(args: PullArgs, quiet: bool) -> Result<Pulled, PullError> {
    let PullArgs { model, revision } = args;
    let (repository, wanted) = parse(&model)?;
    let revision = parse_revision(revision)?;
    let surroundings = Surroundings::read();
    let hub = Hub::new(&surroundings);
    let listing = hub.list(repository, &revision)?;
    let choice = choice::choose(&listing, wanted)?;
    let snapshot = Snapshot::new(&surroundings.cache, &listing);
    let meter = Meter::new(quiet);
    let download = Download { hub: &hub, listing: &listing, snapshot: &snapshot, meter: &meter };
    let (files, path) = fetch(&download, choice)?;
    snapshot.refer(&revision)?;
    Ok(Pulled {
        schema: "tinygpt.pull/1",
        path,
        files: files.iter().map(|file| file.name.clone()).collect(),
        bytes: files.iter().map(|file| file.size).sum(),
        revision,
        repository: listing.repository.clone(),
        commit: listing.commit.clone(),
    })
}

/// Fetches what was chosen: the files, and the path of the model that they are.
fn fetch<'a>(
    download: &Download<'a>,
    choice: Choice<'a>,
) -> Result<(Vec<&'a Entry>, PathBuf), PullError> {
    let folder = download.snapshot.path();
    let (mut rest, index, path) = match choice {
        Choice::File(file) => (vec![file], None, folder.join(&file.name)),
        Choice::Directory { files, index } => (files, index, folder),
    };
    if let Some(index) = index {
        rest.extend(shards(download, index)?);
    }
    let files: Vec<_> = index.into_iter().chain(rest.iter().copied()).collect();
    download.meter.expect(files.iter().fold(0, |sum, file| file.size.saturating_add(sum)));
    let missing = rest.iter().map(|file| download.snapshot.missing(file));
    download.snapshot.require_room(missing.fold(0, u64::saturating_add))?;
    rest.iter().try_for_each(|file| download.fetch(file))?;
    Ok((files, path))
}

/// The files that the index names, which is fetched for that.
fn shards<'a>(download: &Download<'a>, index: &Entry) -> Result<Vec<&'a Entry>, PullError> {
    download.snapshot.require_room(download.snapshot.missing(index))?;
    download.fetch(index)?;
    let path = download.snapshot.path().join(&index.name);
    let bytes = fs::read(&path).map_err(at(&path))?;
    choice::shards(download.listing, &bytes)
}

/// A repository, and what of it is wanted.
fn parse(model: &str) -> Result<(&str, Option<&str>), PullError> {
    let (repository, wanted) = match model.split_once(':') {
        Some((repository, wanted)) => (repository, Some(wanted).filter(|w| !w.is_empty())),
        None => (model, None),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let good = |part: &str| {
        !part.is_empty() && part.chars().all(plain) && !part.contains("..") && !part.contains("--")
    };
    let parts: Vec<_> = repository.split('/').collect();
    // The rest of a URL is no file either.
    let is_address = wanted.is_some_and(|wanted| wanted.starts_with('/'));
    match !is_address && parts.len() <= 2 && parts.iter().all(|part| good(part) && *part != ".") {
        true => Ok((repository, wanted)),
        false => Err(PullError::Name(model.into())),
    }
}

/// A revision names a file of the cache.
fn parse_revision(revision: String) -> Result<String, PullError> {
    let odd = |part: &str| part.is_empty() || part.starts_with('.');
    match revision.split('/').any(odd) {
        true => Err(PullError::Revision(revision)),
        false => Ok(revision),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_an_owner_and_what_is_wanted_stands_behind_a_colon() {
        assert_eq!(parse("gpt2").unwrap(), ("gpt2", None));
        assert_eq!(parse("a/b-1.5_x:Q4_K_M").unwrap(), ("a/b-1.5_x", Some("Q4_K_M")));
        assert_eq!(parse("a/b:").unwrap(), ("a/b", None));
        for odd in ["", "a/b/c", "a/", "/b", "../b", "a/..", "a b/c", "a/b--c", "https://h/a"] {
            assert!(parse(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn a_revision_that_leads_elsewhere_is_none() {
        assert!(parse_revision("refs/pr/1".into()).is_ok());
        for odd in ["", "../main", "a/../../b", "/etc"] {
            assert!(parse_revision(odd.into()).is_err(), "{odd}");
        }
    }
}
