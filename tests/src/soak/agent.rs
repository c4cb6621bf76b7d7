//! One agent: it asks, and leaves in one way or another, until its time is up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tinygpt_client::connect::Connection;
use tinygpt_client::exit::Exit;
use tinygpt_proto::Label;
use tinygpt_proto::v1::{
    CachePolicy, Done, FinishReason, Model, Priority, SampleRequest, ScoreRequest, Verdict,
    WarmRequest, sample_response, warm_response,
};
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use tonic::{Code, Status};

use super::dice::Dice;
use super::ground::Ground;
use super::request::{self, Fate, Request};

/// How long an answer may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);
/// Keys that an agent remembers.
const KEYS: usize = 4;
/// How long to wait before asking a daemon again that is not there, or is full.
const PAUSE: Duration = Duration::from_millis(20);

/// Somebody who asks.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) ground: Arc<Ground>,
    pub(super) models: Arc<Vec<Model>>,
    pub(super) dice: Dice,
    /// Of prompts that were answered.
    pub(super) keys: Vec<String>,
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
    /// Keys of what was pinned.
    pub(super) pinned: BTreeSet<String>,
    /// A tenth of the texts and scores.
    pub(super) kept: Vec<Kept>,
    /// How many of these were computed again at once, and were the same.
    pub(super) same: u64,
}

/// A reply, to be computed again.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    request: Request,
    reply: Reply,
}

/// What was generated or scored, and how that was said to have come about.
#[derive(Debug, Clone, Default)]
pub(super) struct Reply {
    /// By choice.
    ids: Vec<Vec<u32>>,
    /// Of each token and its alternatives, as bits.
    scores: Vec<(u32, u32)>,
    /// Empty when nothing was looked up.
    verdict: &'static str,
    /// The prompt's; empty when it was not told.
    key: String,
    is_pinned: bool,
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
            let request = request::random(&mut self.dice, &self.models, &self.keys);
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

    async fn ask(&self, daemon: &Connection, request: &Request, fate: Fate) -> anyhow::Result<End> {
        match (fate, request) {
            (Fate::Process(killed), Request::Sample(sample)) => {
                self.in_a_process(sample, killed).await
            }
            (Fate::Deadline(limit), _) => self.judge(answer(daemon, request, Some(limit)).await),
            (Fate::Drop(after), _) => match timeout(after, answer(daemon, request, None)).await {
                Ok(answered) => self.judge(answered),
                Err(_) => Ok(End::Otherwise("dropped")),
            },
            (Fate::Answer | Fate::Process(_), _) => self.judge(answer(daemon, request, None).await),
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
            // Others evict and remove what an agent remembers.
            Code::NotFound => "no longer there",
            Code::Unavailable | Code::Cancelled if !self.steady => "lost",
            Code::Unknown | Code::Internal if !self.steady && broken => "lost",
            _ => bail!("{status:?}"),
        };
        Ok(End::Otherwise(how))
    }

    fn remember(&mut self, key: &str) {
        if key.is_empty() {
            return;
        }
        if self.keys.len() == KEYS {
            self.keys.swap_remove(self.dice.below(KEYS));
        }
        self.keys.push(key.to_owned());
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

    /// Remembers what was answered, and keeps a tenth of the texts and scores, computed again.
    async fn keep(
        &mut self,
        daemon: &Connection,
        request: Request,
        reply: Reply,
        haul: &mut Haul,
    ) -> anyhow::Result<()> {
        haul.count(request.done());
        if !reply.verdict.is_empty() {
            *haul.verdicts.entry(reply.verdict).or_default() += 1;
        }
        if reply.is_pinned {
            haul.pinned.insert(reply.key.clone());
        }
        self.remember(&reply.key);
        let comparable = matches!(request, Request::Sample(_) | Request::Score(_));
        if !comparable || !self.dice.chance(10) {
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
        let mut request = self.request.clone();
        match &mut request {
            Request::Sample(sample) => sample.cache_policy = CachePolicy::Bypass.into(),
            Request::Score(score) => score.cache_policy = CachePolicy::Bypass.into(),
            _ => unreachable!("nothing is computed for {request:?}"),
        }
        answer(daemon, &request, None).await
    }

    pub(super) fn compare(&self, again: &Reply) -> anyhow::Result<()> {
        let Self { request, reply } = self;
        let same = (&reply.ids, &reply.scores) == (&again.ids, &again.scores);
        ensure!(same, "{reply:?} is {again:?} without the cache: {request:?}");
        Ok(())
    }
}

impl Request {
    /// What was done when it is answered.
    fn done(&self) -> &'static str {
        match self {
            Self::Sample(_) => "answered",
            Self::Score(_) => "scored",
            Self::Warm(_) => "warmed",
            Self::Pin(_) => "pinned",
            Self::Unpin(_) => "unpinned",
            Self::Remove(_) => "removed",
        }
    }
}

/// Asks, and follows the events to the end.
pub(super) async fn answer(
    daemon: &Connection,
    request: &Request,
    limit: Option<Duration>,
) -> Result<Reply, Status> {
    let answered = async {
        match request.clone() {
            Request::Sample(sample) => sampled(daemon, timed(sample, limit)).await,
            Request::Score(score) => scored(daemon, timed(score, limit)).await,
            Request::Warm(warm) => warmed(daemon, timed(warm, limit)).await,
            Request::Pin(pin) => {
                let key = pin.key.clone();
                daemon.cache().pin(timed(pin, limit)).await?;
                Ok(Reply { key, is_pinned: true, ..Reply::default() })
            }
            Request::Unpin(unpin) => {
                daemon.cache().unpin(timed(unpin, limit)).await.map(|_| Reply::default())
            }
            Request::Remove(remove) => {
                daemon.cache().remove(timed(remove, limit)).await.map(|_| Reply::default())
            }
        }
    };
    let hangs = |_| Err(Status::data_loss(format!("no answer in {PATIENCE:?}")));
    timeout(PATIENCE, answered).await.unwrap_or_else(hangs)
}

fn timed<R>(request: R, limit: Option<Duration>) -> tonic::Request<R> {
    let mut request = tonic::Request::new(request);
    if let Some(limit) = limit {
        request.set_timeout(limit);
    }
    request
}

async fn sampled(
    daemon: &Connection,
    request: tonic::Request<SampleRequest>,
) -> Result<Reply, Status> {
    let choices = request.get_ref().sampling.as_ref().map_or(1, |sampling| sampling.n.max(1));
    let mut stream = daemon.inference().sample(request).await?.into_inner();
    let mut reply = Reply { ids: vec![Vec::new(); choices as usize], ..Reply::default() };
    let mut left = choices;
    while left > 0 {
        let message = stream.next().await.unwrap_or_else(cut_short)?;
        match message.event {
            Some(sample_response::Event::Delta(delta)) => {
                reply.ids[message.choice as usize].extend(delta.token_ids);
            }
            Some(sample_response::Event::Done(done)) => {
                reply.end(done)?;
                left -= 1;
            }
            _ => {}
        }
    }
    Ok(reply)
}

async fn warmed(
    daemon: &Connection,
    request: tonic::Request<WarmRequest>,
) -> Result<Reply, Status> {
    let mut stream = daemon.inference().warm(request).await?.into_inner();
    let mut reply = Reply::default();
    loop {
        match stream.next().await.unwrap_or_else(cut_short)?.event {
            Some(warm_response::Event::Pinned(_)) => reply.is_pinned = true,
            Some(warm_response::Event::Done(done)) => {
                reply.end(done)?;
                return Ok(reply);
            }
            _ => {}
        }
    }
}

async fn scored(
    daemon: &Connection,
    request: tonic::Request<ScoreRequest>,
) -> Result<Reply, Status> {
    let score = daemon.inference().score(request).await?.into_inner();
    let tokens = score.tokens.iter();
    let scores = tokens.flat_map(|token| {
        let own = (token.id, token.logprob.unwrap_or_default().to_bits());
        let others = token.top.iter().map(|other| (other.id, other.logprob.to_bits()));
        std::iter::once(own).chain(others)
    });
    let verdict = Verdict::label_of(score.verdict);
    Ok(Reply { scores: scores.collect(), verdict, ..Reply::default() })
}

fn cut_short<T>() -> Result<T, Status> {
    Err(Status::data_loss("cut short"))
}

/// A client that asks for the same.
fn command(ground: &Ground, request: &SampleRequest) -> Command {
    let ids: Vec<_> = request::ids_of(request).ids.iter().map(u32::to_string).collect();
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
    let named = [
        ("--namespace", &request.namespace),
        ("--kv-dtype", &request.kv_dtype),
        ("--adapter", &request.adapter),
    ];
    for (flag, value) in named {
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
    /// A text is whole, or a prompt.
    fn end(&mut self, done: Done) -> Result<(), Status> {
        if done.finish_reason() == FinishReason::Cancelled {
            return Err(Status::cancelled("drained"));
        }
        self.verdict = Verdict::label_of(done.verdict);
        self.key = done.prompt_key;
        Ok(())
    }

    /// What a client printed.
    fn of_process(stdout: &[u8]) -> anyhow::Result<Self> {
        let answer: Value = serde_json::from_slice(stdout)?;
        let texts =
            answer["choices"].as_array().map_or(std::slice::from_ref(&answer), |all| &all[..]);
        let ids = |text: &Value| serde_json::from_value(text["token_ids"].clone());
        let ids = texts.iter().map(ids).collect::<Result<_, _>>()?;
        let verdict = answer["verdict"].as_str().unwrap_or_default();
        let verdict = Verdict::from_str_name(&format!("{}{verdict}", Verdict::PREFIX));
        let key = answer["prompt_key"].as_str().unwrap_or_default().to_owned();
        Ok(Self { ids, verdict: verdict.context("a verdict")?.label(), key, ..Self::default() })
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
        self.pinned.extend(other.pinned);
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
        let pinned = self.pinned.len();
        writeln!(f, "requests: {}\nverdicts: {}", list(&self.ends), list(&self.verdicts))?;
        write!(f, "{pinned} prompts were pinned for a while")
    }
}
