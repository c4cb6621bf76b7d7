//! Requests at random, that have enough in common to meet each other in the cache.

use std::time::Duration;

use tinygpt_proto::v1::{
    CacheKeys, CachePolicy, Model, Persist, PinRequest, Priority, RemoveRequest, SampleRequest,
    Sampling, ScoreRequest, TokenIds, UnpinRequest, WarmRequest, remove_request, sample_request,
    score_request, warm_request,
};

use super::dice::Dice;

/// Beginnings of prompts.
const FAMILIES: u64 = 12;
/// Most tokens of a prompt, and of an answer.
const PROMPT: usize = 300;
const ANSWER: usize = 40;
/// Prompts of each half of a flood, and the tokens of one: as many as leave a large record.
const FLOOD: u64 = 80;
const LONG: usize = 10 * 32 - 1;
/// Lengths at which something begins or ends.
const EDGES: [usize; 12] = [1, 31, 32, 33, 63, 64, 65, 96, 255, 256, 257, PROMPT];

/// For how long something is pinned: no less and no longer than this.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
pub(super) const LONGEST_LEASE: Duration = Duration::from_secs(3);

/// What is asked for.
#[derive(Debug, Clone)]
pub(super) enum Request {
    Sample(SampleRequest),
    Score(ScoreRequest),
    Warm(WarmRequest),
    Pin(PinRequest),
    Unpin(UnpinRequest),
    Remove(RemoveRequest),
}

/// How a request ends, if it is not answered before.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    /// When it is answered.
    Answer,
    /// The stream is dropped after so long.
    Drop(Duration),
    /// At its deadline.
    Deadline(Duration),
    /// It is asked by a process, which is killed after so long, if at all.
    Process(Option<Duration>),
}

/// A request; `keys` are those of prompts that were answered.
pub(super) fn random(dice: &mut Dice, models: &[Model], keys: &[String]) -> Request {
    let sample = sample(dice, models);
    let kind = dice.below(100);
    match kind {
        0..8 => Request::Score(scored(sample)),
        8..20 => Request::Warm(warmed(dice, sample)),
        20..30 if !keys.is_empty() => about(dice.pick(keys).clone(), kind, lease(dice)),
        _ => Request::Sample(sample),
    }
}

/// Something that is done with the prompt that has this key.
fn about(key: String, kind: usize, lease: Duration) -> Request {
    match kind {
        20..24 => Request::Pin(PinRequest { key, lease: lease.try_into().ok() }),
        24..26 => Request::Unpin(UnpinRequest { key }),
        _ => {
            let target = remove_request::Target::Keys(CacheKeys { keys: vec![key] });
            Request::Remove(RemoveRequest { target: Some(target) })
        }
    }
}

fn lease(dice: &mut Dice) -> Duration {
    SHORTEST_LEASE + (LONGEST_LEASE - SHORTEST_LEASE).mul_f64(dice.fraction())
}

fn scored(sample: SampleRequest) -> ScoreRequest {
    ScoreRequest {
        input: Some(score_request::Input::TokenIds(ids_of(&sample).clone())),
        logprobs: 2,
        model: sample.model,
        cache_policy: sample.cache_policy,
        priority: sample.priority,
        namespace: sample.namespace,
        kv_dtype: sample.kv_dtype,
        adapter: sample.adapter,
    }
}

/// A third of what is warmed is pinned.
fn warmed(dice: &mut Dice, sample: SampleRequest) -> WarmRequest {
    let policy = match sample.cache_policy() {
        CachePolicy::Refresh => CachePolicy::Refresh,
        _ => CachePolicy::Use,
    };
    WarmRequest {
        prompt: Some(warm_request::Prompt::TokenIds(ids_of(&sample).clone())),
        pin: dice.chance(33).then(|| lease(dice)).and_then(|lease| lease.try_into().ok()),
        model: sample.model,
        cache_policy: policy.into(),
        priority: sample.priority,
        namespace: sample.namespace,
        kv_dtype: sample.kv_dtype,
        persist: sample.persist,
        adapter: sample.adapter,
    }
}

/// The prompt, which is ids here.
pub(super) fn ids_of(sample: &SampleRequest) -> &TokenIds {
    let Some(sample_request::Prompt::TokenIds(ids)) = &sample.prompt else {
        unreachable!("prompts are ids")
    };
    ids
}

fn sample(dice: &mut Dice, models: &[Model]) -> SampleRequest {
    let model = dice.pick(models);
    let adapters: Vec<_> = model.adapters.iter().map(|adapter| adapter.name.clone()).collect();
    let ids = prompt(dice, model.vocab as usize);
    SampleRequest {
        model: model.name.clone(),
        prompt: Some(sample_request::Prompt::TokenIds(TokenIds { ids })),
        sampling: Some(sampling(dice)),
        cache_policy: policy(dice).into(),
        namespace: (*dice.pick(&["", "", "one", "two"])).to_owned(),
        kv_dtype: if dice.chance(70) { String::new() } else { dice.pick(&model.kv_dtypes).clone() },
        priority: (*dice.pick(&[
            Priority::Low,
            Priority::Normal,
            Priority::Normal,
            Priority::High,
        ]))
        .into(),
        persist: (*dice.pick(&[Persist::Behind, Persist::Behind, Persist::Durable, Persist::No]))
            .into(),
        adapter: if dice.chance(70) { String::new() } else { dice.pick(&adapters).clone() },
        ..Default::default()
    }
}

/// Prompts that nobody has asked for, more than any budget holds: half are kept in memory only.
pub(super) fn flood(model: &Model) -> impl Iterator<Item = Request> {
    (0..2 * FLOOD).map(|nth| {
        let mut dice = Dice::new(nth);
        let ids = (0..LONG).map(|_| dice.below(model.vocab as usize) as u32).collect();
        let persist = if nth % 2 == 0 { Persist::No } else { Persist::Durable };
        Request::Warm(WarmRequest {
            model: model.name.clone(),
            prompt: Some(warm_request::Prompt::TokenIds(TokenIds { ids })),
            namespace: "flood".to_owned(),
            persist: persist.into(),
            ..Default::default()
        })
    })
}

/// One plain request for each codec of a model.
pub(super) fn plain(model: &Model) -> impl Iterator<Item = Request> {
    model.kv_dtypes.iter().map(|kv_dtype| {
        Request::Sample(SampleRequest {
            model: model.name.clone(),
            prompt: Some(sample_request::Prompt::TokenIds(TokenIds { ids: vec![1; 70] })),
            sampling: Some(Sampling { max_tokens: Some(3), ..Default::default() }),
            kv_dtype: kv_dtype.clone(),
            persist: Persist::Durable.into(),
            ..Default::default()
        })
    })
}

/// A beginning that others have, cut somewhere, and a few tokens that perhaps nobody has.
fn prompt(dice: &mut Dice, vocab: usize) -> Vec<u32> {
    let mut family = Dice::new(dice.throw() % FAMILIES);
    let length = if dice.chance(50) { *dice.pick(&EDGES) } else { 1 + dice.below(PROMPT) };
    let common = (0..length).map(|_| family.below(vocab) as u32);
    let own = if dice.chance(50) { dice.below(40) } else { 0 };
    let mut ids: Vec<u32> = common.collect();
    ids.extend((0..own).map(|_| dice.below(vocab) as u32));
    ids
}

fn sampling(dice: &mut Dice) -> Sampling {
    let greedy = dice.chance(60);
    Sampling {
        temperature: Some(if greedy { 0.0 } else { 0.9 }),
        top_k: if dice.chance(30) { 20 } else { 0 },
        seed: Some(dice.throw() >> 11),
        max_tokens: Some(dice.below(ANSWER + 1) as u32),
        n: if dice.chance(15) { 2 + dice.below(2) as u32 } else { 1 },
        ..Default::default()
    }
}

fn policy(dice: &mut Dice) -> CachePolicy {
    match dice.below(20) {
        0 => CachePolicy::ReadOnly,
        1 => CachePolicy::Refresh,
        2 => CachePolicy::Bypass,
        _ => CachePolicy::Use,
    }
}

impl Fate {
    pub(super) fn random(dice: &mut Dice) -> Self {
        let mut soon = |most| Duration::from_micros(dice.below(most) as u64);
        let (a_moment, a_while) = (soon(60_000), soon(400_000));
        match dice.below(20) {
            0..3 => Self::Drop(a_moment),
            3..5 => Self::Deadline(a_moment + Duration::from_millis(1)),
            5 => Self::Process(None),
            6 => Self::Process(Some(a_while)),
            _ => Self::Answer,
        }
    }
}
