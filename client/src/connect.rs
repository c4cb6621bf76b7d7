//! A connection to the daemon: one Unix socket, and the protocol's clients on top of it.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use tinygpt_proto::MAX_MESSAGE_BYTES;
use tinygpt_proto::socket::SocketPath;
use tinygpt_proto::v1::admin_service_client::AdminServiceClient;
use tinygpt_proto::v1::cache_service_client::CacheServiceClient;
use tinygpt_proto::v1::inference_service_client::InferenceServiceClient;
use tinygpt_proto::v1::model_service_client::ModelServiceClient;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::health_client::HealthClient;

/// A connection to a daemon. Clones share it.
#[derive(Debug, Clone)]
pub struct Connection {
    channel: Channel,
    socket: PathBuf,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens on the socket.
    #[error("no daemon answers at {}: {source}", socket.display())]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The socket answers, and not in this protocol.
    #[error("{} does not answer as a daemon: {source}", socket.display())]
    Transport {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        source: tonic::transport::Error,
    },
    /// The transport takes text only.
    #[error("the socket path {0:?} is not UTF-8")]
    NotText(PathBuf),
}

impl Connection {
    /// Connects to the daemon on `socket`.
    ///
    /// # Errors
    /// When nobody listens there, with the system's words.
    pub async fn open(socket: &SocketPath) -> Result<Self, ConnectError> {
        Self::open_path(socket.path()).await
    }

    /// Connects to the daemon on the socket at `path`.
    ///
    /// # Errors
    /// When nobody listens there, with the system's words.
    pub async fn open_path(path: &Path) -> Result<Self, ConnectError> {
        let text = path.to_str().ok_or_else(|| ConnectError::NotText(path.to_owned()))?;
        let connecting = Endpoint::from_shared(format!("unix:{text}"));
        let connected = match connecting {
            // Without an origin tonic would send an authority of its own making.
            Ok(endpoint) => endpoint.origin(Uri::from_static("http://localhost")).connect().await,
            Err(error) => Err(error),
        };
        let channel = connected.map_err(|error| explain(path, error))?;
        Ok(Self { channel, socket: path.to_owned() })
    }

    /// The socket that it was opened on.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs models.
    #[must_use]
    pub fn inference(&self) -> InferenceServiceClient<Channel> {
        InferenceServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Looks at the cache and tends it.
    #[must_use]
    pub fn cache(&self) -> CacheServiceClient<Channel> {
        CacheServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Lists models.
    #[must_use]
    pub fn models(&self) -> ModelServiceClient<Channel> {
        ModelServiceClient::new(self.channel.clone())
    }

    /// Looks after the daemon.
    #[must_use]
    pub fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }

    /// gRPC's standard health service.
    #[must_use]
    pub fn health(&self) -> HealthClient<Channel> {
        HealthClient::new(self.channel.clone())
    }
}

impl ConnectError {
    /// Whether nobody listens: a daemon that is started now would be reached.
    #[must_use]
    pub fn is_no_daemon(&self) -> bool {
        let Self::NoDaemon { source, .. } = self else { return false };
        matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    }
}

/// The system's own error lies at the bottom of what tonic reports, when there is one.
fn explain(socket: &Path, error: tonic::transport::Error) -> ConnectError {
    let socket = socket.to_owned();
    match system_error(&error) {
        Some(source) => ConnectError::NoDaemon { socket, source },
        None => ConnectError::Transport { socket, source: error },
    }
}

fn system_error(error: &tonic::transport::Error) -> Option<io::Error> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return found.raw_os_error().map(io::Error::from_raw_os_error);
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn error(path: &Path) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Connection::open_path(path)).unwrap_err().to_string()
    }

    #[test]
    fn a_missing_socket_is_reported_in_the_systems_words() {
        let error = error(Path::new("/no/such.sock"));
        let expected = "no daemon answers at /no/such.sock: No such file or directory (os error 2)";
        assert_eq!(error, expected);
    }

    #[test]
    fn a_socket_that_a_dead_daemon_left_is_reported_as_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let error = error(&path);
        assert!(error.contains("refused"), "{error}");
    }
}
