//! Joining neighbours, the best first: what byte-pair encodings have in common.
//!
//! A heap keeps the neighbours that may be joined, so that the cost grows with the text by little
//! more than its length. A pair of which one has changed since is passed over when its turn comes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::error::TokenizerError;

/// Pairs that are looked at before anybody is asked whether the ids are still wanted.
const PATIENCE: usize = 4096;

/// No symbol, no token.
pub(super) const NONE: u32 = u32::MAX;

/// Which neighbours may be joined.
pub(super) trait Joins {
    /// The rank of two neighbours, the lowest being the best, and the token that they make, if they
    /// make one: by their own tokens or by the text of both.
    fn join(&self, left: u32, right: u32, text: &[u8]) -> Option<(u32, u32)>;
}

/// A run of the text that has been joined.
#[derive(Debug)]
pub(super) struct Symbol {
    pub(super) start: u32,
    /// In bytes; 0 once it is part of the one before it.
    pub(super) length: u32,
    before: u32,
    after: u32,
    /// The token that it is, or [`NONE`].
    pub(super) id: u32,
}

/// A symbol that has become part of another.
const VANISHED: Symbol = Symbol { start: 0, length: 0, before: NONE, after: NONE, id: NONE };

impl Symbol {
    /// Its part of the text.
    pub(super) fn text<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.start as usize..(self.start + self.length) as usize]
    }
}

/// Two neighbours that may be joined. The order is the order of joining.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// Of both, in bytes: another length means that one of them is no longer what it was.
    length: u32,
    id: u32,
}

/// A text whose neighbours are being joined.
struct Chain<'a, J> {
    joins: &'a J,
    text: &'a [u8],
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Reverse<Candidate>>,
}

/// What is left of a text's first symbols, each given by its length and its token, when no two
/// neighbours can be joined any more. Asks now and then whether anybody still wants to know.
pub(super) fn merge<J: Joins>(
    joins: &J,
    text: &[u8],
    first: impl Iterator<Item = (usize, u32)>,
    wanted: &dyn Fn() -> bool,
) -> Result<Vec<Symbol>, TokenizerError> {
    let mut chain = Chain { joins, text, symbols: symbols(first), candidates: BinaryHeap::new() };
    (1..chain.symbols.len() as u32).for_each(|right| chain.propose(right - 1, right));
    for count in 1.. {
        if count % PATIENCE == 0 && !wanted() {
            return Err(TokenizerError::Unwanted);
        }
        let Some(Reverse(candidate)) = chain.candidates.pop() else { break };
        chain.join(&candidate);
    }
    chain.symbols.retain(|symbol| symbol.length > 0);
    Ok(chain.symbols)
}

fn symbols(first: impl Iterator<Item = (usize, u32)>) -> Vec<Symbol> {
    let mut start = 0;
    let symbol = |(at, (length, id)): (usize, (usize, u32))| {
        let (at, length) = (at as u32, length as u32);
        let symbol = Symbol { start, length, before: at.wrapping_sub(1), after: at + 1, id };
        start += length;
        symbol
    };
    let mut symbols: Vec<Symbol> = first.enumerate().map(symbol).collect();
    if let Some(last) = symbols.last_mut() {
        last.after = NONE;
    }
    symbols
}

impl<J: Joins> Chain<'_, J> {
    /// Joins two symbols, unless one of them has changed since they were proposed.
    fn join(&mut self, &Candidate { left, right, length, id, .. }: &Candidate) {
        let [first, second] = [left, right].map(|at| self.symbols[at as usize].length);
        if first == 0 || second == 0 || first + second != length {
            return;
        }
        let Symbol { after, .. } = std::mem::replace(&mut self.symbols[right as usize], VANISHED);
        let symbol = &mut self.symbols[left as usize];
        (symbol.length, symbol.after, symbol.id) = (length, after, id);
        let before = symbol.before;
        if after != NONE {
            self.symbols[after as usize].before = left;
            self.propose(left, after);
        }
        if before != NONE {
            self.propose(before, left);
        }
    }

    /// Makes a candidate of two neighbours if they may be joined.
    fn propose(&mut self, left: u32, right: u32) {
        let [first, second] = [left, right].map(|at| &self.symbols[at as usize]);
        let length = first.length + second.length;
        let text = &self.text[first.start as usize..(first.start + length) as usize];
        if let Some((rank, id)) = self.joins.join(first.id, second.id, text) {
            self.candidates.push(Reverse(Candidate { rank, left, right, length, id }));
        }
    }
}
