//! A hub on loopback: what Hugging Face's answers look like, with the faults that networks have.
//!
//! Large files lie on another host, as they do there: a redirect leads to a second listener, under
//! another name.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::{Value, json};

/// The one commit there is.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What may be wrong with a hub.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// Who does not show this token is refused.
    pub(crate) token: Option<&'static str>,
    /// Every body of a file ends after so many bytes, and the connection with it.
    pub(crate) cut: Option<usize>,
    /// Every body of a file stops after so many bytes, and nothing more comes.
    pub(crate) stall: Option<usize>,
    /// Asked for a part, it sends everything.
    pub(crate) no_parts: bool,
    /// One byte of each large file is another.
    pub(crate) flipped: bool,
    /// The size that is listed for large files.
    pub(crate) listed_size: Option<u64>,
    /// Every answer has this status.
    pub(crate) status: Option<u16>,
}

/// A request for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) name: String,
    /// Where in the file it wants to begin.
    pub(crate) from: usize,
    pub(crate) authorization: Option<String>,
    /// Whether it came to where large files lie.
    pub(crate) is_large: bool,
}

/// A file: git holds small ones itself.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_large: bool,
}

#[derive(Debug)]
struct State {
    files: Vec<Content>,
    faults: Mutex<Faults>,
    requests: Mutex<Vec<Request>>,
    /// Where large files lie.
    store: String,
}

/// A hub with one repository, `owner/name`.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) endpoint: String,
    state: Arc<State>,
}

impl Hub {
    /// Starts one; it ends with the test's process.
    pub(crate) fn start(files: Vec<Content>) -> Self {
        let (hub, store) = (listen(), listen());
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            files,
            faults: Mutex::default(),
            requests: Mutex::default(),
            store: format!("http://localhost:{}", port(&store)),
        });
        let endpoint = format!("http://127.0.0.1:{}", port(&hub));
        serve(hub, &state, false);
        serve(store, &state, true);
        Self { endpoint, state }
    }

    pub(crate) fn fail(&self, faults: Faults) {
        *self.state.faults.lock().unwrap() = faults;
    }

    /// The requests for files since this was last asked.
    pub(crate) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.requests.lock().unwrap())
    }
}

impl Content {
    pub(crate) fn small(name: &'static str, text: &str) -> Self {
        Self { name, bytes: text.into(), is_large: false }
    }

    /// So many bytes without much order, different for each name.
    pub(crate) fn large(name: &'static str, length: usize) -> Self {
        let seed = name.bytes().fold(7, |seed: u32, byte| seed * 31 % 65_521 + u32::from(byte));
        let bytes = (0..length as u32).map(|i| (i.wrapping_mul(seed) >> 7) as u8).collect();
        Self { name, bytes, is_large: true }
    }

    /// What its blob is called.
    pub(crate) fn digest(&self) -> String {
        let found = match self.is_large {
            true => digest(&SHA256, &self.bytes),
            false => {
                let mut object = format!("blob {}\0", self.bytes.len()).into_bytes();
                object.extend(&self.bytes);
                digest(&SHA1_FOR_LEGACY_USE_ONLY, &object)
            }
        };
        found.as_ref().iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    }

    fn listed(&self, faults: &Faults) -> Value {
        let size = faults.listed_size.filter(|_| self.is_large).unwrap_or(self.bytes.len() as u64);
        match self.is_large {
            true => json!({ "rfilename": self.name, "size": size, "blobId": "f".repeat(40),
                "lfs": { "sha256": self.digest(), "size": size, "pointerSize": 134 } }),
            false => json!({ "rfilename": self.name, "size": size, "blobId": self.digest() }),
        }
    }
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn serve(listener: TcpListener, state: &Arc<State>, is_store: bool) {
    let state = Arc::clone(state);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (state, stream) = (Arc::clone(&state), stream.unwrap());
            // A client that goes away in the middle is what some tests are about.
            thread::spawn(move || state.answer(stream, is_store));
        }
    });
}

impl State {
    fn answer(&self, mut stream: TcpStream, is_store: bool) -> std::io::Result<()> {
        let (path, headers) = read(&stream)?;
        let header = |name: &str| {
            let found = headers.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.clone())
        };
        let faults = self.faults.lock().unwrap().clone();
        let authorization = header("authorization");
        let shown = authorization.as_ref().and_then(|text| text.strip_prefix("Bearer "));
        if let Some(status) = faults.status {
            return refuse(&mut stream, status);
        }
        if !is_store && faults.token.is_some() && faults.token != shown {
            return refuse(&mut stream, 401);
        }
        if path.starts_with("/api/") {
            return self.list(&mut stream, &path, &faults);
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        let Some(file) = self.files.iter().find(|file| file.name.ends_with(name)) else {
            return refuse(&mut stream, 404);
        };
        let from = header("range").map_or(0, |range| {
            range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap()
        });
        let request = Request { name: file.name.into(), from, authorization, is_large: is_store };
        self.requests.lock().unwrap().push(request);
        match file.is_large && !is_store {
            true => {
                let to = format!("{}/xet/{}", self.store, file.name);
                head(&mut stream, 302, &format!("Location: {to}\r\nContent-Length: 0\r\n"))
            }
            false => send(&mut stream, file, from, &faults),
        }
    }

    fn list(&self, stream: &mut TcpStream, path: &str, faults: &Faults) -> std::io::Result<()> {
        let known = ["main", "refs%2Fpr%2F1", COMMIT];
        let asked = |revision| format!("/api/models/owner/name/revision/{revision}?blobs=true");
        if !known.iter().any(|revision| path == asked(revision)) {
            return refuse(stream, 404);
        }
        let files: Vec<_> = self.files.iter().map(|file| file.listed(faults)).collect();
        let body = json!({ "id": "owner/name", "sha": COMMIT, "siblings": files }).to_string();
        head(stream, 200, &format!("Content-Length: {}\r\n", body.len()))?;
        stream.write_all(body.as_bytes())
    }
}

fn read(stream: &TcpStream) -> std::io::Result<(String, Vec<(String, String)>)> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    for line in lines {
        match line?.split_once(": ") {
            Some((key, value)) => headers.push((key.to_lowercase(), value.to_owned())),
            None => break,
        }
    }
    Ok((path, headers))
}

fn send(
    stream: &mut TcpStream,
    file: &Content,
    from: usize,
    faults: &Faults,
) -> std::io::Result<()> {
    let mut bytes = file.bytes.clone();
    if faults.flipped && file.is_large {
        bytes[0] ^= 1;
    }
    let (all, from) = (bytes.len(), if faults.no_parts { 0 } else { from });
    if from >= all && from > 0 {
        return refuse(stream, 416);
    }
    let range = format!("Content-Range: bytes {from}-{}/{all}\r\n", all - 1);
    let (status, range) = if from > 0 { (206, &*range) } else { (200, "") };
    let length =
        format!("Content-Length: {}\r\n{range}ETag: \"{}\"\r\n", all - from, file.digest());
    head(stream, status, &length)?;
    let rest = &bytes[from..];
    let end = faults.cut.or(faults.stall).unwrap_or(rest.len()).min(rest.len());
    stream.write_all(&rest[..end])?;
    if faults.stall.is_some() && end < rest.len() {
        // Until the client is gone.
        read(stream)?;
    }
    Ok(())
}

fn refuse(stream: &mut TcpStream, status: u16) -> std::io::Result<()> {
    head(stream, status, "Content-Length: 0\r\n")
}

fn head(stream: &mut TcpStream, status: u16, headers: &str) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status} .\r\n{headers}Connection: close\r\n\r\n")
}
