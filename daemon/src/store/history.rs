//! What the store remembers of chains, there or gone, to give misses their reasons.
//!
//! A chain leaves marks: the digest of its first tokens and the digest of its text, both the same
//! under every family. When a prompt misses, families of the same identity that carry one of its
//! marks are its relatives, and what differs between their fields and the asker's is the reason.
//! The memory is bounded and lasts as long as the process.

use std::num::NonZeroUsize;

use lru::LruCache;

use super::{Lookalike, Relative};
use crate::kv::key::{Digest, Field, Fields, ShortKey};

const MARKS: NonZeroUsize = NonZeroUsize::new(1 << 17).expect("not zero");
/// Families remembered per mark; the oldest sighting makes room.
const SIGHTINGS: usize = 16;

/// Which identities saw which marks under which families.
#[derive(Debug)]
pub(super) struct History(LruCache<(Digest, Digest), Vec<Sighting>>);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Sighting {
    family: ShortKey,
    evicted: bool,
}

impl Default for History {
    fn default() -> Self {
        Self(LruCache::new(MARKS))
    }
}

impl History {
    /// A chain with `mark` exists under `family`.
    pub(super) fn seen(&mut self, identity: Digest, family: ShortKey, mark: Digest) {
        self.sight(identity, mark, Sighting { family, evicted: false });
    }

    /// The chain with `mark` under `family` went to make room.
    pub(super) fn evicted(&mut self, identity: Digest, family: ShortKey, mark: Digest) {
        self.sight(identity, mark, Sighting { family, evicted: true });
    }

    /// The chain with `mark` under `family` was removed on request: nothing may recall it.
    pub(super) fn removed(&mut self, identity: Digest, family: ShortKey, mark: Digest) {
        if let Some(sightings) = self.0.get_mut(&(identity, mark)) {
            sightings.retain(|sighting| sighting.family != family);
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The nearest relative: the one that differs in fewest fields, and of these the one that
    /// differs in the first. An evicted chain of the asker's own family is the nearest of all.
    pub(super) fn relative<'a>(
        &mut self,
        asked: &Lookalike,
        fields: impl Fn(ShortKey) -> Option<&'a Fields>,
    ) -> Option<Relative> {
        let own = asked.fields.fingerprint().short();
        let marks = [Some(asked.head), asked.text];
        let sightings: Vec<Sighting> = marks
            .into_iter()
            .flatten()
            .flat_map(|mark| {
                self.0.get(&(asked.fields.identity, mark)).cloned().unwrap_or_default()
            })
            .collect();
        if sightings.iter().any(|sighting| sighting.family == own && sighting.evicted) {
            return Some(Relative::Evicted);
        }
        let distance = |sighting: &Sighting| distance(&asked.fields, fields(sighting.family)?);
        let (_, _, field) =
            sightings.iter().filter_map(distance).min_by_key(|(n, i, _)| (*n, *i))?;
        Some(Relative::Differs(field))
    }

    fn sight(&mut self, identity: Digest, mark: Digest, sighting: Sighting) {
        let sightings = self.0.get_or_insert_mut((identity, mark), Vec::new);
        sightings.retain(|known| known.family != sighting.family);
        if sightings.len() == SIGHTINGS {
            sightings.remove(0);
        }
        sightings.push(sighting);
    }
}

/// In how many fields two families differ, and which is the first; `None` for the same family and
/// for families of different identities.
fn distance(ours: &Fields, theirs: &Fields) -> Option<(usize, usize, Field)> {
    let differs = |field: &&Field| ours.digest(**field) != theirs.digest(**field);
    let first = ours.first_difference(theirs).filter(|_| ours.identity == theirs.identity)?;
    let index = Fields::ALL.iter().position(|field| *field == first)?;
    Some((Fields::ALL.iter().filter(differs).count(), index, first))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn fields(changes: &[Field]) -> Fields {
        let mut fields = Fields::default();
        for field in changes {
            fields.set(*field, Digest::of("test", b"changed"));
        }
        fields
    }

    /// Marks `MARK` under families that differ from the plain one in these fields, then asks.
    fn ask(families: &[&[Field]], asked: &[Field]) -> Option<Relative> {
        let families: Vec<_> = families.iter().map(|changes| fields(changes)).collect();
        let mut history = History::default();
        for family in &families {
            history.seen(family.identity, family.fingerprint().short(), MARK);
        }
        let asked = Lookalike { fields: fields(asked), head: MARK, text: None };
        history.relative(&asked, |short| {
            families.iter().find(|family| family.fingerprint().short() == short)
        })
    }

    const MARK: Digest = Digest([1; 32]);

    #[test]
    fn every_field_but_the_identity_is_named_when_it_alone_differs() {
        for field in Fields::ALL {
            let expected = (*field != Field::identity).then_some(Relative::Differs(*field));
            assert_eq!(ask(&[&[]], &[*field]), expected, "{field:?}");
        }
    }

    #[test]
    fn the_nearest_relative_is_compared() {
        let far: &[Field] = &[Field::weights, Field::tokenizer];
        let near: &[Field] = &[Field::codec];
        assert_eq!(ask(&[far, near], &[]), Some(Relative::Differs(Field::codec)));
        assert_eq!(ask(&[near, far], &[]), Some(Relative::Differs(Field::codec)));
        let two = Field::window;
        assert_eq!(ask(&[&[two], near], &[]), Some(Relative::Differs(Field::codec)));
    }

    #[test]
    fn an_unknown_mark_and_the_own_family_have_no_relative() {
        assert_eq!(ask(&[], &[]), None);
        assert_eq!(ask(&[&[]], &[]), None);
    }

    #[test]
    fn a_text_finds_the_family_whose_tokens_are_others() {
        let family = fields(&[Field::tokenizer]);
        let mut history = History::default();
        history.seen(family.identity, family.fingerprint().short(), MARK);
        let asked = Lookalike { fields: fields(&[]), head: Digest([2; 32]), text: Some(MARK) };
        let relative = history.relative(&asked, |_| Some(&family));
        assert_eq!(relative, Some(Relative::Differs(Field::tokenizer)));
    }

    #[test]
    fn eviction_is_remembered_and_removal_is_not() {
        let family = fields(&[]);
        let (short, identity) = (family.fingerprint().short(), family.identity);
        let asked = Lookalike { fields: family, head: MARK, text: None };
        let mut history = History::default();
        history.evicted(identity, short, MARK);
        assert_eq!(history.relative(&asked, |_| Some(&family)), Some(Relative::Evicted));
        history.removed(identity, short, MARK);
        assert_eq!(history.relative(&asked, |_| Some(&family)), None);
        history.evicted(identity, short, MARK);
        history.seen(identity, short, MARK);
        assert_eq!(history.relative(&asked, |_| Some(&family)), None);
    }

    #[test]
    fn one_mark_remembers_a_bounded_number_of_families() {
        let mut history = History::default();
        for family in 0..100 {
            history.seen(Digest::default(), ShortKey(family), MARK);
        }
        assert_eq!(history.0.get(&(Digest::default(), MARK)).unwrap().len(), SIGHTINGS);
    }
}
