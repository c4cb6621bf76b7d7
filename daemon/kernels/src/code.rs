//! Integer codes of quantised weights, and how a tile keeps them.
//!
//! A quantised weight is `q * scale (+ min)` with an integer `q = u - zero`; the code `u` is
//! unsigned. Four consecutive `k` of one output row lie together, sixteen rows make a [`Step`] of
//! 64 bytes and eight steps a block of 32 `k`: what the dot-product instructions of every
//! processor want, four products into one sum for each of sixteen outputs at once.
//!
//! ```text
//! 8 bits a code   [k 0..4: row 0 | row 1 | .. | row 15] [k 4..8: ..] .. [k 28..32: ..]
//! 4 bits a code   the first four of these steps in the low nibbles, the last four in the high
//! 2 bits a code   the first two in the lowest bits, and so on
//! ```
//!
//! Codes that do not stand for integers in order, those of a [`Table`], are kept as codes of 4 bits
//! and looked up where they are taken apart: from there on they are codes of a byte like others.
//! 8-bit floats lie as codes of 8 bits do.

use crate::isa::{Isa, dispatched};
use crate::lanes::LANES;
use crate::table::Table;

/// Consecutive `k` of a block: a row of activations has one scale for each.
pub(crate) const BLOCK: usize = 32;
/// Steps of a block.
pub(crate) const STEPS: usize = 8;

/// Sixteen rows of codes for four consecutive `k`: `[row][k]`.
pub(crate) type Step = [u8; 64];
/// The codes of a tile for 32 consecutive `k`.
pub(crate) type Unpacked = [Step; STEPS];

/// What the codes of a matrix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Code {
    /// A code is below `2^bits`: 2, 3, 4, 5, 6 or 8. Codes of 2 bits are kept in 2, those of 3 and 4
    /// in 4, all others in 8.
    pub bits: u8,
    /// The code of 0.
    pub zero: u8,
}

impl Code {
    /// Bytes that a tile keeps for each block.
    pub(crate) fn block_bytes(self) -> usize {
        size_of::<Unpacked>() / self.per_byte()
    }

    /// Codes in a byte.
    #[inline(always)]
    pub(crate) fn per_byte(self) -> usize {
        match self.bits {
            ..=2 => 4,
            3 | 4 => 2,
            _ => 1,
        }
    }

    /// Bits that a code is kept in.
    #[inline(always)]
    fn width(self) -> u32 {
        8 / self.per_byte() as u32
    }

    #[inline(always)]
    fn mask(self) -> u8 {
        u8::MAX >> (8 - self.width())
    }

    pub(crate) fn is_nibbles(self) -> bool {
        self.per_byte() == 2
    }

    pub(crate) fn check(self) {
        let known = matches!(self.bits, 2 | 3 | 4 | 5 | 6 | 8);
        assert!(known, "codes of 2, 3, 4, 5, 6 or 8 bits, not {self:?}");
    }

    /// The code of an integer weight.
    pub(crate) fn of(self, q: i8) -> u8 {
        (i16::from(q) + i16::from(self.zero)) as u8
    }

    /// Puts the code of row `lane` and `k` into the block, whose bytes were zeroed.
    pub(crate) fn put(self, block: &mut [u8], lane: usize, k: usize, code: u8) {
        debug_assert!(u16::from(code) < 1 << self.bits, "{code} as {self:?}");
        let (at, shift) = self.place(lane, k);
        block[at] |= code << shift;
    }

    /// The code of row `lane` and `k`.
    #[inline(always)]
    pub(crate) fn get(self, block: &[u8], lane: usize, k: usize) -> u8 {
        let (at, shift) = self.place(lane, k);
        block[at] >> shift & self.mask()
    }

    #[inline(always)]
    fn place(self, lane: usize, k: usize) -> (usize, u32) {
        let step = k / 4;
        let (step, shift) = match self.per_byte() {
            4 => (step % (STEPS / 4), 2 * (step / (STEPS / 4)) as u32),
            2 => (step % (STEPS / 2), if k < BLOCK / 2 { 0 } else { 4 }),
            _ => (step, 0),
        };
        (step * size_of::<Step>() + lane * 4 + k % 4, shift)
    }

    /// The integer weights of all rows for one `k` of a block.
    #[inline(always)]
    pub(crate) fn column(self, block: &[u8], k: usize) -> [f32; LANES] {
        let zero = i32::from(self.zero);
        self.codes(block, k).map(|code| (code as i32 - zero) as f32)
    }

    /// The codes of all rows for one `k` of a block.
    #[inline(always)]
    pub(crate) fn codes(self, block: &[u8], k: usize) -> [u32; LANES] {
        let (at, shift) = self.place(0, k);
        let step = at / size_of::<Step>();
        let bytes = &block[step * size_of::<Step>()..][..size_of::<Step>()];
        let words = bytes.as_chunks::<4>().0;
        let (shift, mask) = (shift + 8 * (k % 4) as u32, u32::from(self.mask()));
        std::array::from_fn(|lane| u32::from_le_bytes(words[lane]) >> shift & mask)
    }

    /// Takes the codes of whole blocks, of less than 8 bits each, apart into a byte each; those of
    /// a table become codes of [`Table::code`].
    pub(crate) fn unpack(self, isa: Isa, table: Option<Table>, packed: &[u8], to: &mut [Step]) {
        match self.per_byte() {
            4 => apart_on::<4>(isa, packed, to),
            _ => apart_on::<2>(isa, packed, to),
        }
        if let Some(table) = table {
            table.look_up(isa, to);
        }
    }
}

dispatched! { fn apart_on[const P: usize][P](packed: &[u8], to: &mut [Step]) = apart; }

/// Takes blocks apart that have `P` codes in a byte.
#[inline(always)]
fn apart<const P: usize>(_isa: Isa, packed: &[u8], to: &mut [Step]) {
    let (packed, _) = packed.as_chunks::<{ size_of::<Step>() }>();
    let (width, mask) = (8 / P, u8::MAX >> (8 - 8 / P));
    for (packed, to) in packed.chunks_exact(STEPS / P).zip(to.as_chunks_mut::<STEPS>().0) {
        for s in 0..STEPS / P {
            for p in 0..P {
                for i in 0..size_of::<Step>() {
                    to[p * (STEPS / P) + s][i] = packed[s][i] >> (p * width) & mask;
                }
            }
        }
    }
}
