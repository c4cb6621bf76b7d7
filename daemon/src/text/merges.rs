//! Which pairs of tokens are joined, which of them first, and what they make.
//!
//! Vocabularies have half a million pairs. Each takes three words, beside the others with the same
//! token on its left, in the order of the right ones: it is found without a hash, which somebody
//! could make a file for.

use super::merge::Joins;

/// A pair of tokens that is joined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    pub(super) left: u32,
    pub(super) right: u32,
    /// The lowest is the best.
    pub(super) rank: u32,
    /// The token that they make.
    pub(super) whole: u32,
}

/// All of a vocabulary's.
pub(super) struct Merges {
    /// Those of the left token t are `joins[starts[t]..starts[t + 1]]`.
    starts: Box<[u32]>,
    joins: Box<[Join]>,
}

/// What a left token is joined with. Ascending by `right`.
struct Join {
    right: u32,
    rank: u32,
    whole: u32,
}

impl Merges {
    /// Of a vocabulary of `tokens`. Of two merges of one pair the one that comes first counts.
    pub(super) fn new(mut merges: Vec<Merge>, tokens: usize) -> Self {
        merges.sort_by_key(|merge| (merge.left, merge.right));
        merges.dedup_by_key(|merge| (merge.left, merge.right));
        let start = |left| merges.partition_point(|merge| (merge.left as usize) < left) as u32;
        let starts = (0..=tokens).map(start).collect();
        let join = |Merge { right, rank, whole, .. }| Join { right, rank, whole };
        Self { starts, joins: merges.into_iter().map(join).collect() }
    }

    fn of(&self, left: u32) -> Option<&[Join]> {
        let left = left as usize;
        let [start, end] = *self.starts.get(left..left.checked_add(2)?)? else { return None };
        self.joins.get(start as usize..end as usize)
    }
}

impl Joins for Merges {
    fn join(&self, left: u32, right: u32, _: &[u8]) -> Option<(u32, u32)> {
        let joins = self.of(left)?;
        let at = joins.binary_search_by_key(&right, |join| join.right).ok()?;
        Some((joins[at].rank, joins[at].whole))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::merge::NONE;
    use super::*;

    const TOKENS: u32 = 9;

    proptest! {
        #[test]
        fn a_pair_is_joined_as_its_first_merge_says(
            pairs in proptest::collection::vec((0..TOKENS, 0..TOKENS, 0..TOKENS), 0..40),
        ) {
            let merge = |(rank, &(left, right, whole)): (u32, _)| Merge { left, right, rank, whole };
            let merges = Merges::new((0..).zip(&pairs).map(merge).collect(), TOKENS as usize);
            for left in (0..=TOKENS).chain([NONE]) {
                for right in (0..=TOKENS).chain([NONE]) {
                    let first = (0..).zip(&pairs).find(|(_, pair)| (pair.0, pair.1) == (left, right));
                    let expected = first.map(|(rank, pair)| (rank, pair.2));
                    prop_assert_eq!(merges.join(left, right, b""), expected);
                }
            }
        }
    }
}
