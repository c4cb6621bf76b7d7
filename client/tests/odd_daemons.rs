//! The client before daemons that a real one is only in bad moments: of another version, still
//! loading, stuck, or gone in the middle of an answer.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tinygpt_client::exit::Exit;
use tinygpt_proto::VERSION_HEADER;
use tinygpt_proto::v1::inference_service_server::{InferenceService, InferenceServiceServer};
use tinygpt_proto::v1::sample_response::Event;
use tinygpt_proto::v1::*;
use tokio::net::UnixListener;
use tokio_stream::Iter;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_types::{ErrorDetails, StatusExt};

/// How the daemon is odd.
enum Oddity {
    /// It says that it is version 9.9.9.
    OtherVersion,
    /// It answers "loading" so many times.
    Loading(AtomicU32),
    /// It ends the stream before Done.
    CutShort,
    /// It drains: what it has begun it cancels.
    Drains,
    /// It never answers.
    Stuck,
}

type Events<T> = Iter<std::vec::IntoIter<Result<T, Status>>>;

#[tonic::async_trait]
impl InferenceService for Oddity {
    type SampleStream = Events<SampleResponse>;
    type ChatStream = Events<ChatResponse>;
    type WarmStream = Events<WarmResponse>;

    async fn sample(
        &self,
        _: Request<SampleRequest>,
    ) -> Result<Response<Self::SampleStream>, Status> {
        let mut events = vec![Event::Delta(Delta { text: "hello".into(), ..Default::default() })];
        match self {
            Self::Loading(left) if left.fetch_sub(1, Ordering::Relaxed) > 0 => {
                return Err(loading());
            }
            Self::Stuck => pending().await,
            Self::CutShort => {}
            Self::Drains => events.push(Event::Done(cancelled())),
            _ => events.push(Event::Done(Done::default())),
        }
        let messages =
            events.into_iter().map(|event| Ok(SampleResponse { choice: 0, event: Some(event) }));
        let mut response = Response::new(tokio_stream::iter(messages.collect::<Vec<_>>()));
        if let Self::OtherVersion = self {
            response.metadata_mut().insert(VERSION_HEADER, "9.9.9".parse().unwrap());
        }
        Ok(response)
    }

    async fn chat(&self, _: Request<ChatRequest>) -> Result<Response<Self::ChatStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn warm(&self, _: Request<WarmRequest>) -> Result<Response<Self::WarmStream>, Status> {
        let event = Some(warm_response::Event::Done(cancelled()));
        Ok(Response::new(tokio_stream::iter(vec![Ok(WarmResponse { event })])))
    }

    async fn score(&self, _: Request<ScoreRequest>) -> Result<Response<ScoreResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn embed(&self, _: Request<EmbedRequest>) -> Result<Response<EmbedResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn tokenize(
        &self,
        _: Request<TokenizeRequest>,
    ) -> Result<Response<TokenizeResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn detokenize(
        &self,
        _: Request<DetokenizeRequest>,
    ) -> Result<Response<DetokenizeResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn render_chat(
        &self,
        _: Request<RenderChatRequest>,
    ) -> Result<Response<RenderChatResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

fn cancelled() -> Done {
    Done { finish_reason: FinishReason::Cancelled.into(), ..Default::default() }
}

fn loading() -> Status {
    let mut details = ErrorDetails::new();
    details.set_error_info("MODEL_LOADING", "tinygpt", std::collections::HashMap::new());
    details.set_retry_info(Some(Duration::from_millis(10)));
    Status::with_error_details(Code::Unavailable, "model x is still loading", details)
}

/// Serves for as long as the test runs, and says that it is not healthy.
fn serve(oddity: Oddity) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let (ready, listening) = std::sync::mpsc::channel();
    let path = socket.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (reporter, health) = tonic_health::server::health_reporter();
            reporter.set_service_status("", ServingStatus::NotServing).await;
            let listener = UnixListener::bind(&path).unwrap();
            ready.send(()).unwrap();
            Server::builder()
                .add_service(InferenceServiceServer::new(oddity))
                .add_service(health)
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
                .unwrap();
        });
    });
    listening.recv().unwrap();
    (folder, socket)
}

fn client(socket: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tinygpt-client"))
        .args(["--socket".as_ref(), socket.as_os_str()])
        .args(arguments)
        .output()
        .unwrap()
}

fn sample(socket: &Path, arguments: &[&str]) -> Output {
    client(socket, &[&["sample", "--prompt", "x"], arguments].concat())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_daemon_of_another_version_serves_and_is_pointed_out_once() {
    let (_folder, socket) = serve(Oddity::OtherVersion);
    let output = sample(&socket, &[]);
    assert_eq!(output.stdout, b"hello");
    let words = stderr(&output);
    assert_eq!(words.matches("the daemon is version 9.9.9, this client is").count(), 1, "{words}");
    assert!(words.contains("restart the daemon"), "{words}");
}

#[test]
fn a_daemon_that_loads_is_asked_again() {
    let (_folder, socket) = serve(Oddity::Loading(3.into()));
    let output = sample(&socket, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("still loading").count(), 1);
}

#[test]
fn a_daemon_that_loads_for_too_long_is_given_up() {
    let (_folder, socket) = serve(Oddity::Loading(u32::MAX.into()));
    let asked = std::time::Instant::now();
    let output = sample(&socket, &["--timeout", "0.3"]);
    let took = asked.elapsed().as_secs_f64();
    assert_eq!(output.status.code(), Some(Exit::Deadline.code().into()), "{}", stderr(&output));
    assert!((0.3..2.0).contains(&took), "{took} s");
    assert!(stderr(&output).contains("still loading"), "{}", stderr(&output));
}

#[test]
fn an_answer_that_ends_in_the_middle_is_a_failure() {
    let (_folder, socket) = serve(Oddity::CutShort);
    let output = sample(&socket, &[]);
    assert_eq!(output.stdout, b"hello");
    assert_eq!(output.status.code(), Some(Exit::Unavailable.code().into()));
    assert!(stderr(&output).contains("ended its answer before it was done"), "{}", stderr(&output));
}

#[test]
fn what_the_daemon_cancelled_is_no_success() {
    let (folder, socket) = serve(Oddity::Drains);
    let batch = folder.path().join("batch");
    fs::write(&batch, "{\"prompt\": \"x\"}").unwrap();
    let batch = batch.display().to_string();
    for (arguments, exit, stdout) in [
        (&["sample", "--prompt", "x"][..], Exit::Cancelled, "hello"),
        (&["sample", "--prompt", "x", "--json"], Exit::Cancelled, "\"CANCELLED\""),
        (&["sample", "--prompt", "x", "--json-stream"], Exit::Cancelled, "\"CANCELLED\""),
        (&["sample", "--batch", &batch], Exit::Partial, "\"CANCELLED\""),
        (&["warm", "--prompt", "x"], Exit::Cancelled, ""),
        (&["warm", "--prompt", "x", "--json"], Exit::Cancelled, "\"CANCELLED\""),
    ] {
        let output = client(&socket, arguments);
        assert_eq!(output.status.code(), Some(exit.code().into()), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(stdout), "{arguments:?}: {said}");
    }
}

#[test]
fn a_daemon_that_never_answers_is_given_up_at_the_deadline() {
    let (_folder, socket) = serve(Oddity::Stuck);
    let output = sample(&socket, &["--timeout", "0.3"]);
    assert_eq!(output.status.code(), Some(Exit::Deadline.code().into()), "{}", stderr(&output));
}

#[test]
fn waiting_in_vain_ends_with_the_last_answer() {
    let (_folder, socket) = serve(Oddity::Stuck);
    for time in ["0.2", "0.21", "0.22"] {
        let output = client(&socket, &["wait", "--ready", "--timeout", time]);
        assert_eq!(output.status.code(), Some(Exit::Deadline.code().into()));
        assert!(stderr(&output).ends_with(": NOT_SERVING\n"), "{}", stderr(&output));
    }
}

#[test]
fn a_socket_that_is_silent_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for arguments in [
        &["status"][..],
        &["models"],
        &["cache", "ls"],
        &["cache", "show", "abcd"],
        &["cache", "stats"],
        &["tokenize", "--prompt", "x"],
        &["score", "--prompt", "x"],
        &["wait", "--ready"],
    ] {
        let output = client(&socket, &[arguments, &["--timeout", "0.2"]].concat());
        let code = output.status.code();
        assert_eq!(code, Some(Exit::Deadline.code().into()), "{arguments:?}");
    }
    let output = client(&socket, &["doctor", "--timeout", "0.2"]);
    let checks = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(Exit::Failed.code().into()), "{checks}");
    assert!(checks.contains("FAIL  health   no complete answer after 0.2 s"), "{checks}");
}

#[test]
fn looking_at_a_silent_daemon_takes_seconds_when_no_time_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let looks = ["status", "doctor", "models"];
    let codes = thread::scope(|scope| {
        let socket = &socket;
        let looks = looks.map(|look| scope.spawn(move || client(socket, &[look]).status.code()));
        looks.map(|look| look.join().unwrap())
    });
    let expected = [Exit::Deadline, Exit::Failed, Exit::Deadline];
    assert_eq!(codes, expected.map(|exit| Some(exit.code().into())));
}
