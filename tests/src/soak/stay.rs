//! One life of a daemon, and what must hold all through it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tinygpt_client::connect::Connection;
use tinygpt_proto::v1::{Budget, CacheServiceListRequest, StatusResponse, VerifyRequest};
use tokio::task::block_in_place;
use tokio::time::{sleep, sleep_until};
use tokio_stream::StreamExt;

use super::agent::answer;
use super::ground::{Ground, status};
use super::request::{LONGEST_LEASE, flood, plain};
use crate::process::{PATIENCE, Started};

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// Resident bytes that a daemon may gain in the second half of its life: allocators are not exact.
const GROWTH: u64 = 8 << 20;

/// A running daemon.
#[derive(Debug)]
pub(super) struct Stay<'a> {
    ground: &'a Ground,
    daemon: Started,
    connection: Connection,
    seen: StatusResponse,
    /// Resident bytes at each look.
    resident: Vec<u64>,
    /// Descriptors when nobody had asked it anything but to warm up.
    descriptors: Option<usize>,
}

/// How much a daemon grew.
#[derive(Debug)]
pub(super) struct Growth {
    early: u64,
    late: u64,
    descriptors: usize,
}

impl<'a> Stay<'a> {
    pub(super) async fn begin(ground: &'a Ground) -> anyhow::Result<Self> {
        let daemon = ground.start().await;
        let connection = ground.connect().await?;
        let seen = status(&connection).await?;
        Ok(Self { ground, daemon, connection, seen, resident: Vec::new(), descriptors: None })
    }

    /// Looks at it again and again.
    pub(super) async fn watch(&mut self, until: Instant) -> anyhow::Result<()> {
        while Instant::now() < until {
            ensure!(!self.daemon.has_ended(), "the daemon ended:\n{}", self.log());
            self.look().await?;
            sleep_until((Instant::now() + PERIOD).min(until).into()).await;
        }
        Ok(())
    }

    async fn look(&mut self) -> anyhow::Result<()> {
        self.seen = status(&self.connection).await?;
        // What running requests read and what waits for the disk cannot be evicted.
        let held =
            self.seen.active.unwrap_or_default().used + self.counted("store_write_queue_bytes");
        let memory = self.seen.memory.unwrap_or_default();
        within("memory", Some(Budget { used: memory.used.saturating_sub(held), ..memory }))?;
        within("active bytes", self.seen.active)?;
        within("disk", self.seen.disk)?;
        within("queue", self.seen.queue)?;
        let disk = self.seen.disk.unwrap_or_default();
        let lie = bytes_in(&self.ground.home.path("cache/v1"));
        let limit = disk.limit.context("a disk without a limit")?;
        ensure!(lie <= limit, "{lie} bytes lie in the cache directory, {limit} may");
        self.resident.push(resident(self.daemon.pid())?);
        Ok(())
    }

    /// Asks every model something in every codec: what is opened once is open then.
    pub(super) async fn warm_up(&mut self) -> anyhow::Result<()> {
        for request in self.seen.models.iter().flat_map(plain) {
            answer(&self.connection, &request, None).await?;
        }
        self.descriptors = Some(descriptors(self.daemon.pid())?);
        Ok(())
    }

    /// Whether nothing is left of any request.
    pub(super) async fn is_idle(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        while let Err(rest) = self.rest().await? {
            ensure!(Instant::now() < end, "after all requests have ended {rest}");
            sleep(PERIOD).await;
        }
        Ok(())
    }

    /// What is left of requests, if anything is.
    async fn rest(&mut self) -> anyhow::Result<Result<(), String>> {
        self.look().await?;
        let used = |budget: Option<Budget>| budget.unwrap_or_default().used;
        let (active, queued) = (used(self.seen.active), used(self.seen.queue));
        let ended = ["requests_finished", "requests_cancelled", "requests_failed"];
        let ended = ended.into_iter().map(|name| self.counted(name)).sum::<u64>();
        let open = self.counted("requests") - ended;
        let running = self.seen.running;
        let files = descriptors(self.daemon.pid())?;
        let files = files.saturating_sub(self.descriptors.unwrap_or(files));
        let idle = (running, queued, active, open, files) == (0, 0, 0, 0, 0);
        let words = format!(
            "{running} run, {queued} wait, {active} bytes are reserved, {open} were never counted as \
             ended, {files} more files are open than before"
        );
        Ok(if idle { Ok(()) } else { Err(words) })
    }

    /// Whether it is as large as it was.
    pub(super) fn growth(&self) -> anyhow::Result<Growth> {
        let quarter = self.resident.len() / 4;
        let early = median(&self.resident[quarter..2 * quarter.max(1)]);
        let late = median(&self.resident[3 * quarter..]);
        ensure!(late < early + early / 10 + GROWTH, "it grew from {early} to {late} bytes");
        Ok(Growth { early, late, descriptors: descriptors(self.daemon.pid())? })
    }

    /// Whether every file in the cache is what it says.
    pub(super) async fn is_sound(&self) -> anyhow::Result<()> {
        let verified = self.connection.cache().verify(VerifyRequest::default()).await;
        verified.map(drop).context("cache verify")
    }

    /// Whether what was pinned goes like everything else when its lease is over.
    pub(super) async fn lets_go_of(&self, pinned: &BTreeSet<String>) -> anyhow::Result<()> {
        sleep(LONGEST_LEASE).await;
        for request in self.seen.models.iter().flat_map(flood) {
            answer(&self.connection, &request, None).await?;
        }
        let listed = self.connection.cache().list(CacheServiceListRequest::default()).await?;
        let mut listed = listed.into_inner();
        while let Some(entry) = listed.next().await {
            let entry = entry?.entry.unwrap_or_default();
            ensure!(!pinned.contains(&entry.prompt_key), "a pin that is over holds {entry:?}");
        }
        Ok(())
    }

    /// Files evicted from disk so far.
    pub(super) fn evictions(&self) -> u64 {
        self.counted("store_evictions")
    }

    fn counted(&self, name: &str) -> u64 {
        self.seen.counters.get(name).copied().unwrap_or_default()
    }

    /// Asks it to end, as a supervisor does.
    pub(super) fn terminate(mut self) -> anyhow::Result<()> {
        let status = block_in_place(|| self.daemon.terminate());
        ensure!(status.code() == Some(0), "SIGTERM: {status}\n{}", self.log());
        Ok(())
    }

    /// Kills it.
    pub(super) fn kill(mut self) {
        block_in_place(|| self.daemon.kill());
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.ground.home.path("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

fn within(what: &str, budget: Option<Budget>) -> anyhow::Result<()> {
    let Budget { used, limit } = budget.unwrap_or_default();
    let limit = limit.with_context(|| format!("no budget of {what}"))?;
    ensure!(used <= limit, "{what}: {used} of {limit}");
    Ok(())
}

fn median(values: &[u64]) -> u64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Bytes of all files below a folder that were there together: files come and go while they are
/// counted, so those count that were there before a moment and still are after it. What model files
/// hashed to is outside every budget.
fn bytes_in(folder: &Path) -> u64 {
    let mut before = Vec::new();
    list(folder, &mut before);
    let stays = |(path, found): &(PathBuf, Metadata)| {
        fs::symlink_metadata(path).is_ok_and(|now| now.ino() == found.ino())
    };
    before.iter().filter(|file| stays(file)).map(|(_, found)| found.len()).sum()
}

/// Adds the files below a folder, as far as they do not go away meanwhile.
fn list(folder: &Path, files: &mut Vec<(PathBuf, Metadata)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok) {
        match entry.metadata() {
            Ok(found) if found.is_dir() => list(&entry.path(), files),
            Ok(found) if !entry.file_name().as_encoded_bytes().starts_with(b"models.tgid") => {
                files.push((entry.path(), found));
            }
            _ => {}
        }
    }
}

/// Resident bytes that no file backs.
fn resident(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()).context("RssAnon")?;
    Ok(kilobytes.parse::<u64>()? << 10)
}

fn descriptors(pid: u32) -> anyhow::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { early, late, descriptors } = self;
        let [early, late] = [early, late].map(|bytes| *bytes as f64 / f64::from(1 << 20));
        write!(f, "resident {early:.1} MiB, later {late:.1}; {descriptors} descriptors")
    }
}
