//! A tile of weights on its way into integer products.

#[cfg(target_arch = "x86_64")]
use super::avx2;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::plain;
#[cfg(target_arch = "x86_64")]
use super::vnni;
use crate::code::{BLOCK, STEPS, Step, unpack_nibbles};
use crate::isa::{Isa, Kind, dispatched};
use crate::lanes::Lanes;
use crate::matrix::{Format, Groups, Matrix};
use crate::quantized::Row;

/// Rows for which taking codes of 4 bits apart costs more than it saves.
const FEW: usize = 8;

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
    pub(super) groups: Groups<'a>,
}

impl<'a> Weights<'a> {
    /// The tile for a product of so many rows: codes are taken apart into the
    /// scratch where that pays.
    pub(super) fn of(
        isa: Isa,
        matrix: &'a Matrix,
        tile: usize,
        rows: usize,
        scratch: &'a mut Vec<Step>,
    ) -> Weights<'a> {
        let Format::Affine { code, group, .. } = matrix.format() else {
            panic!("the integer product of {matrix:?}");
        };
        let groups = matrix.tile_groups(tile);
        let codes = matrix.tile_codes(tile, code);
        let packed = code.is_nibbles() && rows <= FEW && group >= BLOCK && isa.takes_nibbles();
        let steps = if code.is_nibbles() && !packed {
            scratch.resize(matrix.k() / BLOCK * STEPS, [0; 64]);
            unpack_on(isa, codes, scratch);
            scratch
        } else {
            codes.as_chunks().0
        };
        let pieces = BLOCK / group.min(BLOCK);
        let group_shift = (group / BLOCK).max(1).trailing_zeros();
        let (bits, zero) = (code.bits, i32::from(code.zero));
        Weights { bits, zero, pieces, group_shift, steps, packed, groups }
    }

    /// Steps of a piece.
    #[inline(always)]
    pub(super) fn piece_len(&self) -> usize {
        if self.packed { STEPS / 2 } else { STEPS / self.pieces }
    }

    /// Adds the products of `R` rows to their sums.
    pub(super) fn multiply<const R: usize>(
        &self,
        isa: Isa,
        sums: &mut [Lanes; R],
        x: &[Row<'_>; R],
    ) {
        #[allow(unsafe_code, reason = "calls kernels for detected features")]
        match isa.0 {
            Kind::Plain => plain::strip(sums, self, x),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
            Kind::Avx2 => unsafe { self.avx2(sums, x) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
            Kind::Vnni => unsafe { vnni::strip(sums, self, x) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
            Kind::Dot => unsafe { neon::strip::<R, false>(sums, self, x) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
            Kind::I8mm => unsafe { neon::strip::<R, true>(sums, self, x) },
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn avx2<const R: usize>(&self, sums: &mut [Lanes; R], x: &[Row<'_>; R]) {
        match (self.bits, self.groups.have_mins(), self.packed) {
            (4, true, true) => avx2::strip::<R, 4, true, true>(sums, self, x),
            (4, false, true) => avx2::strip::<R, 4, false, true>(sums, self, x),
            (4, true, _) => avx2::strip::<R, 4, true, false>(sums, self, x),
            (4, false, _) => avx2::strip::<R, 4, false, false>(sums, self, x),
            (5, true, _) => avx2::strip::<R, 5, true, false>(sums, self, x),
            (5, false, _) => avx2::strip::<R, 5, false, false>(sums, self, x),
            (6, true, _) => avx2::strip::<R, 6, true, false>(sums, self, x),
            (6, false, _) => avx2::strip::<R, 6, false, false>(sums, self, x),
            (_, true, _) => avx2::strip::<R, 8, true, false>(sums, self, x),
            (_, false, _) => avx2::strip::<R, 8, false, false>(sums, self, x),
        }
    }
}

dispatched! { fn unpack_on(codes: &[u8], to: &mut [Step]) = unpack; }

#[inline(always)]
fn unpack(_isa: Isa, codes: &[u8], to: &mut [Step]) {
    for (codes, to) in codes.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        unpack_nibbles(codes, to);
    }
}
