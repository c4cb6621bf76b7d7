//! Prompts that begin alike: token ids at random, from the middle of the vocabulary, for the
//! special tokens lie at its ends.

use std::time::SystemTime;

/// Where the common beginning starts: it is the same in every run, so that a second one finds it.
const COMMON: u64 = 1;

/// The common beginning of prompts: `count` ids of a vocabulary of so many.
pub(super) fn common(count: u32, vocab: u32) -> Vec<u32> {
    ids(&mut Dice(COMMON), count, vocab)
}

/// Prompts, each with a tail of its own.
#[derive(Debug)]
pub(super) struct Prompts {
    prefix: Vec<u32>,
    unique: u32,
    vocab: u32,
    /// Names this run.
    run: u64,
    dice: Dice,
    /// How many there were.
    made: u64,
}

impl Prompts {
    pub(super) fn new(prefix: Vec<u32>, unique: u32, vocab: u32) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let run = now.as_micros() as u64 ^ u64::from(std::process::id()) << 44;
        Self { prefix, unique, vocab, run, dice: Dice(run), made: 0 }
    }

    /// The common beginning.
    pub(super) fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// The common beginning with a tail that no other prompt has: from its first id on, as long as
    /// the vocabulary has others.
    pub(super) fn next(&mut self) -> Vec<u32> {
        let mut tail = ids(&mut self.dice, self.unique, self.vocab);
        if let Some(first) = tail.first_mut() {
            *first = id((self.run >> 1).wrapping_add(self.made), self.vocab);
        }
        self.made += 1;
        [self.prefix.clone(), tail].concat()
    }

    /// A prompt that begins with something else.
    pub(super) fn unlike(&mut self, count: u32) -> Vec<u32> {
        ids(&mut self.dice, count, self.vocab)
    }

    /// A namespace that nobody has used.
    pub(super) fn namespace(&self, round: u16) -> String {
        format!("bench-{:x}-{round}", self.run)
    }
}

fn ids(dice: &mut Dice, count: u32, vocab: u32) -> Vec<u32> {
    (0..count).map(|_| id(dice.throw(), vocab)).collect()
}

/// Any number as an id.
fn id(number: u64, vocab: u32) -> u32 {
    let (first, width) = (vocab / 8, u64::from(vocab - vocab / 4).max(1));
    first + (number % width) as u32
}

/// SplitMix64: <https://prng.di.unimi.it/splitmix64.c>.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_begin_alike_in_every_run_and_end_differently() {
        let prompts = || Prompts::new(common(40, 256), 8, 256);
        let (mut one, mut other) = (prompts(), prompts());
        other.dice = Dice(7);
        let all = [one.next(), one.next(), other.next()];
        for prompt in &all {
            assert_eq!(prompt.len(), 48);
            assert_eq!(prompt[..40], all[0][..40]);
        }
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
        assert_ne!(one.unlike(48)[..40], all[0][..40]);
    }

    #[test]
    fn tails_differ_from_their_first_id_on() {
        let mut prompts = Prompts::new(common(4, 256), 8, 256);
        let firsts: std::collections::HashSet<u32> = (0..192).map(|_| prompts.next()[4]).collect();
        assert_eq!(firsts.len(), 192);
        assert_eq!(Prompts::new(common(4, 256), 0, 256).next(), common(4, 256));
    }

    #[test]
    fn ids_are_of_the_vocabulary_and_none_at_its_ends() {
        for vocab in [1, 2, 256, 49_152] {
            let ids = common(2000, vocab);
            assert!(ids.iter().all(|id| *id < vocab), "{vocab}");
            assert!(vocab < 256 || ids.iter().all(|id| (vocab / 8..vocab / 8 * 7).contains(id)));
        }
    }
}
