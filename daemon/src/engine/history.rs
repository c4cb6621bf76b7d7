//! A short memory of prompts, to say why a new one was not wholly cached.
//!
//! What is reported is what was observed: a prompt that shares tokens with a recent one parts from
//! it at a known token; one whose common tokens are no longer cached was evicted; one that was
//! seen under other fields names the first of them. Only prompts of the same identity are seen.

use std::collections::VecDeque;
use std::sync::Arc;

use super::job::{Divergence, Reason};
use crate::kv::key::{Digest, Field, Fields};
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

    /// Why no more of `asked` was cached, if recent prompts tell.
    pub(super) fn explain(&self, asked: &Asked<'_>) -> Option<Reason> {
        self.explain_by_tokens(asked).or_else(|| self.explain_by_fields(asked))
    }

    fn explain_by_tokens(&self, asked: &Asked<'_>) -> Option<Reason> {
        let same = self.0.iter().filter(|seen| seen.fields == *asked.fields);
        let shared = |seen: &&Seen| common(&seen.tokens, asked.tokens);
        let nearest = same.max_by_key(shared)?;
        let shared = shared(&nearest);
        match shared {
            0 => None,
            _ if shared / BLOCK > asked.cached.div_ceil(BLOCK) => Some(Reason::Evicted),
            _ if shared == asked.tokens.len() => Some(Reason::NoRecord),
            _ if shared == nearest.tokens.len() => Some(Reason::Extended),
            _ => Some(Reason::Diverged(divergence(asked.tokens, &nearest.tokens, shared))),
        }
    }

    fn explain_by_fields(&self, asked: &Asked<'_>) -> Option<Reason> {
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

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
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
        history.explain(&asked)
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
    fn the_same_prompt_under_another_codec_names_the_codec() {
        let seen: Vec<u32> = (0..100).collect();
        let history = history(&[&seen]);
        let other = fields("f32");
        let asked = Asked { fields: &other, tokens: &seen, text: None, cached: 0 };
        assert_eq!(history.explain(&asked), Some(Reason::KvDtype));
    }

    #[test]
    fn another_identity_sees_nothing() {
        let seen: Vec<u32> = (0..100).collect();
        let history = history(&[&seen]);
        let other = Fields { identity: Digest::of("identity", b"other"), ..fields("f16") };
        let asked = Asked { fields: &other, tokens: &seen, text: None, cached: 0 };
        assert_eq!(history.explain(&asked), None);
    }
}
