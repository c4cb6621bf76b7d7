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
//! ```

use crate::lanes::LANES;

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
    /// A code is below `2^bits`: 4, 5, 6 or 8. Codes of 4 bits are kept in 4, all others in 8.
    pub bits: u8,
    /// The code of 0.
    pub zero: u8,
}

impl Code {
    /// Bytes that a tile keeps for each block.
    pub(crate) fn block_bytes(self) -> usize {
        size_of::<Unpacked>() / if self.is_nibbles() { 2 } else { 1 }
    }

    pub(crate) fn is_nibbles(self) -> bool {
        self.bits == 4
    }

    pub(crate) fn check(self) {
        assert!(matches!(self.bits, 4 | 5 | 6 | 8), "codes of 4, 5, 6 or 8 bits, not {self:?}");
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

    /// The integer weight of row `lane` and `k`.
    #[inline(always)]
    pub(crate) fn get(self, block: &[u8], lane: usize, k: usize) -> i32 {
        let (at, shift) = self.place(lane, k);
        let mask = if self.is_nibbles() { 15 } else { 255 };
        i32::from(block[at] >> shift & mask) - i32::from(self.zero)
    }

    #[inline(always)]
    fn place(self, lane: usize, k: usize) -> (usize, u32) {
        let (step, shift) = match self.is_nibbles() {
            true => (k / 4 % (STEPS / 2), if k < BLOCK / 2 { 0 } else { 4 }),
            false => (k / 4, 0),
        };
        (step * size_of::<Step>() + lane * 4 + k % 4, shift)
    }

    /// The integer weights of all rows for one `k` of a block.
    #[inline(always)]
    pub(crate) fn column(self, block: &[u8], k: usize) -> [f32; LANES] {
        let (at, shift) = self.place(0, k);
        let step = at / size_of::<Step>();
        let (bytes, mask) = (
            &block[step * size_of::<Step>()..][..size_of::<Step>()],
            if self.is_nibbles() { 15 } else { 255 },
        );
        let words = bytes.as_chunks::<4>().0;
        let shift = shift + 8 * (k % 4) as u32;
        std::array::from_fn(|lane| {
            let code = u32::from_le_bytes(words[lane]) >> shift & mask;
            (code as i32 - i32::from(self.zero)) as f32
        })
    }
}

/// Takes nibbles apart.
#[inline(always)]
pub(crate) fn unpack_nibbles(packed: &[u8; 256], to: &mut Unpacked) {
    let (steps, _) = packed.as_chunks::<64>();
    for s in 0..STEPS / 2 {
        for i in 0..size_of::<Step>() {
            to[s][i] = steps[s][i] & 15;
            to[s + STEPS / 2][i] = steps[s][i] >> 4;
        }
    }
}
