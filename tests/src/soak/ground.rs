//! The place of a soak: a home with two small models, and the words with which its daemon starts.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use tinygpt_client::connect::Connection;
use tinygpt_proto::v1::{LoadRequest, Model, StatusRequest, StatusResponse};
use tonic::Status;

use crate::adapters::Adapter;
use crate::process::{Home, Started};
use crate::seeded::Shape;

/// Bytes that running requests may own: two or three of them fill it.
const ACTIVE: &str = "6MB";
/// Bytes of cached blocks in memory, and on disk.
const MEMORY: &str = "2MB";
const DISK: &str = "6MB";

/// A model with a window, and with heads that share keys and values.
const WINDOWED: Shape = Shape { kv_heads: 1, window: Some(48), ..Shape::new(2, 4, 64, 512) };

/// Adapters of both models: their seeds, their names, and the width of the model.
const ADAPTERS: [(u64, &str, usize); 3] = [(1, "one", 64), (2, "two", 64), (3, "far", 192)];

/// A home and how its daemon is started.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) home: Home,
    threads: u32,
}

impl Ground {
    pub(super) fn prepare(threads: u32) -> anyhow::Result<Self> {
        let home = Home::new();
        WINDOWED.write(&home.path("windowed.tinygpt"))?;
        for (seed, name, width) in ADAPTERS {
            write_adapter(seed, width, &home.path(name))?;
        }
        Ok(Self { home, threads })
    }

    /// Starts a daemon on the same cache as all before it.
    pub(super) async fn start(&self) -> Started {
        let disk = ["--cache-disk", DISK, "--free-floor", "1MB"];
        self.start_with(&disk).await
    }

    /// Starts a daemon without a cache directory: what it knows, it computed.
    pub(super) async fn start_afresh(&self) -> Started {
        self.start_with(&["--no-persist"]).await
    }

    async fn start_with(&self, more: &[&str]) -> Started {
        let mut command = self.home.daemon();
        command.arg("--model").arg(self.home.path("windowed.tinygpt"));
        for (_, name, width) in ADAPTERS {
            let model = if width == WINDOWED.width { "windowed" } else { "builtin" };
            let path = self.home.path(name).display().to_string();
            command.args(["--adapter", &format!("{model}/{name}={path}")]);
        }
        command.args(["--active-memory", ACTIVE, "--cache-memory", MEMORY, "--queue", "8"]);
        command.args(["--log", "warn", "--grace", "2s", "--threads", &self.threads.to_string()]);
        let started = Started::new(command.args(more));
        self.home.await_serving().await;
        started
    }

    pub(super) async fn connect(&self) -> anyhow::Result<Connection> {
        Ok(Connection::open_path(&self.home.socket()).await?)
    }

    /// What can be asked.
    pub(super) async fn models(&self) -> anyhow::Result<Vec<Model>> {
        let connection = self.connect().await?;
        let mut models = Vec::new();
        for model in status(&connection).await?.models {
            // One that is not loaded says little of itself.
            let named = LoadRequest { name: model.name, path: String::new() };
            models.extend(connection.models().load(named).await?.into_inner().model);
        }
        ensure!(models.len() == 2, "{models:?}");
        Ok(models)
    }

    /// Nothing that a person would have to look at.
    pub(super) fn log_is_clean(&self) -> anyhow::Result<()> {
        let log = fs::read_to_string(self.home.path("log")).context("the log")?;
        let bad = |line: &&str| line.contains("panicked") || line.contains("ERROR");
        let bad: Vec<_> = log.lines().filter(bad).take(9).collect();
        ensure!(bad.is_empty(), "the log has errors:\n{}", bad.join("\n"));
        Ok(())
    }
}

fn write_adapter(seed: u64, width: usize, path: &Path) -> std::io::Result<()> {
    let layers = vec![("blocks.0.attn.q_proj".to_owned(), [width, width])];
    fs::write(path, Adapter { rank: 2, alpha: 8.0, seed, layers }.lora())
}

/// What the daemon says of itself.
pub(super) async fn status(connection: &Connection) -> Result<StatusResponse, Status> {
    Ok(connection.admin().status(StatusRequest {}).await?.into_inner())
}
