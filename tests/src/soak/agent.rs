//! One agent: it asks, and leaves in one way or another, until its time is up.

use std::collections::BTreeMap;
use std::fmt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tinygpt_client::connect::Connection;
use tinygpt_client::exit::Exit;
use tinygpt_proto::Label;
use tinygpt_proto::v1::sample_response::Event;
use tinygpt_proto::v1::{
    CachePolicy, FinishReason, Model, Priority, SampleRequest, Verdict, sample_request,
};
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use tonic::{Code, Status};

use super::dice::Dice;
use super::ground::Ground;
use super::request::{self, Fate};

/// How long an answer may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait before asking a daemon again that is not there, or is full.
const PAUSE: Duration = Duration::from_millis(20);

/// Somebody who asks.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) ground: Arc<Ground>,
    pub(super) models: Arc<Vec<Model>>,
    pub(super) dice: Dice,
    /// Whether the daemon stays.
    pub(super) steady: bool,
}

/// What agents bring home.
#[derive(Debug, Default)]
pub(super) struct Haul {
    /// How requests ended: how often.
    ends: BTreeMap<&'static str, u64>,
    /// Verdicts of whole replies.
    verdicts: BTreeMap<&'static str, u64>,
    /// A tenth of the whole replies.
    pub(super) kept: Vec<Kept>,
    /// How many of these were computed again at once, and were the same.
    pub(super) same: u64,
}

/// A reply, to be computed again.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) request: SampleRequest,
    pub(super) reply: Reply,
}

/// What was generated, and how that was said to have come about.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    /// By choice.
    pub(super) ids: Vec<Vec<u32>>,
    pub(super) verdict: &'static str,
}

/// How a request ended.
#[derive(Debug)]
enum End {
    Whole(Reply),
    /// It went where it had to: given up, refused, or lost with the daemon.
    Otherwise(&'static str),
}

impl Agent {
    pub(super) async fn run(mut self, until: Instant) -> anyhow::Result<Haul> {
        let mut haul = Haul::default();
        let mut connection = None;
        while Instant::now() < until {
            let Some(daemon) = self.reach(&mut connection).await? else { continue };
            let request = request::random(&mut self.dice, &self.models);
            let fate = Fate::random(&mut self.dice);
            let end = self.ask(&daemon, &request, fate).await;
            match end.with_context(|| format!("{fate:?} of {request:?}"))? {
                End::Whole(reply) => self.keep(&daemon, request, reply, &mut haul).await?,
                End::Otherwise(how) => {
                    haul.count(how);
                    connection = None;
                    sleep(PAUSE).await;
                }
            }
            // A new connection now and then.
            if self.dice.chance(5) {
                connection = None;
            }
        }
        Ok(haul)
    }

    /// The daemon, unless it is not there now.
    async fn reach(&self, known: &mut Option<Connection>) -> anyhow::Result<Option<Connection>> {
        if known.is_none() {
            match self.ground.connect().await {
                Ok(connection) => *known = Some(connection),
                Err(error) if self.steady => return Err(error),
                Err(_) => sleep(PAUSE).await,
            }
        }
        Ok(known.clone())
    }

    async fn ask(
        &self,
        daemon: &Connection,
        request: &SampleRequest,
        fate: Fate,
    ) -> anyhow::Result<End> {
        match fate {
            Fate::Answer => self.judge(answer(daemon, request, None).await),
            Fate::Deadline(limit) => self.judge(answer(daemon, request, Some(limit)).await),
            Fate::Drop(after) => match timeout(after, answer(daemon, request, None)).await {
                Ok(answered) => self.judge(answered),
                Err(_) => Ok(End::Otherwise("dropped")),
            },
            Fate::Process(killed) => self.in_a_process(request, killed).await,
        }
    }

    /// Whether a request may end so.
    fn judge(&self, answered: Result<Reply, Status>) -> anyhow::Result<End> {
        let status = match answered {
            Ok(reply) => return Ok(End::Whole(reply)),
            Err(status) => status,
        };
        let broken = std::error::Error::source(&status).is_some();
        let how = match status.code() {
            Code::DeadlineExceeded => "at their deadline",
            Code::Cancelled if status.message() == "Timeout expired" => "at their deadline",
            Code::ResourceExhausted => "refused",
            Code::Unavailable | Code::Cancelled if !self.steady => "lost",
            Code::Unknown | Code::Internal if !self.steady && broken => "lost",
            _ => bail!("{status:?}"),
        };
        Ok(End::Otherwise(how))
    }

    async fn in_a_process(
        &self,
        request: &SampleRequest,
        killed: Option<Duration>,
    ) -> anyhow::Result<End> {
        let command = command(&self.ground, request);
        let finished = tokio::task::spawn_blocking(move || finish(command, killed)).await??;
        let Some((code, stdout, stderr)) = finished else { return Ok(End::Otherwise("killed")) };
        let exit = Exit::ALL.into_iter().find(|exit| i32::from(exit.code()) == code);
        match exit {
            Some(Exit::Done) => Ok(End::Whole(Reply::of_process(&stdout)?)),
            Some(Exit::Exhausted) => Ok(End::Otherwise("refused")),
            Some(Exit::NoDaemon | Exit::Unavailable | Exit::Cancelled) if !self.steady => {
                Ok(End::Otherwise("lost"))
            }
            _ => bail!("a client ended with {code}: {stderr}"),
        }
    }

    /// Keeps a tenth of the replies, computed again.
    async fn keep(
        &mut self,
        daemon: &Connection,
        request: SampleRequest,
        reply: Reply,
        haul: &mut Haul,
    ) -> anyhow::Result<()> {
        haul.count("answered");
        *haul.verdicts.entry(reply.verdict).or_default() += 1;
        if !self.dice.chance(10) {
            return Ok(());
        }
        let kept = Kept { request, reply };
        match self.judge(kept.again(daemon).await)? {
            End::Whole(again) => {
                kept.compare(&again).context("computed again at once")?;
                haul.same += 1;
            }
            End::Otherwise(how) => haul.count(how),
        }
        haul.kept.push(kept);
        Ok(())
    }
}

impl Kept {
    /// The same, computed without the cache.
    pub(super) async fn again(&self, daemon: &Connection) -> Result<Reply, Status> {
        let bypass = CachePolicy::Bypass.into();
        answer(daemon, &SampleRequest { cache_policy: bypass, ..self.request.clone() }, None).await
    }

    pub(super) fn compare(&self, again: &Reply) -> anyhow::Result<()> {
        let Self { request, reply } = self;
        let same = reply.ids == again.ids;
        ensure!(same, "{reply:?} is {:?} without the cache: {request:?}", again.ids);
        Ok(())
    }
}

/// Asks, and follows the events to the end.
pub(super) async fn answer(
    daemon: &Connection,
    request: &SampleRequest,
    limit: Option<Duration>,
) -> Result<Reply, Status> {
    let mut asked = tonic::Request::new(request.clone());
    if let Some(limit) = limit {
        asked.set_timeout(limit);
    }
    let followed = async {
        let mut stream = daemon.inference().sample(asked).await?.into_inner();
        let choices = request.sampling.as_ref().map_or(1, |sampling| sampling.n.max(1));
        let mut reply = Reply { ids: vec![Vec::new(); choices as usize], verdict: "" };
        let mut left = choices;
        while left > 0 {
            let message =
                stream.next().await.unwrap_or_else(|| Err(Status::data_loss("cut short")))?;
            match message.event {
                Some(Event::Delta(delta)) => {
                    reply.ids[message.choice as usize].extend(delta.token_ids);
                }
                Some(Event::Done(done)) => {
                    if done.finish_reason() == FinishReason::Cancelled {
                        return Err(Status::cancelled("drained"));
                    }
                    reply.verdict = Verdict::label_of(done.verdict);
                    left -= 1;
                }
                _ => {}
            }
        }
        Ok(reply)
    };
    let hangs = |_| Err(Status::data_loss(format!("no answer in {PATIENCE:?}")));
    timeout(PATIENCE, followed).await.unwrap_or_else(hangs)
}

/// A client that asks for the same.
fn command(ground: &Ground, request: &SampleRequest) -> Command {
    let Some(sample_request::Prompt::TokenIds(prompt)) = &request.prompt else {
        unreachable!("prompts are ids")
    };
    let ids: Vec<_> = prompt.ids.iter().map(u32::to_string).collect();
    let sampling = request.sampling.clone().unwrap_or_default();
    let number = |number: Option<u64>| number.unwrap_or_default().to_string();
    let temperature = sampling.temperature.unwrap_or_default().to_string();
    let policy = CachePolicy::label_of(request.cache_policy).to_lowercase().replace('_', "-");
    let mut command = ground.home.client();
    command.args(["sample", "--quiet", "--json", "--token-ids", &ids.join(",")]);
    command.args(["--model", &request.model, "--temperature", &temperature]);
    command.args(["--seed", &number(sampling.seed), "--top-k", &sampling.top_k.to_string()]);
    command.args(["-n", &number(sampling.max_tokens.map(u64::from)), "--cache-policy", &policy]);
    let priority = Priority::label_of(request.priority).to_lowercase();
    command.args(["--choices", &sampling.n.to_string(), "--priority", &priority]);
    for (flag, value) in [("--namespace", &request.namespace), ("--kv-dtype", &request.kv_dtype)] {
        if !value.is_empty() {
            command.args([flag, value]);
        }
    }
    command
}

/// Runs a client: its exit status, stdout and stderr, unless it was killed before.
fn finish(
    mut command: Command,
    killed: Option<Duration>,
) -> anyhow::Result<Option<(i32, Vec<u8>, String)>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = command.spawn()?;
    if let Some(after) = killed {
        std::thread::sleep(after);
        // It may have ended by itself.
        let _ = client.kill();
    }
    let output = client.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(output.status.code().map(|code| (code, output.stdout, stderr)))
}

impl Reply {
    /// What a client printed.
    fn of_process(stdout: &[u8]) -> anyhow::Result<Self> {
        let answer: Value = serde_json::from_slice(stdout)?;
        let texts =
            answer["choices"].as_array().map_or(std::slice::from_ref(&answer), |all| &all[..]);
        let ids = |text: &Value| serde_json::from_value(text["token_ids"].clone());
        let ids = texts.iter().map(ids).collect::<Result<_, _>>()?;
        let verdict = answer["verdict"].as_str().unwrap_or_default();
        let verdict = Verdict::from_str_name(&format!("{}{verdict}", Verdict::PREFIX));
        Ok(Self { ids, verdict: verdict.context("a verdict")?.label() })
    }
}

impl Haul {
    fn count(&mut self, how: &'static str) {
        *self.ends.entry(how).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: Self) {
        for (how, count) in other.ends {
            *self.ends.entry(how).or_default() += count;
        }
        for (verdict, count) in other.verdicts {
            *self.verdicts.entry(verdict).or_default() += count;
        }
        self.kept.extend(other.kept);
        self.same += other.same;
    }
}

impl fmt::Display for Haul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |counts: &BTreeMap<&str, u64>| {
            let each: Vec<_> =
                counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
            each.join(", ")
        };
        write!(f, "requests: {}\nverdicts: {}", list(&self.ends), list(&self.verdicts))
    }
}
