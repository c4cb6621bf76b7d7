//! What a hub says: which files a repository has, and their bytes.

use std::time::Duration;

use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::{Agent, Body};

use super::digest::{self, Digest};
use super::error::PullError;
use super::surroundings::Surroundings;

/// How long a hub may say nothing before the connection counts as broken.
const SILENCE: Duration = Duration::from_secs(60);

/// Beyond this a list of files is no such thing.
const LISTING_BYTES: u64 = 64 << 20;

/// A hub.
#[derive(Debug)]
pub(super) struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// The files of one commit of a repository.
#[derive(Debug)]
pub(super) struct Listing {
    endpoint: String,
    pub(super) repository: String,
    /// 40 hexadecimal digits.
    pub(super) commit: String,
    pub(super) files: Vec<Entry>,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// A relative path that leads nowhere else.
    pub(super) name: String,
    /// In bytes.
    pub(super) size: u64,
    pub(super) digest: Digest,
}

impl Hub {
    pub(super) fn new(surroundings: &Surroundings) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(SILENCE / 2))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .user_agent(concat!("tinygpt-client/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let Surroundings { endpoint, token, .. } = surroundings;
        Self { agent, endpoint: endpoint.clone(), token: token.clone() }
    }

    /// The files of a repository at a revision.
    pub(super) fn list(&self, repository: &str, revision: &str) -> Result<Listing, PullError> {
        let revision_part = escape(revision, "");
        let url = format!(
            "{}/api/models/{repository}/revision/{revision_part}?blobs=true",
            self.endpoint
        );
        let mut response = self.ask(&url, None)?;
        if response.status().as_u16() != 200 {
            let what = format!("repository {repository} with a revision {revision}");
            return Err(self.refusal(&response, repository, what));
        }
        let bytes = response.body_mut().with_config().limit(LISTING_BYTES).read_to_vec();
        let bytes = bytes.map_err(|error| self.unreachable(&error))?;
        self.understand(repository, &bytes)
    }

    fn understand(&self, repository: &str, bytes: &[u8]) -> Result<Listing, PullError> {
        let mut listing = Listing {
            endpoint: self.endpoint.clone(),
            repository: repository.into(),
            commit: String::new(),
            files: Vec::new(),
        };
        let info: Info =
            serde_json::from_slice(bytes).map_err(|error| listing.nonsense(error.to_string()))?;
        if !digest::is_hex(&info.sha, 40) {
            return Err(listing.nonsense(format!("the commit {:?}", info.sha)));
        }
        listing.commit = info.sha;
        for sibling in info.siblings.into_iter().filter(|file| leads_inside(&file.rfilename)) {
            let name = sibling.rfilename.clone();
            let entry = sibling.entry();
            let entry =
                entry.ok_or_else(|| listing.nonsense(format!("no size or digest of {name}")))?;
            listing.files.push(entry);
        }
        Ok(listing)
    }

    /// The bytes of a file from `from` on, or all of them where the hub does not know parts.
    ///
    /// The status is 200, 206 or 416.
    pub(super) fn open(
        &self,
        listing: &Listing,
        file: &Entry,
        from: u64,
    ) -> Result<Response<Body>, PullError> {
        let Listing { repository, commit, .. } = listing;
        let name = escape(&file.name, "/");
        let url = format!("{}/{repository}/resolve/{commit}/{name}", self.endpoint);
        let response = self.ask(&url, (from > 0).then_some(from))?;
        match response.status().as_u16() {
            200 | 206 | 416 => Ok(response),
            _ => Err(self.refusal(&response, repository, format!("{} in {repository}", file.name))),
        }
    }

    fn ask(&self, url: &str, from: Option<u64>) -> Result<Response<Body>, PullError> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(from) = from {
            request = request.header("Range", format!("bytes={from}-"));
        }
        request.call().map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &ureq::Error) -> PullError {
        PullError::Unreachable { endpoint: self.endpoint.clone(), reason: error.to_string() }
    }

    fn refusal(&self, response: &Response<Body>, repository: &str, what: String) -> PullError {
        let endpoint = self.endpoint.clone();
        match response.status().as_u16() {
            status @ (401 | 403) => {
                let page = format!("{endpoint}/{repository}");
                PullError::Denied { repository: repository.into(), status, page }
            }
            404 => PullError::Absent { endpoint, what },
            status => PullError::Status { endpoint, status, what },
        }
    }
}

impl Listing {
    /// A file that the model needs.
    pub(super) fn find(&self, name: &str) -> Result<&Entry, PullError> {
        let lacks = || PullError::Lacks { repository: self.repository.clone(), file: name.into() };
        self.files.iter().find(|file| file.name == name).ok_or_else(lacks)
    }

    pub(super) fn nonsense(&self, reason: String) -> PullError {
        let Self { endpoint, repository, .. } = self;
        PullError::Listing { endpoint: endpoint.clone(), repository: repository.clone(), reason }
    }

    #[cfg(test)]
    pub(super) fn of_names(repository: &str, names: &[&str]) -> Self {
        let file = |name: &&str| Entry {
            name: (*name).into(),
            size: 1,
            digest: Digest::Git("0".repeat(40)),
        };
        Self {
            endpoint: "http://hub".into(),
            repository: repository.into(),
            commit: "0".repeat(40),
            files: names.iter().map(file).collect(),
        }
    }
}

/// A hub's answer, as far as it counts.
#[derive(Deserialize)]
struct Info {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

/// A file that git only points to.
#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Sibling {
    fn entry(self) -> Option<Entry> {
        let (size, digest) = match self.lfs {
            Some(lfs) => (lfs.size, Digest::sha256(&lfs.sha256)?),
            None => (self.size?, Digest::git(&self.blob_id?)?),
        };
        Some(Entry { name: self.rfilename, size, digest })
    }
}

/// Whether a path is relative and has no way up or out.
fn leads_inside(path: &str) -> bool {
    let odd =
        |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(['\\', '\0']);
    !path.split('/').any(odd)
}

/// A piece of a URL, of whose bytes letters, digits and those in `plain` need no escape.
fn escape(text: &str, plain: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(byte.into());
            }
            _ if plain.as_bytes().contains(&byte) => escaped.push(byte.into()),
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_of_a_url_has_no_other_meaning() {
        assert_eq!(escape("refs/pr/1", ""), "refs%2Fpr%2F1");
        assert_eq!(escape("a b/c#?%.gguf", "/"), "a%20b/c%23%3F%25.gguf");
    }

    #[test]
    fn a_path_that_leads_out_of_the_repository_is_no_file_of_it() {
        for path in ["../x", "/x", "a/../../x", "a//b", "", ".", "a\\..\\x"] {
            assert!(!leads_inside(path), "{path}");
        }
        assert!(leads_inside("a/b..c/.d"));
    }
}
