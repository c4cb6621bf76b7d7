//! A short memory of prompts, to say why a new one was not wholly cached.
//!
//! What is reported is what was observed: a prompt that shares tokens with a recent one parts from
//! it at a known token; one whose common tokens are no longer cached was evicted; one that was
//! seen under other fields names the first of them. Only prompts of the same identity are seen.

use std::collections::VecDeque;
use std::sync::Arc;

use super::event::{Divergence, Reason};
use crate::kv::key::{Digest, Field, Fields, common};
use crate::kv::layout::BLOCK;

const PROMPTS: usize = 64;
const SNIPPET: usize = 8;

#[derive(Debug)]
struct Seen {
    fields: Fields,
    tokens: Arc<[u32]>,
    text: Option<Digest>,
}

/// Recent prompts whose blocks were published.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Seen>);

/// A prompt, as far as it was cached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) fields: &'a Fields,
    pub(super) tokens: &'a [u32],
    pub(super) text: Option<Digest>,
    /// Leading tokens that were cached.
    pub(super) cached: usize,
}

impl History {
    /// Remembers a prompt.
    pub(super) fn push(&mut self, fields: Fields, tokens: Arc<[u32]>, text: Option<Digest>) {
        self.0.retain(|seen| seen.fields != fields || seen.tokens != tokens);
        self.0.push_back(Seen { fields, tokens, text });
        if self.0.len() > PROMPTS {
            self.0.pop_front();
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// How a prompt parts from the nearest recent one of its own family.
    pub(super) fn nearest(&self, asked: &Asked<'_>) -> Option<Parting> {
        let same = self.0.iter().filter(|seen| seen.fields == *asked.fields);
        let parting = same.map(|seen| Parting::of(asked.tokens, 0, &seen.tokens));
        let nearest = parting.max_by_key(Parting::nearness).filter(|parting| parting.shared > 0)?;
        if nearest.shared / BLOCK > asked.cached.div_ceil(BLOCK) {
            return Some(Parting { reason: Reason::Evicted, ..nearest });
        }
        Some(nearest)
    }

    /// Which field of the nearest recent prompt of another family differs.
    pub(super) fn differing(&self, asked: &Asked<'_>) -> Option<Reason> {
        if asked.cached > 0 {
            return None;
        }
        let identity = asked.fields.identity;
        let mut others = self.0.iter().rev().filter(|seen| seen.fields.identity == identity);
        let twin = others.find(|seen| {
            let same_text = seen.text.is_some() && seen.text == asked.text;
            let head = asked.tokens.len().min(BLOCK);
            same_text || common(&seen.tokens, asked.tokens) >= head
        })?;
        asked.fields.first_difference(&twin.fields).map(reason_of)
    }
}

/// How a prompt compares with a relative.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Parting {
    /// Leading tokens that both have.
    pub(super) shared: usize,
    /// What keeps the prompt from sharing more.
    pub(super) reason: Reason,
}

impl Parting {
    /// Compares `ours` with a relative that has the first `start` tokens and goes on with `theirs`.
    pub(super) fn of(ours: &[u32], start: usize, theirs: &[u32]) -> Self {
        let rest = &ours[start..];
        let common = common(rest, theirs);
        let reason = match (common == rest.len(), common == theirs.len()) {
            (true, _) => Reason::NoRecord,
            (_, true) => Reason::Extended,
            _ => {
                let mut parting = divergence(rest, theirs, common);
                parting.at += u32::try_from(start).unwrap_or(u32::MAX);
                Reason::Diverged(parting)
            }
        };
        Self { shared: start + common, reason }
    }

    /// Orders relatives: by the tokens in common, and of equals the one that ends there is nearer.
    /// The ids decide between the rest, so that the same relatives give the same answer.
    pub(super) fn nearness(&self) -> (usize, bool, Vec<u32>) {
        match &self.reason {
            Reason::Diverged(parting) => (self.shared, false, parting.theirs.clone()),
            _ => (self.shared, true, Vec::new()),
        }
    }
}

/// Where `ours` parts from `theirs`, which share their first `at` tokens.
pub fn divergence(ours: &[u32], theirs: &[u32], at: usize) -> Divergence {
    let snippet = |tokens: &[u32]| tokens.iter().skip(at).take(SNIPPET).copied().collect();
    let (ours, theirs) = (snippet(ours), snippet(theirs));
    Divergence { at: u32::try_from(at).unwrap_or(u32::MAX), ours, theirs }
}

/// The reason that stands for a differing field.
pub fn reason_of(field: Field) -> Reason {
    match field {
        Field::weights | Field::config | Field::rope => Reason::FingerprintWeights,
        Field::tokenizer => Reason::FingerprintTokenizer,
        Field::adapter => Reason::Adapter,
        Field::codec => Reason::KvDtype,
        Field::layout => Reason::LayoutVersion,
        Field::numerics => Reason::NumericsVersion,
        Field::window => Reason::WindowPolicy,
        Field::identity => Reason::NoEntry,
        Field::namespace => Reason::Namespace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(codec: &str) -> Fields {
        Fields { codec: Digest::of("codec", codec.as_bytes()), ..Fields::default() }
    }

    fn history(prompts: &[&[u32]]) -> History {
        let mut history = History::default();
        for prompt in prompts {
            history.push(fields("f16"), Arc::from(*prompt), None);
        }
        history
    }

    fn explain(history: &History, tokens: &[u32], cached: usize) -> Option<Reason> {
        let asked = Asked { fields: &fields("f16"), tokens, text: None, cached };
        history.nearest(&asked).map(|parting| parting.reason)
    }

    #[test]
    fn a_changed_token_is_named_with_both_sides() {
        let seen: Vec<u32> = (0..100).collect();
        let mut asked = seen.clone();
        asked[70] = 7;
        let Some(Reason::Diverged(divergence)) = explain(&history(&[&seen]), &asked, 70) else {
            panic!("no divergence");
        };
        assert_eq!((divergence.at, divergence.ours[0], divergence.theirs[0]), (70, 7, 70));
    }

    #[test]
    fn longer_shorter_and_evicted_prompts_are_told_apart() {
        let seen: Vec<u32> = (0..100).collect();
        let longer: Vec<u32> = (0..150).collect();
        let history = history(&[&seen]);
        assert_eq!(explain(&history, &longer, 100), Some(Reason::Extended));
        assert_eq!(explain(&history, &seen[..80], 79), Some(Reason::NoRecord));
        assert_eq!(explain(&history, &seen, 0), Some(Reason::Evicted));
        assert_eq!(explain(&history, &[500, 501], 0), None);
    }

    #[test]
    fn of_two_relatives_with_as_much_in_common_the_one_that_ends_there_is_nearer() {
        let seen: Vec<u32> = (0..100).collect();
        let mut asked = seen.clone();
        asked[70] = 7;
        for prompts in [[&seen[..70], &seen[..]], [&seen[..], &seen[..70]]] {
            assert_eq!(explain(&history(&prompts), &asked, 70), Some(Reason::Extended));
        }
    }

    #[test]
    fn the_same_prompt_under_another_codec_names_the_codec() {
        let seen: Vec<u32> = (0..100).collect();
        let history = history(&[&seen]);
        let other = fields("f32");
        let asked = Asked { fields: &other, tokens: &seen, text: None, cached: 0 };
        assert_eq!(
            (history.nearest(&asked), history.differing(&asked)),
            (None, Some(Reason::KvDtype))
        );
    }

    #[test]
    fn another_identity_sees_nothing() {
        let seen: Vec<u32> = (0..100).collect();
        let history = history(&[&seen]);
        let other = Fields { identity: Digest::of("identity", b"other"), ..fields("f16") };
        let asked = Asked { fields: &other, tokens: &seen, text: None, cached: 0 };
        assert_eq!((history.nearest(&asked), history.differing(&asked)), (None, None));
    }
}
