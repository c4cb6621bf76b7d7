//! The scales and minima of a tile, sixteen for each group of `k`.
//!
//! They are kept as f16, or bf16, where every one of a matrix is one anyway, as in most files:
//! widening is exact, and a decode step is as fast as its bytes are few.

use std::ops::Range;

use crate::convert::{BF16, F16, Narrow};
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};

/// What scales and minima are kept as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// f32.
    F32,
    /// f16.
    F16,
    /// bf16.
    BF16,
}

impl Scales {
    /// All of them.
    pub const ALL: [Scales; 3] = [Scales::F32, Scales::F16, Scales::BF16];

    /// Bytes of one.
    pub(super) fn bytes(self) -> usize {
        match self {
            Scales::F32 => 4,
            Scales::F16 | Scales::BF16 => 2,
        }
    }
}

/// Scales, and minima or none, `[groups]` each.
#[derive(Clone, Copy)]
pub(crate) enum Groups<'a> {
    F32(Of<'a, f32>),
    F16(Of<'a, F16>),
    BF16(Of<'a, BF16>),
}

/// The same of one type.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a, E> {
    pub(crate) scales: &'a [[E; LANES]],
    pub(crate) mins: &'a [[E; LANES]],
}

/// What scales may be.
pub(crate) trait Scale: Narrow {
    /// Scales and minima, if they are this.
    fn of<'a>(groups: &Groups<'a>) -> Option<Of<'a, Self>>;
}

impl Scale for f32 {
    fn of<'a>(groups: &Groups<'a>) -> Option<Of<'a, f32>> {
        if let Groups::F32(of) = groups { Some(*of) } else { None }
    }
}

impl Scale for F16 {
    fn of<'a>(groups: &Groups<'a>) -> Option<Of<'a, F16>> {
        if let Groups::F16(of) = groups { Some(*of) } else { None }
    }
}

impl Scale for BF16 {
    fn of<'a>(groups: &Groups<'a>) -> Option<Of<'a, BF16>> {
        if let Groups::BF16(of) = groups { Some(*of) } else { None }
    }
}

impl<'a> Groups<'a> {
    /// Whether there are minima.
    pub(crate) fn has_mins(&self) -> bool {
        match self {
            Groups::F32(of) => !of.mins.is_empty(),
            Groups::F16(of) => !of.mins.is_empty(),
            Groups::BF16(of) => !of.mins.is_empty(),
        }
    }

    /// Whether others are of the same type, and have minima where these have.
    pub(crate) fn are_like(&self, other: &Groups<'_>) -> bool {
        use Groups::{BF16, F16, F32};
        let of_one_type =
            matches!((self, other), (F32(_), F32(_)) | (F16(_), F16(_)) | (BF16(_), BF16(_)));
        of_one_type && self.has_mins() == other.has_mins()
    }

    /// How many there are.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Groups::F32(of) => of.scales.len(),
            Groups::F16(of) => of.scales.len(),
            Groups::BF16(of) => of.scales.len(),
        }
    }

    /// Some of them.
    pub(crate) fn part(&self, range: Range<usize>) -> Groups<'a> {
        match self {
            Groups::F32(of) => Groups::F32(of.part(range)),
            Groups::F16(of) => Groups::F16(of.part(range)),
            Groups::BF16(of) => Groups::BF16(of.part(range)),
        }
    }

    /// The scales of a group.
    #[inline(always)]
    pub(crate) fn scales(&self, isa: Isa, group: usize) -> Lanes {
        match self {
            Groups::F32(of) => of.scales[group],
            Groups::F16(of) => F16::widen(isa, &of.scales[group]),
            Groups::BF16(of) => BF16::widen(isa, &of.scales[group]),
        }
    }

    /// The minima of a group, where there are any.
    #[inline(always)]
    pub(crate) fn mins(&self, isa: Isa, group: usize) -> Option<Lanes> {
        match self {
            Groups::F32(of) => of.mins.get(group).copied(),
            Groups::F16(of) => of.mins.get(group).map(|mins| F16::widen(isa, mins)),
            Groups::BF16(of) => of.mins.get(group).map(|mins| BF16::widen(isa, mins)),
        }
    }
}

impl<'a, E> Of<'a, E> {
    fn part(&self, range: Range<usize>) -> Of<'a, E> {
        let mins = self.mins.get(range.clone()).unwrap_or(&[]);
        Of { scales: &self.scales[range], mins }
    }
}
