//! The service on a real socket, with a real engine on the built-in model.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use tinygpt_kernels::Pool;
use tinygpt_proto::v1 as wire;
use tinygpt_proto::v1::admin_service_client::AdminServiceClient;
use tinygpt_proto::v1::cache_service_client::CacheServiceClient;
use tinygpt_proto::v1::inference_service_client::InferenceServiceClient;
use tinygpt_proto::v1::sample_response::Event;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use super::authority::samples;
use super::models::Rules;
use super::*;
use crate::engine::{self, Budget, EngineHandle, Ground, Source};

mod broken;

/// How long an engine of these tests may be silent; an idle one speaks every second.
const SILENCE: Duration = Duration::from_secs(3);

struct Running {
    folder: TempDir,
    /// Of the first model.
    engine: EngineHandle,
    channel: Channel,
    shutdown: CancellationToken,
    server: JoinHandle<Result<Ended, ServeError>>,
}

impl Running {
    async fn start() -> Self {
        Self::start_with(None).await
    }

    async fn start_with(idle_exit: Option<Duration>) -> Self {
        Self::start_serving(vec![Source::new("builtin", None)], idle_exit).await
    }

    async fn start_serving(sources: Vec<Source>, idle_exit: Option<Duration>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = socket(folder.path());
        let listener = UnixListener::bind(&socket).unwrap();
        let shutdown = CancellationToken::new();
        let over = shutdown.clone().cancelled_owned();
        let limits = Limits { grace: Duration::from_secs(5), idle_exit };
        let incoming = UnixListenerStream::new(listener);
        let daemon = daemon(&socket, sources);
        let engine = daemon.models.all()[0].engine().clone();
        let server = tokio::spawn(serve(daemon, incoming, over, limits));
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let channel = endpoint.connect().await.unwrap();
        Self { folder, engine, channel, shutdown, server }
    }

    fn inference(&self) -> InferenceServiceClient<Channel> {
        InferenceServiceClient::new(self.channel.clone())
    }

    fn cache(&self) -> CacheServiceClient<Channel> {
        CacheServiceClient::new(self.channel.clone())
    }

    fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }

    async fn sample(&self, request: wire::SampleRequest) -> Result<Sampled, Status> {
        let mut stream = self.inference().sample(request).await?.into_inner();
        let mut sampled = Sampled::default();
        while let Some(response) = stream.message().await? {
            match response.event.unwrap() {
                Event::Admitted(admitted) => sampled.admitted = admitted,
                Event::PrefillProgress(_) => {}
                Event::Delta(delta) => {
                    sampled.text += &delta.text;
                    sampled.ids.extend(delta.token_ids);
                }
                Event::Done(done) => sampled.done = done,
            }
        }
        Ok(sampled)
    }

    async fn refusal(&self, request: wire::SampleRequest) -> (Code, String, String) {
        let status = self.sample(request).await.map(|_| ()).unwrap_err();
        reasons(&status)
    }

    async fn running(&self) -> u32 {
        let status = self.admin().status(wire::StatusRequest {}).await.unwrap();
        status.into_inner().running
    }

    async fn end(self) -> Ended {
        self.shutdown.cancel();
        self.server.await.unwrap().unwrap()
    }
}

#[derive(Debug, Default)]
struct Sampled {
    admitted: wire::Admitted,
    text: String,
    ids: Vec<u32>,
    done: wire::Done,
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("a b.sock")
}

pub(super) fn settings() -> Settings {
    Settings {
        queue: 16,
        active_budget: 1 << 30,
        cache_budget: Budget { heap: 1 << 28, mappings: 64 },
        stall: Duration::from_secs(60),
        silence: SILENCE,
    }
}

fn daemon(socket: &Path, sources: Vec<Source>) -> Daemon {
    daemon_with(Some(socket.to_owned()), settings(), sources, Rules::default())
}

pub(super) fn daemon_with(
    socket: Option<PathBuf>,
    settings: Settings,
    sources: Vec<Source>,
    rules: Rules,
) -> Daemon {
    let pool = Arc::new(Pool::new(NonZeroUsize::MIN));
    let ground = Ground { settings: settings.clone(), machine: pool.into(), store: None };
    let models = Models::start(ground, sources, rules).unwrap();
    let facts = Facts {
        socket,
        cache_dir: None,
        started: SystemTime::now(),
        threads: 1,
        engine: settings,
        places: Places::default(),
        warm: Vec::new(),
    };
    Daemon::new(models, None, facts, None)
}

fn greedy(text: &str, max_tokens: u32) -> wire::SampleRequest {
    let sampling = wire::Sampling {
        temperature: Some(0.0),
        max_tokens: Some(max_tokens),
        ..Default::default()
    };
    wire::SampleRequest {
        prompt: Some(wire::sample_request::Prompt::Text(text.into())),
        sampling: Some(sampling),
        ..Default::default()
    }
}

fn with(mut request: wire::SampleRequest, f: fn(&mut wire::Sampling)) -> wire::SampleRequest {
    f(request.sampling.as_mut().unwrap());
    request
}

fn reasons(status: &Status) -> (Code, String, String) {
    let info = status.get_details_error_info().expect("every refusal has its reason");
    (status.code(), info.reason, status.message().to_owned())
}

#[tokio::test]
async fn a_sample_streams_and_the_same_prompt_again_is_a_full_hit() {
    let running = Running::start().await;
    let cold = running.sample(greedy("ROMEO: what light", 20)).await.unwrap();
    assert_eq!((cold.ids.len(), cold.admitted.prompt_tokens), (20, 17));
    assert_eq!(cold.done.verdict(), wire::Verdict::Cold);
    assert_eq!(cold.done.finish_reason(), wire::FinishReason::Length);
    let warm = running.sample(greedy("ROMEO: what light", 20)).await.unwrap();
    assert_eq!((&warm.text, &warm.ids), (&cold.text, &cold.ids));
    assert_eq!(warm.done.verdict(), wire::Verdict::FullMemory);
    let usage = warm.done.usage.unwrap();
    assert_eq!((usage.cached_tokens, usage.prompt_tokens), (17, 17));
    assert_eq!(warm.done.prompt_key.len(), 64);
    assert_eq!(running.end().await, Ended::Shutdown);
}

#[tokio::test]
async fn bad_requests_are_refused_with_a_reason_and_the_daemon_lives() {
    let running = Running::start().await;
    let check = async |request, code, reason: &str, words: &str| {
        let (got, told, message) = running.refusal(request).await;
        assert_eq!((got, &*told), (code, reason), "{message}");
        assert!(message.contains(words), "{message}");
    };
    let invalid = Code::InvalidArgument;
    let cold = with(greedy("a", 1), |s| s.temperature = Some(-0.5));
    check(cold, invalid, "OUT_OF_RANGE", "temperature is -0.5").await;
    check(greedy(&"a".repeat(1025), 1), invalid, "PROMPT_TOO_LONG", "1,025 tokens").await;
    check(greedy("", 1), invalid, "EMPTY_PROMPT", "0 tokens").await;
    let strange = with(greedy("a", 1), |s| s.stop_token_ids = vec![256]);
    check(strange, invalid, "TOKEN_OUTSIDE_VOCABULARY", "stop_token_ids").await;
    let other = wire::SampleRequest { model: "x".into(), ..greedy("a", 1) };
    check(other, Code::NotFound, "UNKNOWN_MODEL", "there are builtin").await;
    let dtype = wire::SampleRequest { kv_dtype: "q77".into(), ..greedy("a", 1) };
    check(dtype, invalid, "UNKNOWN_VALUE", "f32, f16, bf16").await;
    let none = wire::SampleRequest { prompt: None, ..greedy("a", 1) };
    check(none, invalid, "NO_PROMPT", "prompt").await;
    let many = with(greedy("a", 1), |s| s.n = 65);
    check(many, invalid, "OUT_OF_RANGE", "n is 65").await;
    assert_eq!(running.sample(greedy("a", 1)).await.unwrap().ids.len(), 1);
    running.end().await;
}

#[tokio::test]
async fn generation_is_cut_to_what_the_prompt_leaves_of_the_context_and_says_so() {
    let running = Running::start().await;
    let sampled = running.sample(greedy(&"a".repeat(1_020), 10)).await.unwrap();
    assert_eq!((sampled.ids.len(), sampled.admitted.max_tokens), (4, 4));
    let expected = "max_tokens is 10, the prompt leaves 4 of the context's 1,024";
    assert_eq!(sampled.admitted.warnings, [expected]);
    running.end().await;
}

#[tokio::test]
async fn several_texts_come_in_one_stream_each_with_its_own_end() {
    let running = Running::start().await;
    let hot = |n| {
        let mut request = with(greedy("ab", 9), |s| {
            (s.temperature, s.seed, s.stop) = (Some(1.5), Some(3), vec!["e".into()]);
        });
        request.sampling.as_mut().unwrap().n = n;
        request
    };
    let mut stream = running.inference().sample(hot(3)).await.unwrap().into_inner();
    let (mut texts, mut ended) = (vec![String::new(); 3], vec![0; 3]);
    while let Some(response) = stream.message().await.unwrap() {
        let choice = response.choice as usize;
        match response.event.unwrap() {
            Event::Delta(delta) => texts[choice] += &delta.text,
            Event::Done(done) => {
                let usage = done.usage.unwrap();
                assert!(usage.completion_tokens <= 9 && usage.prompt_tokens == 2, "{usage:?}");
                ended[choice] += 1;
            }
            Event::Admitted(_) | Event::PrefillProgress(_) => assert_eq!(choice, 0),
        }
    }
    assert_eq!(ended, [1, 1, 1]);
    assert_eq!(texts[0], running.sample(hot(1)).await.unwrap().text);
    assert!(texts[1..].iter().all(|text| *text != texts[0] && !text.contains('e')), "{texts:?}");
    let counters = running.admin().status(wire::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(counters.counters["requests_finished"], 2);
    assert_eq!(counters.counters["prompt_tokens"], 4, "a prompt is counted once");
    running.end().await;
}

#[tokio::test]
async fn a_response_stream_that_is_dropped_ends_the_work() {
    let running = Running::start().await;
    let request = greedy("ROMEO:", 900);
    let mut stream = running.inference().sample(request).await.unwrap().into_inner();
    while !matches!(stream.message().await.unwrap().unwrap().event, Some(Event::Delta(_))) {}
    assert_eq!(running.running().await, 1);
    drop(stream);
    let gone = async {
        while running.running().await > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(5), gone).await.expect("the engine must notice");
    running.end().await;
}

#[tokio::test]
async fn a_deadline_ends_a_generation() {
    let running = Running::start().await;
    running.sample(greedy("a", 1)).await.unwrap();
    let mut request = Request::new(greedy("ROMEO:", 1_000));
    // tonic's client applies it to the beginning of the answer only.
    request.metadata_mut().insert("grpc-timeout", "150m".parse().unwrap());
    let mut stream = running.inference().sample(request).await.unwrap().into_inner();
    let status = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("1,000 tokens in 150 ms: use a longer generation here"),
            Err(status) => break status,
        }
    };
    let (code, reason, message) = reasons(&status);
    assert_eq!((code, &*reason), (Code::DeadlineExceeded, "DEADLINE"), "{message}");
    running.end().await;
}

#[tokio::test]
async fn cached_prompts_are_listed_shown_explained_and_removed() {
    let running = Running::start().await;
    let text = "Listed among the cached prompts, in full. ".repeat(2);
    let key = running.sample(greedy(&text, 0)).await.unwrap().done.prompt_key;
    let list = async || {
        let request = wire::CacheServiceListRequest::default();
        let mut stream = running.cache().list(request).await.unwrap().into_inner();
        let mut entries = Vec::new();
        while let Some(response) = stream.message().await.unwrap() {
            entries.extend(response.entry);
        }
        entries
    };
    let [entry] = &list().await[..] else { panic!("one prompt was cached") };
    assert_eq!((&entry.prompt_key, entry.tokens, &*entry.model), (&key, 84, "builtin"));
    assert!(text.starts_with(&entry.preview) && entry.preview.len() == 60);
    let request = wire::CacheServiceGetRequest { key: key[..8].into() };
    let shown = running.cache().get(request).await.unwrap().into_inner();
    assert_eq!((shown.text, shown.blocks.len()), (text.clone(), 2));
    assert!(shown.blocks.iter().all(|block| block.memory && !block.disk && block.bytes > 0));
    let longer = text.clone() + "More.";
    let prompt = Some(wire::explain_request::Prompt::Text(longer));
    let request = wire::ExplainRequest { prompt, ..Default::default() };
    let explained = running.cache().explain(request).await.unwrap().into_inner();
    assert_eq!(explained.cached_tokens, 84);
    assert_eq!(explained.reason(), wire::Reason::Extended);
    let [relative] = &explained.relatives[..] else { panic!("one prompt is related") };
    assert_eq!((&relative.prompt_key, relative.common_tokens), (&key, 84));
    assert_eq!(relative.reason(), wire::Reason::Extended);
    let keys = wire::CacheKeys { keys: vec![key.clone(), key[..12].into()] };
    let target = Some(wire::remove_request::Target::Keys(keys));
    let removed = running.cache().remove(wire::RemoveRequest { target }).await.unwrap();
    assert_eq!(removed.into_inner().entries, 1, "named twice, it is one prompt");
    assert!(list().await.is_empty());
    running.end().await;
}

#[tokio::test]
async fn a_key_that_stands_for_nothing_is_refused() {
    let running = Running::start().await;
    let get = async |key: &str| {
        let request = wire::CacheServiceGetRequest { key: key.into() };
        reasons(&running.cache().get(request).await.unwrap_err()).1
    };
    assert_eq!(get("0123456789abcdef").await, "UNKNOWN_KEY");
    assert_eq!(get("012").await, "MALFORMED_KEY");
    assert_eq!(get("xyzxyz").await, "MALFORMED_KEY");
    running.end().await;
}

#[tokio::test]
async fn what_is_not_built_says_so_by_its_name() {
    let running = Running::start().await;
    let (mut inference, mut cache) = (running.inference(), running.cache());
    let export = cache.export(wire::ExportRequest::default()).await.map(|_| ());
    let import = cache.import(tokio_stream::empty()).await.map(|_| ());
    let answers = [
        ("Chat", inference.chat(wire::ChatRequest::default()).await.map(|_| ())),
        ("Embed", inference.embed(wire::EmbedRequest::default()).await.map(|_| ())),
        ("RenderChat", inference.render_chat(wire::RenderChatRequest::default()).await.map(|_| ())),
        ("Export", export),
        ("Import", import),
    ];
    let protocol = include_str!("../../../docs/protocol.md");
    for (name, answer) in answers {
        let (code, reason, message) = reasons(&answer.unwrap_err());
        assert_eq!((code, &*reason), (Code::Unimplemented, "NOT_IMPLEMENTED"), "{name}");
        assert!(message.starts_with(name), "{message}");
        assert!(protocol.contains(&format!("`{name}`")), "docs/protocol.md lists {name}");
    }
    running.end().await;
}

#[tokio::test]
async fn models_and_status_tell_what_is_served() {
    let running = Running::start().await;
    running.sample(greedy("a", 1)).await.unwrap();
    let status = running.admin().status(wire::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.state(), wire::DaemonState::Serving);
    assert_eq!(status.pid, std::process::id());
    assert_eq!(status.socket, socket(running.folder.path()).display().to_string());
    assert_eq!(status.counters["requests_finished"], 1);
    let [model] = &status.models[..] else { panic!("one model is served") };
    assert!(model.default && model.context == 1024 && model.vocab == 256);
    assert!(model.kv_bytes_per_token > 0 && model.weights_id.len() == 64);
    assert_eq!((&*model.format, model.hidden), ("tinygpt", 192));
    running.end().await;
}

#[tokio::test]
async fn a_model_that_is_loading_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("model");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let sources = vec![Source::new("builtin", None), Source::new("slow", Some(pipe.clone()))];
    let running = Running::start_serving(sources, None).await;
    let slow = running.channel.clone();
    let _waiting = tokio::spawn(async move {
        let request = wire::TokenizeRequest { model: "slow".into(), ..Default::default() };
        InferenceServiceClient::new(slow).tokenize(request).await
    });
    let key = running.sample(greedy("a", 1)).await.unwrap().done.prompt_key;
    let asked = Instant::now();
    let status = running.admin().status(wire::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.state(), wire::DaemonState::Loading);
    let request = wire::CacheServiceListRequest::default();
    let mut list = running.cache().list(request).await.unwrap().into_inner();
    assert_eq!(list.message().await.unwrap().unwrap().entry.unwrap().prompt_key, key);
    let target = Some(wire::remove_request::Target::All(true));
    let removed = running.cache().remove(wire::RemoveRequest { target }).await.unwrap();
    assert_eq!(removed.into_inner().entries, 1);
    running.admin().drain(wire::DrainRequest {}).await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    // An empty file is no model: the load ends, and with it the engine.
    std::fs::File::options().write(true).open(&pipe).unwrap();
    let ended = timeout(Duration::from_secs(10), running.server).await.unwrap();
    assert_eq!(ended.unwrap().unwrap(), Ended::Drained);
}

#[tokio::test]
async fn a_drained_daemon_is_not_healthy_refuses_new_requests_and_ends() {
    let running = Running::start().await;
    let mut health = HealthClient::new(running.channel.clone());
    running.sample(greedy("a", 1)).await.unwrap();
    let request = HealthCheckRequest { service: String::new() };
    let mut watch = health.watch(request).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 1);
    let request = greedy("ROMEO:", 300);
    let mut stream = running.inference().sample(request).await.unwrap().into_inner();
    stream.message().await.unwrap();
    running.admin().drain(wire::DrainRequest {}).await.unwrap();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 2);
    let (code, reason, _) = running.refusal(greedy("a", 1)).await;
    assert_eq!((code, &*reason), (Code::Unavailable, "DRAINING"));
    let mut last = None;
    while let Some(response) = stream.message().await.unwrap() {
        last = response.event;
    }
    let Some(Event::Done(done)) = last else { panic!("the running request ends well") };
    assert_eq!(done.finish_reason(), wire::FinishReason::Length);
    let ended = timeout(Duration::from_secs(5), running.server).await.unwrap();
    assert_eq!(ended.unwrap().unwrap(), Ended::Drained);
}

#[tokio::test]
async fn a_daemon_ends_by_itself_when_nobody_has_asked_for_long_enough() {
    let limit = Duration::from_millis(300);
    let running = Running::start_with(Some(limit)).await;
    running.sample(greedy("ROMEO:", 60)).await.unwrap();
    let asked = Instant::now();
    let ended = timeout(Duration::from_secs(10), running.server).await.unwrap();
    assert_eq!(ended.unwrap().unwrap(), Ended::Idle);
    // The request ended a moment before its client heard of it.
    assert!(asked.elapsed() >= limit - Duration::from_millis(100));
}

/// A request for the status as grpcio sends it.
fn status_of_grpc_core() -> Vec<u8> {
    let literal = |name: &str, value: &str| {
        let (name_length, value_length) = (name.len() as u8, value.len() as u8);
        [&[0x40, name_length], name.as_bytes(), &[value_length], value.as_bytes()].concat()
    };
    let block = [
        samples::block("tmp%2Fx%20y%2Ft.sock"),
        literal(":path", "/tinygpt.v1.AdminService/Status"),
        literal("te", "trailers"),
        literal("content-type", "application/grpc"),
    ]
    .concat();
    samples::connection(&block, &[0; 5])
}

#[tokio::test]
async fn a_request_with_a_percent_encoded_authority_is_answered() {
    let running = Running::start().await;
    let mut stream = UnixStream::connect(socket(running.folder.path())).await.unwrap();
    stream.write_all(&status_of_grpc_core()).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        assert_ne!(head[3], 3, "RST_STREAM: the authority was refused");
        if head[3] == 1 {
            // Indexed `:status: 200` comes first.
            assert_eq!(payload[0], 0x88);
            break;
        }
    }
    running.end().await;
}
