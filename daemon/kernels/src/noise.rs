//! Test data: numbers that look random and are the same in every run.

use std::num::NonZeroUsize;

use crate::isa::Isa;
use crate::pool::Pool;
use crate::sample::uniform;

/// `len` numbers in `-1..1`, others for each seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| 2.0 * uniform(seed, 0, i as u64) - 1.0).collect()
}

/// Every instantiation that this machine can run.
pub(crate) fn isas() -> Vec<Isa> {
    Isa::all()
}

/// A pool of so many threads.
pub(crate) fn pool(threads: usize) -> Pool {
    Pool::new(NonZeroUsize::new(threads).expect("at least one thread"))
}

/// The bits of a row, for comparisons that tell -0 from 0 and let NaN equal itself.
pub(crate) fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}
