//! Requests at random, that have enough in common to meet each other in the cache.

use std::time::Duration;

use tinygpt_proto::v1::{
    CachePolicy, Model, Persist, Priority, SampleRequest, Sampling, TokenIds, sample_request,
};

use super::dice::Dice;

/// Beginnings of prompts.
const FAMILIES: u64 = 12;
/// Most tokens of a prompt, and of an answer.
const PROMPT: usize = 300;
const ANSWER: usize = 40;
/// Lengths at which something begins or ends.
const EDGES: [usize; 12] = [1, 31, 32, 33, 63, 64, 65, 96, 255, 256, 257, PROMPT];

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

/// A request.
pub(super) fn random(dice: &mut Dice, models: &[Model]) -> SampleRequest {
    let model = dice.pick(models);
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
        ..Default::default()
    }
}

/// One plain request for each codec of a model.
pub(super) fn plain(model: &Model) -> impl Iterator<Item = SampleRequest> {
    model.kv_dtypes.iter().map(|kv_dtype| SampleRequest {
        model: model.name.clone(),
        prompt: Some(sample_request::Prompt::TokenIds(TokenIds { ids: vec![1; 70] })),
        sampling: Some(Sampling { max_tokens: Some(3), ..Default::default() }),
        kv_dtype: kv_dtype.clone(),
        persist: Persist::Durable.into(),
        ..Default::default()
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
