//! The agents of a bench, as their parent sees them: processes at the end of two pipes.
//!
//! Dropping a crew kills its agents; and each of them ends by itself when its stdin does, so that
//! they do not outlive a parent that was killed. They have a process group of their own: a Ctrl-C
//! in the terminal is their parent's to hear.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use std::{env, io};

use futures_util::future::{join_all, try_join_all};
use tinygpt_client::exit::Exit;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::agent::COMMAND;
use super::talk::{Call, Order, Reply, Word};
use crate::failure::Failure;

/// Agents that start together.
#[derive(Debug)]
pub(super) struct Crew(Vec<Member>);

/// One of them.
#[derive(Debug)]
struct Member {
    calls: ChildStdin,
    words: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Crew {
    /// Starts so many agents of the daemon on `socket`.
    pub(super) fn start(
        agents: u16,
        socket: &Path,
        timeout: Option<Duration>,
    ) -> Result<Self, Failure> {
        (0..agents).map(|_| Member::start(socket, timeout)).collect::<Result<_, _>>().map(Self)
    }

    /// Has each of them ask for its own, all at once: what came, in the order of the agents.
    pub(super) async fn round(&mut self, orders: &[Order]) -> Result<Vec<Vec<Reply>>, Failure> {
        self.ready(orders).await?;
        self.tell(&Call::Go).await?;
        self.told().await
    }

    /// Tells each what to ask, and waits until all know.
    pub(super) async fn ready(&mut self, orders: &[Order]) -> Result<(), Failure> {
        let each = self.0.iter_mut().zip(orders).map(async |(member, order)| {
            member.tell(&Call::Ready(order.clone())).await?;
            member.expect(|word| matches!(word, Word::Ready).then_some(())).await
        });
        try_join_all(each).await.map(drop)
    }

    /// Tells all the same.
    pub(super) async fn tell(&mut self, call: &Call) -> Result<(), Failure> {
        let told = join_all(self.0.iter_mut().map(|member| member.tell(call))).await;
        told.into_iter().collect()
    }

    /// Waits until each has had its first token.
    pub(super) async fn begun(&mut self) -> Result<(), Failure> {
        let first = |word| matches!(word, Word::First).then_some(());
        try_join_all(self.0.iter_mut().map(|member| member.expect(first))).await.map(drop)
    }

    /// Waits until each has ended, and has told what came.
    pub(super) async fn told(&mut self) -> Result<Vec<Vec<Reply>>, Failure> {
        let replies = |word| match word {
            Word::Told(replies) => Some(replies),
            _ => None,
        };
        try_join_all(self.0.iter_mut().map(|member| member.expect(replies))).await
    }
}

impl Member {
    fn start(socket: &Path, timeout: Option<Duration>) -> Result<Self, Failure> {
        let mut command = Command::new(env::current_exe()?);
        command.arg(COMMAND).arg("--quiet").arg("--socket").arg(socket);
        if let Some(timeout) = timeout {
            command.arg("--timeout").arg(timeout.as_secs_f64().to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.process_group(0).kill_on_drop(true).spawn()?;
        let (Some(calls), Some(words)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(lost());
        };
        Ok(Self { calls, words: BufReader::new(words).lines(), _process: process })
    }

    async fn tell(&mut self, call: &Call) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(call).map_err(io::Error::from)?;
        line.push(b'\n');
        match self.calls.write_all(&line).await {
            // Why it hears nothing any more is the last that it said.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }

    /// The next word, which `read` must know.
    async fn expect<T>(&mut self, read: impl Fn(Word) -> Option<T>) -> Result<T, Failure> {
        let line = self.words.next_line().await?.ok_or_else(lost)?;
        match serde_json::from_str(&line).map_err(io::Error::from)? {
            Word::Failed { exit, words } => {
                let known = Exit::ALL.into_iter().find(|known| known.code() == exit);
                Err(Failure::Agent { exit: known.unwrap_or(Exit::Failed), words })
            }
            word => read(word).ok_or_else(lost),
        }
    }
}

/// What is known of an agent that ended, or said something else than it should have.
fn lost() -> Failure {
    Failure::Agent { exit: Exit::Failed, words: "its process ended".into() }
}
