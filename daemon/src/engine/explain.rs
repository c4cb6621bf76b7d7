//! What would be reused for a prompt now, without touching anything.
//!
//! It follows admission step by step (`look_up`), except that a loader only looks at headers, and
//! that a prompt which somebody is computing is not waited for.

use std::ops::Range;
use std::sync::{Arc, mpsc};

use super::Engine;
use super::announce::verdict;
use super::event::{Reason, Reuse};
use super::handle::{Explanation, Message, Question};
use super::history::Asked;
use super::job::Policy;
use super::why::Edge;
use crate::kv::index::{Lent, Origin};
use crate::kv::key::{BlockKey, RecordKey, chain};
use crate::kv::layout::BLOCK;
use crate::store::{Family, Glimpse, Restore};

/// A prompt that somebody asks about.
#[derive(Debug)]
pub(super) struct Inquiry {
    question: Question,
    family: Arc<Family>,
    /// The names of its whole blocks.
    keys: Arc<[BlockKey]>,
    key: RecordKey,
    /// Leading blocks that memory has and a request would attach.
    have: usize,
    reply: mpsc::Sender<Explanation>,
}

/// Rows that a relative lends, whether it is a tail, and whether it comes from the disk. The largest
/// lends: of equals a tail before a block, and what was restored before what was there.
type Offer = (usize, bool, bool);

impl Engine {
    /// Answers at once, or when a loader has looked at the disk.
    pub(super) fn explain(&self, question: Question, reply: mpsc::Sender<Explanation>) {
        let inquiry = self.inquire(question, reply);
        let Some((store, restore)) = self.store.as_ref().zip(self.lacking(&inquiry)) else {
            return self.explained(inquiry, &Glimpse::default());
        };
        if !store.may_have(&restore, inquiry.key) {
            return self.explained(inquiry, &Glimpse::default());
        }
        let mailbox = self.own.clone();
        let reply = move |glimpse| {
            // An engine that is gone answers nobody.
            let _ = mailbox.send(Message::Glimpsed(Box::new((inquiry, glimpse))));
        };
        store.glimpse(restore, Box::new(reply));
    }

    fn inquire(&self, question: Question, reply: mpsc::Sender<Explanation>) -> Inquiry {
        let info = &self.loaded.info;
        let family = info.family(question.codec, question.adapter, &question.namespace);
        let fingerprint = family.fingerprint;
        let keys: Arc<[BlockKey]> = chain(&fingerprint, &question.tokens).into();
        let last = keys.last().copied().unwrap_or_else(|| BlockKey::root(&fingerprint));
        let key = RecordKey::new(&fingerprint, &last, &question.tokens[keys.len() * BLOCK..]);
        let family = Arc::new(family);
        let mut inquiry = Inquiry { question, family, keys, key, have: 0, reply };
        let usable = inquiry.usable(self.has_record(&inquiry));
        let found = self.index.longest(&inquiry.keys[..usable], &inquiry.question.tokens);
        inquiry.have = found.len();
        inquiry
    }

    /// What a loader would be sent for.
    fn lacking(&self, inquiry: &Inquiry) -> Option<Restore> {
        let whole = inquiry.have == inquiry.keys.len();
        let recorded = self.index.record(&inquiry.key, inquiry.tail()).is_some();
        (!whole || !recorded).then(|| Restore {
            family: Arc::clone(&inquiry.family),
            tokens: Arc::clone(&inquiry.question.tokens),
            keys: Arc::clone(&inquiry.keys),
            from: inquiry.have,
        })
    }

    fn has_record(&self, inquiry: &Inquiry) -> bool {
        let record = self.index.record(&inquiry.key, inquiry.tail());
        record.is_some_and(|record| record.hidden.is_some())
    }

    /// Answers with what memory has and the disk seems to have.
    pub(super) fn explained(&self, inquiry: Inquiry, disk: &Glimpse) {
        let on_disk = inquiry.have..inquiry.have + disk.blocks;
        let record = self.record_source(&inquiry, disk);
        let mut reuse = Reuse::default();
        let mut blocks = 0;
        for (at, key) in inquiry.keys[..inquiry.usable(record.is_some())].iter().enumerate() {
            let seen = on_disk.contains(&at).then_some(Origin::Disk);
            let Some(source) = self.index.source(key).or(seen) else { break };
            reuse.add(BLOCK, source);
            blocks += 1;
        }
        let whole = record.filter(|_| blocks == inquiry.keys.len());
        if let Some(source) = whole {
            reuse.add(inquiry.tail().len(), source);
        } else {
            if let Some((rows, source)) = self.lendable(&inquiry, disk, &on_disk, blocks) {
                reuse.add(rows, source);
            }
            let cached = reuse.cached() as usize;
            reuse.reason = Some(self.explain_why(&inquiry, disk, &on_disk, blocks, cached));
        }
        reuse.verdict = verdict(Policy::Use, whole.is_some(), &reuse);
        // An asker that is gone needs no answer.
        let _ = inquiry.reply.send(Explanation { reuse, key: inquiry.key });
    }

    /// Where the record that answers the whole prompt would come from.
    fn record_source(&self, inquiry: &Inquiry, disk: &Glimpse) -> Option<Origin> {
        if self.has_record(inquiry) {
            return self.index.record_source(&inquiry.key);
        }
        let glimpsed = disk.record.as_ref().filter(|record| record.key == inquiry.key);
        glimpsed.filter(|record| record.complete).map(|_| Origin::Disk)
    }

    /// The rows that a relative behind the first `have` blocks would lend.
    fn lendable(
        &self,
        inquiry: &Inquiry,
        disk: &Glimpse,
        on_disk: &Range<usize>,
        have: usize,
    ) -> Option<(usize, Origin)> {
        let rest = &inquiry.question.tokens[have * BLOCK..];
        let memory = self.lent(&inquiry.parent(have), rest);
        let restored = inquiry.keys.get(have).filter(|_| on_disk.contains(&have));
        let glimpsed = match restored {
            Some(key) => vec![(self.index.contains(key), rest, false)],
            None if on_disk.end == have => self.glimpsed(disk),
            None => Vec::new(),
        };
        let missing = glimpsed.into_iter().filter(|(is_here, ..)| !is_here);
        let disk = missing.map(|(_, theirs, is_tail)| (rows(rest, theirs), is_tail, true));
        let (rows, _, from_disk) = memory.into_iter().chain(disk).max()?;
        let source = if from_disk { Origin::Disk } else { Origin::Memory };
        (rows > 0).then_some((rows, source))
    }

    /// What memory would lend.
    fn lent(&self, parent: &BlockKey, rest: &[u32]) -> Option<Offer> {
        let lent = self.index.lend(parent, rest, rest.len().checked_sub(1)?)?;
        let (source, is_tail) = match &lent {
            Lent::Block(block, _) => (self.index.source(&block.key), false),
            Lent::Tail(record, _) => (self.index.record_source(&record.key), true),
        };
        Some((lent.rows(), is_tail, source == Some(Origin::Disk)))
    }

    /// The relatives that a loader would bring: whether they are here anyway, their ids, and
    /// whether they are tails.
    fn glimpsed<'a>(&self, disk: &'a Glimpse) -> Vec<(bool, &'a [u32], bool)> {
        let block = disk.partial.as_ref();
        let block = block.map(|(key, ids)| (self.index.contains(key), &ids[..], false));
        let tail = disk.record.as_ref().map(|record| {
            (self.index.record_source(&record.key).is_some(), &record.tail[..], true)
        });
        block.into_iter().chain(tail).collect()
    }

    fn explain_why(
        &self,
        inquiry: &Inquiry,
        disk: &Glimpse,
        on_disk: &Range<usize>,
        blocks: usize,
        cached: usize,
    ) -> Reason {
        if disk.corrupt {
            return Reason::CorruptQuarantined;
        }
        if disk.io_error {
            return Reason::IoError;
        }
        let Question { tokens, text, .. } = &inquiry.question;
        let asked = Asked { fields: &inquiry.family.fields, tokens, text: *text, cached };
        let restored = on_disk.contains(&blocks).then(|| &tokens[blocks * BLOCK..][..BLOCK]);
        let edge = Edge {
            fingerprint: &inquiry.family.fingerprint,
            last: inquiry.parent(blocks),
            blocks,
            beyond: restored.or(disk.next.as_deref().filter(|_| on_disk.end == blocks)),
        };
        self.why(&asked, &edge)
    }
}

impl Inquiry {
    /// Leading blocks that a request would attach: with a record all, else it has a row to
    /// compute.
    fn usable(&self, has_record: bool) -> usize {
        let prompt = self.question.tokens.len();
        if has_record { self.keys.len() } else { prompt.saturating_sub(1) / BLOCK }
    }

    /// The name of the block before block `at`.
    fn parent(&self, at: usize) -> BlockKey {
        match at.checked_sub(1) {
            Some(before) => self.keys[before],
            None => BlockKey::root(&self.family.fingerprint),
        }
    }

    fn tail(&self) -> &[u32] {
        &self.question.tokens[self.keys.len() * BLOCK..]
    }
}

/// Rows that `theirs` has in common with the rest of a prompt and may lend: never a whole block, and
/// never all that is left to compute.
fn rows(rest: &[u32], theirs: &[u32]) -> usize {
    let common = rest.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    common.min(rest.len().saturating_sub(1)).min(BLOCK - 1)
}
