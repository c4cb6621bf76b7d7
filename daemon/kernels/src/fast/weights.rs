//! A tile of weights on its way into integer products.

#[cfg(target_arch = "x86_64")]
use super::avx2;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::plain;
#[cfg(target_arch = "x86_64")]
use super::vnni;
use crate::code::{BLOCK, STEPS, Step};
use crate::isa::{Isa, Kind};
use crate::lanes::Lanes;
use crate::matrix::{Coded, Groups, Matrix, Values};
use crate::quantized::Row;
use crate::table::Table;

/// A tile.
pub(super) struct Weights<'a> {
    pub(super) bits: u8,
    pub(super) zero: i32,
    /// Pieces of a block that have scales of their own: 1 or 2.
    pub(super) pieces: usize,
    /// `piece >> group_shift` is the group of a piece.
    pub(super) group_shift: u32,
    pub(super) steps: &'a [Step],
    /// Whether the codes lie two in a byte, as they are kept, and not one.
    pub(super) packed: bool,
    /// What codes of a table are once they are looked up, which those that lie two in a byte are not.
    #[cfg(target_arch = "x86_64")]
    pub(super) entries: [u8; 16],
    pub(super) groups: Groups<'a>,
}

impl<'a> Weights<'a> {
    /// The tile for a product of so many rows: codes are taken apart into the scratch where they
    /// must be, or where that pays.
    pub(super) fn of(
        isa: Isa,
        matrix: &'a Matrix,
        tile: usize,
        rows: usize,
        scratch: &'a mut Vec<Step>,
    ) -> Weights<'a> {
        assert!(matrix.is_quantised(), "the integer product of {matrix:?}");
        let Coded { code, values, group } = matrix.coded();
        let (groups, codes) = (matrix.tile_groups(tile), matrix.tile_codes(tile));
        let table = if let Values::Entries(table) = values { Some(table) } else { None };
        let room = table.is_none_or(|table| table.code().bits < 8);
        let packed = code.is_nibbles() && room && group >= BLOCK && rows <= isa.nibble_rows();
        let steps = if code.per_byte() > 1 && !packed {
            scratch.resize(matrix.k() / BLOCK * STEPS, [0; 64]);
            code.unpack(isa, table, codes, scratch);
            scratch
        } else {
            codes.as_chunks().0
        };
        let code = table.map_or(code, Table::code);
        let pieces = BLOCK / group.min(BLOCK);
        let group_shift = (group / BLOCK).max(1).trailing_zeros();
        let (bits, zero) = (code.bits, i32::from(code.zero));
        Weights {
            bits,
            zero,
            pieces,
            group_shift,
            steps,
            packed,
            #[cfg(target_arch = "x86_64")]
            entries: table.map_or([0; 16], Table::entries),
            groups,
        }
    }

    /// Whether the tiles are of one format.
    #[cfg(target_arch = "x86_64")]
    fn passes_with(&self, other: &Weights<'_>) -> bool {
        let codes = |w: &Weights<'_>| (w.zero, w.packed, w.entries, w.pieces, w.group_shift);
        codes(self) == codes(other) && self.groups.are_like(&other.groups)
    }

    /// Steps of a piece.
    #[inline(always)]
    pub(super) fn piece_len(&self) -> usize {
        if self.packed { STEPS / 2 } else { STEPS / self.pieces }
    }

    /// Adds the products of `R` rows to their sums.
    fn multiply<const R: usize>(&self, isa: Isa, sums: &mut [Lanes; R], x: &[Row<'_>; R]) {
        #[allow(unsafe_code, reason = "calls kernels for detected features")]
        match isa.0 {
            Kind::Plain => plain::strip(sums, self, x),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
            Kind::Avx2 => unsafe { avx2::strip(sums, self, x) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
            Kind::Vnni => unsafe { vnni::strip(std::array::from_mut(sums), &[self], x) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
            Kind::Dot => unsafe { neon::strip::<R, false>(sums, self, x) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
            Kind::I8mm => unsafe { neon::strip::<R, true>(sums, self, x) },
        }
    }
}

/// Adds the products of `R` rows with `T` tiles to their sums.
pub(super) fn multiply<const R: usize, const T: usize>(
    isa: Isa,
    sums: &mut [[Lanes; R]; T],
    tiles: &[&Weights<'_>; T],
    x: &[Row<'_>; R],
) {
    #[cfg(target_arch = "x86_64")]
    if isa.0 == Kind::Vnni && tiles.iter().all(|tile| tile.passes_with(tiles[0])) {
        // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
        #[expect(unsafe_code, reason = "calls a kernel for detected features")]
        return unsafe { vnni::strip(sums, tiles, x) };
    }
    for (tile, sums) in tiles.iter().zip(sums) {
        tile.multiply(isa, sums, x);
    }
}
