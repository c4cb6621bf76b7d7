//! The scales and minima of a tile, sixteen for each group of `k`.
//!
//! They are kept as f16 where every one of a matrix is an f16 anyway, as in most files: widening is
//! exact, and a decode step is as fast as its bytes are few.

use std::ops::Range;

use crate::convert::{F16, Narrow};
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};

/// Sixteen f16.
pub(crate) type Halves = [F16; LANES];

/// Scales, and minima or none, `[groups]` each.
#[derive(Clone, Copy)]
pub(crate) enum Groups<'a> {
    Wide { scales: &'a [Lanes], mins: &'a [Lanes] },
    Half { scales: &'a [Halves], mins: &'a [Halves] },
}

impl<'a> Groups<'a> {
    /// How many there are.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Groups::Wide { scales, .. } => scales.len(),
            Groups::Half { scales, .. } => scales.len(),
        }
    }

    /// Whether there are minima; instantiations for AVX2 differ in that.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn have_mins(&self) -> bool {
        match self {
            Groups::Wide { mins, .. } => !mins.is_empty(),
            Groups::Half { mins, .. } => !mins.is_empty(),
        }
    }

    /// Some of them.
    pub(crate) fn part(&self, range: Range<usize>) -> Groups<'a> {
        match *self {
            Groups::Wide { scales, mins } => {
                let mins = mins.get(range.clone()).unwrap_or(&[]);
                Groups::Wide { scales: &scales[range], mins }
            }
            Groups::Half { scales, mins } => {
                let mins = mins.get(range.clone()).unwrap_or(&[]);
                Groups::Half { scales: &scales[range], mins }
            }
        }
    }

    /// The scales of a group.
    #[inline(always)]
    pub(crate) fn scales(&self, isa: Isa, group: usize) -> Lanes {
        match self {
            Groups::Wide { scales, .. } => scales[group],
            Groups::Half { scales, .. } => F16::widen(isa, &scales[group]),
        }
    }

    /// The minima of a group, where there are any.
    #[inline(always)]
    pub(crate) fn mins(&self, isa: Isa, group: usize) -> Option<Lanes> {
        match self {
            Groups::Wide { mins, .. } => mins.get(group).copied(),
            Groups::Half { mins, .. } => mins.get(group).map(|mins| F16::widen(isa, mins)),
        }
    }
}
