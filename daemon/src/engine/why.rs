//! Why no more of a prompt is reused: one answer for requests, and for those who ask beforehand.
//!
//! What is told is what was observed. A prompt is compared with what follows the last block that
//! it shares, in memory and on disk, and with recent prompts; the nearest of these relatives gives
//! the reason. Only when there is none, other families are looked at.

use super::Engine;
use super::event::Reason;
use super::history::{Asked, Parting, reason_of};
use crate::kv::key::{BlockKey, Fingerprint};
use crate::kv::layout::BLOCK;
use crate::store::{Lookalike, Relative, head_digest};

/// Where the whole blocks that a prompt shares end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edge<'a> {
    pub(super) fingerprint: &'a Fingerprint,
    /// The last of them; the chain's root when there is none.
    pub(super) last: BlockKey,
    /// How many there are.
    pub(super) blocks: usize,
    /// What follows them on disk beyond what the catalogue knows.
    pub(super) beyond: Option<&'a [u32]>,
}

impl Engine {
    /// Why no more than `asked.cached` tokens of a prompt are reused.
    pub(super) fn why(&self, asked: &Asked<'_>, edge: &Edge<'_>) -> Reason {
        let (here, recent) = (self.part(asked, edge), self.history.nearest(asked));
        let nearest = match (here, recent) {
            (Some(here), Some(recent)) if recent.shared > here.shared => Some(recent),
            (here, recent) => here.or(recent),
        };
        let told = nearest.map(|parting| parting.reason);
        let told = told.or_else(|| self.history.differing(asked)).or_else(|| self.relative(asked));
        told.unwrap_or_else(|| self.unseen(asked))
    }

    /// How a prompt goes on differently from what follows the blocks that it shares.
    fn part(&self, asked: &Asked<'_>, edge: &Edge<'_>) -> Option<Parting> {
        let start = edge.blocks * BLOCK;
        let rest = &asked.tokens[start..];
        let store = self.store.as_ref();
        let on_disk = store.and_then(|store| store.follows(edge.fingerprint, edge.last, rest));
        let relatives = self.index.follows(&edge.last).chain(edge.beyond).chain(on_disk.as_deref());
        // A block that the prompt goes on with would have been taken: it cannot be had.
        let lost = |theirs: &[u32]| {
            theirs.len() == BLOCK && rest.len() > BLOCK && rest.starts_with(theirs)
        };
        let relatives = relatives.filter(|theirs| !lost(theirs));
        let parting = relatives.map(|theirs| Parting::of(asked.tokens, start, theirs));
        // Prompts that have nothing in common are no relatives.
        parting.max_by_key(Parting::nearness).filter(|parting| parting.shared > 0)
    }

    fn relative(&self, asked: &Asked<'_>) -> Option<Reason> {
        if asked.cached > 0 {
            return None;
        }
        let (fields, head) = (*asked.fields, head_digest(asked.tokens));
        let lookalike = Lookalike { fields, head, text: asked.text };
        Some(match self.store.as_ref()?.relative(&lookalike)? {
            Relative::Differs(field) => reason_of(field),
            Relative::Evicted => Reason::Evicted,
        })
    }

    /// What is left to say when no relative was seen.
    fn unseen(&self, asked: &Asked<'_>) -> Reason {
        let minimum = self.store.as_ref().map_or(0, |store| store.minimum_tokens());
        match asked.cached {
            0 if asked.tokens.len() < minimum => Reason::BelowMinimum,
            0 => Reason::NoEntry,
            _ => Reason::Unknown,
        }
    }
}
