//! Which pairs of tokens are joined, which of them first, and what they make.
//!
//! Vocabularies have half a million pairs. Each takes three words, beside the others with the same
//! token on its left, in the order of the right ones: it is found without a hash, which somebody
//! could make a file for.

use super::merge::Joins;
use super::pieces::Pieces;

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

/// More merges than there are ways to cut the tokens in two, so that most of them say what others
/// have said.
#[derive(Debug, thiserror::Error)]
#[error("there are more than {most} merges: no more pairs make the {tokens} tokens")]
pub struct Repeated {
    most: usize,
    tokens: usize,
}

impl Merges {
    /// Checks how many merges there are of the tokens `pieces`, before anything is done for each.
    pub(super) fn check(count: usize, pieces: &Pieces) -> Result<(), Repeated> {
        // A token of n bytes is cut in fewer than n ways, and a file may say some of them twice.
        let most = 2 * pieces.total();
        match count <= most {
            true => Ok(()),
            false => Err(Repeated { most, tokens: pieces.len() }),
        }
    }

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
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::super::merge::NONE;
    use super::*;

    const TOKENS: u32 = 9;

    #[test]
    fn a_file_may_repeat_itself_a_little_and_no_more() {
        let pieces = Pieces::new(["a", "b", "ab"].map(|text| (text.into(), true)).into_iter());
        assert!(Merges::check(8, &pieces).is_ok());
        let refused = Merges::check(9, &pieces).unwrap_err().to_string();
        assert_eq!(refused, "there are more than 8 merges: no more pairs make the 3 tokens");
    }

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
