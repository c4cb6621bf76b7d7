//! What callers are told when an engine does not serve: it loads for too long, is stuck, or died.

use tokio::sync::mpsc;
use tonic_health::ServingStatus;

use super::*;
use crate::engine::State;
use crate::engine::constraint::{Constraint, Mask, Verdict};
use crate::engine::job::{Caller, Job, Namespace, Persist, Policy, Sampling, Task};
use crate::kv::key::Digest;

/// What goes wrong on the engine's own thread when it has sampled a token.
#[derive(Debug)]
enum Trouble {
    Panic,
    Hang(std::sync::mpsc::Receiver<()>),
}

impl Constraint for Trouble {
    fn mask(&self, _: &mut Mask) {}

    fn afresh(&self) -> Box<dyn Constraint> {
        unreachable!("one text is asked for")
    }

    fn accept(&mut self, _: u32) -> Verdict {
        match self {
            Trouble::Panic => panic!("a broken constraint"),
            // It ends when the test lets go of the other end.
            Trouble::Hang(until) => _ = until.recv(),
        }
        Verdict::Stop
    }
}

impl Running {
    /// Has the engine of the first model run into `trouble`, for as long as somebody may read.
    async fn run_into(&self, trouble: Trouble) -> mpsc::Receiver<engine::Event> {
        self.sample(greedy("a", 1)).await.unwrap();
        let State::Ready(info) = self.engine.state().borrow().clone() else { panic!("it serves") };
        let (events, unread) = mpsc::channel(engine::job::EVENTS);
        let none = Digest::of("test", b"");
        let sampling = Sampling { constraint: Some(Box::new(trouble)), ..Sampling::greedy(1) };
        let job = Job {
            task: Task::Sample(sampling),
            tokens: Arc::from([1]),
            text: None,
            caller: Caller::default(),
            namespace: Namespace { identity: none, sub: none },
            codec: info.default_codec,
            adapter: info.fields.adapter,
            policy: Policy::Bypass,
            persist: Persist::No,
            pin: None,
            deadline: None,
            received: Instant::now(),
            generation: info.generation,
            events,
        };
        self.engine.submit(job).unwrap();
        unread
    }

    async fn health(&self) -> i32 {
        let request = HealthCheckRequest { service: String::new() };
        let answer = HealthClient::new(self.channel.clone()).check(request).await;
        answer.unwrap().into_inner().status
    }

    async fn await_health(&self, status: ServingStatus) {
        let becomes = async {
            while self.health().await != status as i32 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(20), becomes).await.expect("its health must change");
    }
}

fn slow(folder: &Path) -> PathBuf {
    let pipe = folder.join("model");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    pipe
}

#[tokio::test]
async fn a_daemon_whose_engine_panics_is_not_healthy_and_ends() {
    let running = Running::start().await;
    let request = HealthCheckRequest { service: String::new() };
    let mut health = HealthClient::new(running.channel.clone());
    let mut watch = health.watch(request).await.unwrap().into_inner();
    let _reader = running.run_into(Trouble::Panic).await;
    let falls_ill = async {
        while watch.message().await.unwrap().unwrap().status != ServingStatus::NotServing as i32 {}
    };
    timeout(Duration::from_secs(10), falls_ill).await.unwrap();
    let ended = timeout(Duration::from_secs(10), running.server).await.unwrap();
    assert_eq!(ended.unwrap().unwrap(), Ended::Poisoned);
}

#[tokio::test]
async fn a_daemon_whose_engine_is_stuck_is_not_healthy_until_it_goes_on() {
    let running = Running::start().await;
    let (release, until) = std::sync::mpsc::channel();
    let _reader = running.run_into(Trouble::Hang(until)).await;
    running.await_health(ServingStatus::NotServing).await;
    assert!(running.engine.silence() > SILENCE);
    assert!(running.engine.is_stuck(), "and systemd's watchdog is not fed");
    let (code, reason, message) = running.refusal(greedy("a", 1)).await;
    assert_eq!((code, &*reason), (Code::Unavailable, "ENGINE_STUCK"), "{message}");
    drop(release);
    running.await_health(ServingStatus::Serving).await;
    running.sample(greedy("a", 1)).await.unwrap();
    running.end().await;
}

#[tokio::test]
async fn a_request_that_may_not_wait_for_its_model_is_told_when_its_time_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = slow(folder.path());
    let running = Running::start_serving(vec![Source::new("slow", Some(pipe.clone()))], None).await;
    let mut request = Request::new(greedy("a", 1));
    request.metadata_mut().insert("grpc-timeout", "1S".parse().unwrap());
    let asked = Instant::now();
    let status = running.inference().sample(request).await.map(|_| ()).unwrap_err();
    assert!(asked.elapsed() > Duration::from_millis(800), "{:?}", asked.elapsed());
    let (code, reason, message) = reasons(&status);
    assert_eq!((code, &*reason), (Code::Unavailable, "MODEL_LOADING"), "{message}");
    assert!(status.get_details_retry_info().is_some());
    assert_eq!(running.health().await, ServingStatus::NotServing as i32);
    std::fs::File::options().write(true).open(&pipe).unwrap();
    running.end().await;
}

/// The engine hands a vocabulary over once, and does not load again what it has in memory.
#[tokio::test]
async fn a_model_whose_file_was_overwritten_and_deleted_keeps_its_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.tinygpt");
    std::fs::write(&path, crate::model::load::BUILTIN).unwrap();
    let running = Running::start_serving(vec![Source::new("file", Some(path.clone()))], None).await;
    let before = running.sample(greedy("a", 4)).await.unwrap();
    // As long as this runs, nothing is read from the file.
    let long = running.inference().sample(greedy("b", 900)).await.unwrap();
    std::fs::write(&path, "no model").unwrap();
    running.await_health(ServingStatus::NotServing).await;
    std::fs::remove_file(&path).unwrap();
    drop(long);
    running.await_health(ServingStatus::Serving).await;
    assert_eq!(running.sample(greedy("a", 4)).await.unwrap().text, before.text);
    running.end().await;
}
