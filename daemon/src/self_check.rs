//! `tinygptd --self-check`: is what is cached still what would be computed?
//!
//! A sample of cached prompts is answered twice, from the cache and without it, and the whole
//! distribution of the next token is compared bit for bit. It needs the cache directory for
//! itself, so the daemon must not be running.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use tokio::sync::mpsc;

use crate::config::Config;
use crate::engine::event::Token;
use crate::engine::job::{Caller, Namespace, Persist, Policy, Sampling, Task};
use crate::engine::{EngineHandle, Event, Job, ModelInfo, State, job};
use crate::exit::{Exit, Usage};
use crate::kv::codec::Codec;
use crate::kv::key::{Digest, Fields};
use crate::store::{ChainEnd, StoreHandle};

/// Cached prompts of each model that are compared.
const SAMPLE: usize = 16;

/// Compares a sample and reports on stderr; the exit code says whether all were equal.
///
/// # Errors
/// When a request fails, or a device would compute, whose sums depend on company.
pub fn run(config: &Config, store: &StoreHandle) -> anyhow::Result<Exit> {
    let device = config.device.open(config.device_memory).map_err(|error| Usage(error.into()))?;
    if let Some(device) = device {
        let refused = anyhow!("{} repeats no bits: check with --device cpu", device.label());
        return Err(Usage(refused).into());
    }
    let ground = crate::ground(config, Some(store.clone()))?;
    let mut different = 0;
    let mut checked = 0;
    for source in &config.models {
        let engine = ground.loading(source.clone()).context("cannot start an engine")?;
        let Some(info) = ready(&engine)? else { return Ok(Exit::Model) };
        let complete = store.list().into_iter().filter(|entry| entry.complete);
        let own = complete.filter_map(|entry| {
            check(&engine, &info, store, &entry).transpose().map(|equal| (entry, equal))
        });
        for (entry, equal) in own.take(SAMPLE) {
            let equal = equal?;
            checked += 1;
            different += usize::from(!equal);
            let verdict = if equal { "equal" } else { "DIFFERENT" };
            tracing::info!(key = %entry.key, tokens = entry.tokens, "{verdict}");
        }
        engine.drain(Instant::now());
    }
    tracing::info!(checked, different, "self-check");
    Ok(if different == 0 { Exit::Done } else { Exit::Internal })
}

/// The model when it is loaded; `None` when it cannot be.
fn ready(engine: &EngineHandle) -> anyhow::Result<Option<Arc<ModelInfo>>> {
    let mut state = engine.state();
    loop {
        match &*state.borrow_and_update() {
            State::Ready(info) => return Ok(Some(Arc::clone(info))),
            State::Failed(words) => {
                tracing::error!("{words}");
                return Ok(None);
            }
            State::Poisoned => bail!("the engine died"),
            State::Loading | State::Unloading | State::Unloaded => {}
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Whether the cached prompt gives what computing it gives; `None` for chains of other models.
fn check(
    engine: &EngineHandle,
    info: &ModelInfo,
    store: &StoreHandle,
    entry: &ChainEnd,
) -> anyhow::Result<Option<bool>> {
    let Some(fields) = store.fields(&entry.fingerprint) else { return Ok(None) };
    let Some((codec, namespace)) = family(info, &fields) else { return Ok(None) };
    let adapter = fields.adapter;
    let Some(tokens) = store.tokens(&entry.fingerprint, &entry.key) else { return Ok(None) };
    let tokens: Arc<[u32]> = tokens.into();
    let next = |policy| next_token(engine, info, &tokens, (codec, adapter), namespace, policy);
    let (cached, computed) = (next(Policy::ReadOnly)?, next(Policy::Bypass)?);
    Ok(Some(bits(&cached) == bits(&computed)))
}

/// The codec and namespace under which this model has `fields`, with or without an adapter, if it
/// has them at all.
fn family(info: &ModelInfo, fields: &Fields) -> Option<(Codec, Namespace)> {
    let namespace = Namespace { identity: fields.identity, sub: fields.namespace };
    let same = |codec: &Codec| info.fields(*codec, fields.adapter, &namespace) == *fields;
    let codec = Codec::ALL.into_iter().find(same).filter(|_| info.computed(fields));
    codec.map(|codec| (codec, namespace))
}

fn next_token(
    engine: &EngineHandle,
    info: &ModelInfo,
    tokens: &Arc<[u32]>,
    (codec, adapter): (Codec, Digest),
    namespace: Namespace,
    policy: Policy,
) -> anyhow::Result<Token> {
    let (events, mut told) = mpsc::channel(job::EVENTS);
    engine.submit(Job {
        task: Task::Sample(Sampling { logprobs: Some(info.vocab), ..Sampling::greedy(1) }),
        tokens: Arc::clone(tokens),
        text: None,
        caller: Caller::default(),
        namespace,
        codec,
        adapter,
        policy,
        persist: Persist::No,
        pin: None,
        deadline: None,
        received: Instant::now(),
        generation: info.generation,
        events,
    })?;
    while let Some(event) = told.blocking_recv() {
        match event {
            Event::Token(token) => return Ok(token),
            Event::Failed(failure) => return Err(failure.into()),
            _ => {}
        }
    }
    None.context("the engine gave no token")
}

fn bits(token: &Token) -> Vec<(u32, u32)> {
    token.top.iter().map(|(id, logprob)| (*id, logprob.to_bits())).collect()
}
