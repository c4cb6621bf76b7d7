//! Who is at the other end, and what is theirs.
//!
//! The kernel says which user a Unix connection belongs to; nothing a client sends can change it.
//! The daemon serves its own user only, and every namespace is derived from the peer's uid, so
//! that nothing would change for anyone if a second user were ever let in: cached prompts are
//! shared inside a namespace and nowhere else, not even by the time an answer takes
//! (CVE-2025-46570).

use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

use super::refusal::Refusal;
use crate::engine::job::{Caller, ClientId, Namespace, Priority};
use crate::kv::key::Digest;

/// A peer that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    uid: u32,
    /// 0 where the system does not tell.
    pid: u32,
}

impl Peer {
    /// Lets a request of the daemon's own user through, with its peer in the extensions.
    pub fn check<T>(mut request: Request<T>) -> Result<Request<T>, Status> {
        let credentials = request.extensions().get::<UdsConnectInfo>();
        let credentials = credentials.and_then(|connection| connection.peer_cred);
        let pid = credentials.and_then(|peer| u32::try_from(peer.pid()?).ok()).unwrap_or_default();
        let uid = credentials.map(|peer| peer.uid());
        let peer = Self::admit(uid, pid, rustix::process::geteuid().as_raw())?;
        request.extensions_mut().insert(peer);
        Ok(request)
    }

    /// The daemon's own user, on whose behalf it does what its configuration says.
    pub fn own() -> Self {
        Self { uid: rustix::process::geteuid().as_raw(), pid: std::process::id() }
    }

    /// The peer of a request that has been checked.
    pub fn of<T>(request: &Request<T>) -> Result<Self, Refusal> {
        let checked = request.extensions().get::<Self>().copied();
        checked.ok_or_else(|| unknown(rustix::process::geteuid().as_raw()))
    }

    /// The namespace of the peer's requests that name `sub`.
    pub fn namespace(self, sub: &str) -> Namespace {
        Namespace {
            identity: Digest::of("identity uid", &self.uid.to_le_bytes()),
            sub: Digest::of("namespace", sub.as_bytes()),
        }
    }

    /// The peer as one who asks with `priority`.
    pub fn caller(self, priority: Priority) -> Caller {
        Caller { client: ClientId { uid: self.uid, pid: self.pid }, priority }
    }

    fn admit(uid: Option<u32>, pid: u32, owner: u32) -> Result<Self, Refusal> {
        match uid {
            Some(uid) if uid == owner => Ok(Self { uid, pid }),
            Some(uid) => Err(Refusal::Peer { owner, peer: format!("uid {uid}") }),
            None => Err(unknown(owner)),
        }
    }
}

fn unknown(owner: u32) -> Refusal {
    Refusal::Peer { owner, peer: "of unknown uid".into() }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_the_daemons_own_user_is_served() {
        assert_eq!(Peer::admit(Some(7), 3, 7).unwrap(), Peer { uid: 7, pid: 3 });
        assert!(Peer::admit(Some(0), 3, 7).unwrap_err().to_string().contains("the peer is uid 0"));
        assert!(Peer::admit(None, 3, 7).is_err());
    }

    #[test]
    fn a_connection_without_credentials_is_refused() {
        let status = Peer::check(Request::new(())).unwrap_err();
        assert_eq!(status.code(), tonic::Code::PermissionDenied);
    }

    #[test]
    fn users_and_sub_namespaces_share_nothing() {
        let (one, two) = (Peer { uid: 1, pid: 1 }, Peer { uid: 2, pid: 1 });
        assert_ne!(one.namespace(""), two.namespace(""));
        assert_ne!(one.namespace(""), one.namespace("a"));
        assert_eq!(one.namespace("a"), Peer { pid: 2, ..one }.namespace("a"));
    }
}
