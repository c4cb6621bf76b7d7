//! What is measured, for Prometheus: `GET /metrics`, and `GET /health` beside it.
//!
//! This is the one place where the daemon listens elsewhere than on its socket, if it is told to:
//! on a loopback address, which other users of the machine reach too, or on a Unix socket that they
//! do not. Nothing can be changed here, and no prompt or text is told.
//!
//! A few connections at a time, a small head, a short time for all of it, and one answer each. A
//! name that is not this machine's is refused in `Host`: it would be that of a web page that has
//! somebody's browser ask.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tinygpt_proto::Label;
use tinygpt_proto::v1::DaemonState;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::Daemon;
use crate::metrics::page::MEDIA_TYPE;
use crate::sys::socket::{self, SocketFile};

/// Connections at a time; others wait in the system's queue.
const CONNECTIONS: usize = 8;
/// Time for a whole connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of a head: the least that hyper takes.
const HEAD: usize = 8 << 10;
/// How long to wait when the system has no descriptor for another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Where to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On a loopback address.
    Loopback(SocketAddr),
    /// On a Unix socket.
    Socket(PathBuf),
}

/// Why a place is none.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Others could reach it.
    #[error(
        "{0} is not a loopback address: whatever is measured would be told to the network; give \
         127.0.0.1:PORT, [::1]:PORT or the path of a Unix socket, and have something that knows \
         who may read it forward it"
    )]
    NotLoopback(SocketAddr),
    /// It is neither an address nor a path.
    #[error("{0:?} is neither 127.0.0.1:PORT or [::1]:PORT nor the absolute path of a Unix socket")]
    Unclear(String),
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(words: &str) -> Result<Self, PlaceError> {
        if words.starts_with('/') {
            return Ok(Self::Socket(words.into()));
        }
        let local = words.strip_prefix("localhost:").and_then(|port| port.parse().ok());
        let local = local.map(|port: u16| (IpAddr::from(Ipv4Addr::LOCALHOST), port).into());
        let address: Option<SocketAddr> = local.or_else(|| words.parse().ok());
        match address.ok_or_else(|| PlaceError::Unclear(words.to_owned()))? {
            address if address.ip().is_loopback() => Ok(Self::Loopback(address)),
            address => Err(PlaceError::NotLoopback(address)),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => write!(f, "{address}"),
            Self::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A place that is open.
#[derive(Debug)]
pub struct Scrapes(Listener);

#[derive(Debug)]
enum Listener {
    Loopback(TcpListener),
    /// The file goes when nobody is answered any more.
    Socket(UnixListener, #[expect(dead_code, reason = "held")] SocketFile),
}

impl Scrapes {
    /// Listens. Must be called on a runtime.
    ///
    /// # Errors
    /// When the place cannot be had.
    pub async fn open(place: &Place) -> anyhow::Result<Self> {
        let listener = match place {
            Place::Loopback(address) => {
                let listener = TcpListener::bind(address).await?;
                tracing::info!(metrics = %listener.local_addr()?, "listening");
                Listener::Loopback(listener)
            }
            Place::Socket(path) => {
                let (listener, file): (StdUnixListener, _) = socket::bind(path)?;
                tracing::info!(metrics = %path.display(), "listening");
                Listener::Socket(UnixListener::from_std(listener)?, file)
            }
        };
        Ok(Self(listener))
    }

    /// Answers whoever comes.
    pub async fn answer(self, daemon: Arc<Daemon>) -> Infallible {
        let free = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // It is never closed.
            let place = Arc::clone(&free).acquire_owned().await;
            let daemon = Arc::clone(&daemon);
            let served = match self.0.accept().await {
                Ok(connection) => connection,
                Err(error) => {
                    tracing::debug!(%error, "no connection");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            tokio::spawn(async move {
                match served {
                    Connection::Loopback(stream) => serve(stream, daemon, true).await,
                    Connection::Socket(stream) => serve(stream, daemon, false).await,
                }
                drop(place);
            });
        }
    }
}

/// Somebody who asks.
enum Connection {
    Loopback(tokio::net::TcpStream),
    Socket(tokio::net::UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Connection> {
        Ok(match self {
            Self::Loopback(listener) => Connection::Loopback(listener.accept().await?.0),
            Self::Socket(listener, _) => Connection::Socket(listener.accept().await?.0),
        })
    }
}

/// One request and its answer.
async fn serve<S>(stream: S, daemon: Arc<Daemon>, check_host: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = service_fn(|request: Request<Incoming>| {
        let foreign = check_host && !request.headers().get(HOST).is_none_or(is_local);
        let answer = match foreign {
            true => words(StatusCode::FORBIDDEN, "this is for this machine\n"),
            false => respond(&daemon, request.method(), request.uri().path()),
        };
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), answer);
    if let Ok(Err(error)) = timeout(PATIENCE, connection).await {
        tracing::debug!(%error, "a scrape failed");
    }
}

fn respond(daemon: &Daemon, method: &Method, path: &str) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return words(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
    }
    match path {
        "/metrics" => {
            let mut answer = Response::new(Full::from(daemon.page()));
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
            answer
        }
        "/health" => health(daemon.state()),
        _ => words(StatusCode::NOT_FOUND, "there are /metrics and /health\n"),
    }
}

fn health(state: DaemonState) -> Response<Full<Bytes>> {
    let status = match state {
        DaemonState::Serving => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    words(status, format!("{}\n", state.label().to_ascii_lowercase()))
}

fn words(status: StatusCode, words: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(words.into()));
    *answer.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, plain);
    answer
}

/// Whether a `Host` is this machine, as itself.
fn is_local(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_on_this_machine_or_refused_with_a_reason() {
        for words in ["127.0.0.1:9100", "127.1.2.3:0", "[::1]:9100", "/run/user/1/m.sock"] {
            assert_eq!(words.parse::<Place>().unwrap().to_string(), words);
        }
        assert_eq!("localhost:9100".parse::<Place>().unwrap().to_string(), "127.0.0.1:9100");
        for words in ["0.0.0.0:9100", "[::]:9100", "192.168.1.2:9100", "[::ffff:10.0.0.1]:1"] {
            let refused = words.parse::<Place>().unwrap_err().to_string();
            assert!(refused.contains(words) && refused.contains("loopback"), "{refused}");
        }
        for words in ["", "9100", "m.sock", "example.org:80", "127.0.0.1", "localhost:x"] {
            let refused = words.parse::<Place>().unwrap_err().to_string();
            assert!(refused.contains(&format!("{words:?}")), "{refused}");
        }
    }

    #[test]
    fn only_names_of_this_machine_are_answered() {
        let local = |host: &str| is_local(&HeaderValue::from_str(host).unwrap());
        for host in ["localhost", "localhost:9100", "127.0.0.1:1", "[::1]:1", "127.0.0.1", "[::1]"]
        {
            assert!(local(host), "{host}");
        }
        for host in ["evil.example:9100", "localhost.evil.example", "10.0.0.1:1", "", "127.0.0.1.x"]
        {
            assert!(!local(host), "{host}");
        }
    }
}
