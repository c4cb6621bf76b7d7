//! The bytes of every token, packed, and found again by a hash table of ids.
//!
//! Vocabularies have a quarter of a million tokens of a few bytes each, so that a string and a map
//! entry for each would take several times what the text does.

use std::hash::{BuildHasher, RandomState};

/// No token.
const EMPTY: u32 = u32::MAX;

/// Bytes of tokens by id, and ids by bytes.
pub(super) struct Pieces {
    bytes: Box<[u8]>,
    /// Where each token's bytes end.
    ends: Box<[u32]>,
    /// Ids at their hashes, or in the next free slot; at most half of them are taken.
    slots: Box<[u32]>,
    hasher: RandomState,
}

impl Pieces {
    /// The tokens in the order of their ids, each with whether it is to be found; of equal ones the
    /// first is.
    pub(super) fn new(tokens: impl Iterator<Item = (Vec<u8>, bool)>) -> Self {
        let (mut bytes, mut ends, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        for (token, findable) in tokens {
            bytes.extend(token);
            ends.push(bytes.len() as u32);
            wanted.push(findable);
        }
        let findable = wanted.iter().filter(|findable| **findable).count();
        let slots = vec![EMPTY; (2 * findable).next_power_of_two()].into();
        let mut pieces =
            Self { bytes: bytes.into(), ends: ends.into(), slots, hasher: RandomState::new() };
        for (id, _) in (0..).zip(wanted).filter(|(_, findable)| *findable) {
            let slot = pieces.slot(pieces.bytes(id));
            if pieces.slots[slot] == EMPTY {
                pieces.slots[slot] = id;
            }
        }
        pieces
    }

    /// How many tokens there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all tokens together.
    pub(super) fn total(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of a token; none if there is no such token.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..end as usize]
    }

    /// The token that has these bytes.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<u32> {
        Some(self.slots[self.slot(bytes)]).filter(|&id| id != EMPTY)
    }

    /// Where a token of these bytes is, or would be.
    fn slot(&self, bytes: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.hasher.hash_one(bytes) as usize & mask;
        while self.slots[slot] != EMPTY && self.bytes(self.slots[slot]) != bytes {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_token_is_found_by_its_bytes_the_first_of_equal_ones(
            tokens in proptest::collection::vec(("[ab]{0,3}", any::<bool>()), 0..60),
        ) {
            let pieces =
                Pieces::new(tokens.iter().map(|(text, find)| (text.clone().into_bytes(), *find)));
            prop_assert_eq!(pieces.len(), tokens.len());
            for (id, (text, _)) in (0..).zip(&tokens) {
                prop_assert_eq!(pieces.bytes(id), text.as_bytes());
                let first = tokens.iter().position(|(other, find)| *find && other == text);
                prop_assert_eq!(pieces.find(text.as_bytes()), first.map(|first| first as u32));
            }
            prop_assert_eq!(pieces.find(b"c"), None);
            prop_assert_eq!(pieces.bytes(tokens.len() as u32), b"");
        }
    }
}
