//! `bench`: agents that share the daemon, and what each of them waits for.
//!
//! An agent is a process: this program, run once more for each ([`agent`]), with a connection of its
//! own, so that the daemon sees what it sees of real ones. All are told their prompts first, and
//! start together at one word ([`crew`]). Their prompts begin alike and end differently
//! ([`prompts`]); times are the agents' own, counted from that word ([`figures`]).
//!
//! It keeps nothing on disk, and its prompts are in a namespace of their own. A model that is still
//! to be loaded is loaded before anything is measured.

pub(crate) mod agent;
mod crew;
mod figures;
mod prompts;
mod talk;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tinygpt_client::connect::Connection;
use tinygpt_client::exit::Exit;
use tinygpt_proto::v1::{Model, ModelServiceGetRequest, TokenizeRequest};

use crate::cli::{ModelArg, heading};
use crate::failure::{Failure, Outcome};
use crate::prompt::read_text;
use crate::render;
use crate::sample::generate;
use crate::session::Session;
use crew::Crew;
use figures::{Beside, Figures, Findings};
use prompts::Prompts;
use talk::{Call, Order};

/// Lets several agents ask at once, and tells what they waited for.
///
/// Agents are processes with prompts that begin alike, as those of programs with one system prompt
/// do. Nothing is written to disk.
#[derive(Debug, Args)]
#[command(next_help_heading = heading::LOAD)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    model: ModelArg,
    /// A file whose text is the common beginning [default: token ids at random, always the same]
    #[arg(long, value_name = "FILE", help_heading = heading::PROMPT)]
    prompt_file: Option<PathBuf>,
    /// Agents that ask at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    agents: u16,
    /// Tokens that all prompts have in common; of a file as many as it has, if that is less
    #[arg(long, value_name = "N", default_value_t = 500)]
    prefix: u32,
    /// Tokens of each prompt's own, behind those, new in each round
    #[arg(long, value_name = "N", default_value_t = 50)]
    unique: u32,
    /// Most tokens that each agent generates
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// How often all of them ask
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Reuse nothing of what was computed before a round
    #[arg(long)]
    cold: bool,
    /// Then compute a prompt of so many tokens while the agents generate [default: none]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    beside_prefill: Option<u32>,
}

pub(crate) async fn run(args: BenchArgs, session: &Session) -> Outcome {
    let connection = session.connect().await?;
    let model = loaded(&args.model.name, &connection, session).await?;
    let prefix = args.prefix_of(&model, &connection, session).await?;
    let mut bench = Bench::new(&args, &model, prefix);
    let figures = bench.measure(&connection, session).await?;
    match session.json {
        true => render::json(&bench.report(&figures))?,
        false => render::line(&render::pairs(figures.findings().rows()))?,
    }
    Ok(Exit::Done)
}

/// The model. It has answered something when this returns, so that it is loaded.
async fn loaded(name: &str, connection: &Connection, session: &Session) -> Result<Model, Failure> {
    let first = Order::new(name, NAMESPACE, vec![0], 1);
    generate(connection, first.request(), session, &mut ()).await?;
    let request = session.request(ModelServiceGetRequest { name: name.to_owned() })?;
    let answer = session.at_once(connection.models().get(request)).await?;
    Ok(session.accept(answer).model.unwrap_or_default())
}

impl BenchArgs {
    /// The tokens with which all prompts begin.
    async fn prefix_of(
        &self,
        model: &Model,
        connection: &Connection,
        session: &Session,
    ) -> Result<Vec<u32>, Failure> {
        let Some(path) = &self.prompt_file else {
            return Ok(prompts::common(self.prefix, model.vocab));
        };
        let text = read_text(path)?;
        let request = TokenizeRequest { model: model.name.clone(), text, ..Default::default() };
        let answer = connection.inference().tokenize(session.request(request)?).await?;
        let mut ids = session.accept(answer).token_ids;
        ids.truncate(self.prefix as usize);
        Ok(ids)
    }
}

/// What is asked, and of whom.
#[derive(Debug)]
struct Bench<'a> {
    args: &'a BenchArgs,
    model: &'a str,
    prompts: Prompts,
}

impl<'a> Bench<'a> {
    fn new(args: &'a BenchArgs, model: &'a Model, prefix: Vec<u32>) -> Self {
        Self { args, model: &model.name, prompts: Prompts::new(prefix, args.unique, model.vocab) }
    }

    async fn measure(
        &mut self,
        connection: &Connection,
        session: &Session,
    ) -> Result<Figures, Failure> {
        let crew = |agents| Crew::start(agents, connection.socket(), session.timeout);
        let (mut agents, mut figures) = (crew(self.args.agents)?, Figures::default());
        for round in 0..self.args.rounds {
            figures.add(&agents.round(&self.orders(round)).await?);
        }
        if let Some(tokens) = self.args.beside_prefill {
            figures.beside = Some(self.beside(&mut agents, &mut crew(1)?, tokens).await?);
        }
        Ok(figures)
    }

    /// One for each agent.
    fn orders(&mut self, round: u16) -> Vec<Order> {
        let namespace = match self.args.cold {
            true => self.prompts.namespace(round),
            false => NAMESPACE.into(),
        };
        let prompts: Vec<_> = (0..self.args.agents).map(|_| self.prompts.next()).collect();
        let order = |ids| Order::new(self.model, &namespace, ids, self.args.tokens);
        prompts.into_iter().map(order).collect()
    }

    /// What was asked, and what was found.
    fn report<'b>(&'b self, figures: &'b Figures) -> Report<'b> {
        Report {
            schema: SCHEMA,
            model: self.model,
            agents: self.args.agents,
            rounds: self.args.rounds,
            cold: self.args.cold,
            prefix_tokens: self.prompts.prefix().len(),
            unique_tokens: self.args.unique,
            max_tokens: self.args.tokens,
            found: figures.findings(),
        }
    }

    /// The agents alone, then beside one more that computes a long prompt.
    async fn beside(
        &mut self,
        crew: &mut Crew,
        more: &mut Crew,
        tokens: u32,
    ) -> Result<Beside, Failure> {
        let mut orders = self.orders(self.args.rounds);
        // Once to compute the prompts: what generates later has none to compute.
        crew.round(&orders).await?;
        let alone = crew.round(&orders).await?;
        orders.iter_mut().for_each(|order| order.endless = true);
        crew.ready(&orders).await?;
        let long = self.prompts.unlike(tokens);
        more.ready(&[Order::new(self.model, NAMESPACE, long, 0)]).await?;
        crew.tell(&Call::Go).await?;
        crew.begun().await?;
        crew.tell(&Call::Mark).await?;
        more.tell(&Call::Go).await?;
        let prefill = tokio::select! {
            told = more.told() => told?,
            // They go on until they are stopped, unless one of them fails.
            failed = crew.told() => failed?,
        };
        crew.tell(&Call::Stop).await?;
        Ok(Beside::new(&prefill, &alone, &crew.told().await?))
    }
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    schema: &'static str,
    model: &'a str,
    agents: u16,
    rounds: u16,
    cold: bool,
    prefix_tokens: usize,
    unique_tokens: u32,
    max_tokens: u32,
    #[serde(flatten)]
    found: Findings<'a>,
}

const SCHEMA: &str = "tinygpt.bench/1";

/// Where its prompts are, unless they are to be forgotten after each round.
const NAMESPACE: &str = "bench";
