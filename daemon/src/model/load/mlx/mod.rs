//! MLX's quantised weights: what `config.json` says of them, and how their bytes become tiles.
//!
//! A quantised module has three tensors, or two: `weight`, codes in whole 32-bit words, `scales`,
//! and for the affine mode `biases`. Its rows are little-endian streams of bits, so codes of 3, 5
//! and 6 bits may straddle words. Everything is taken over exactly:
//!
//! ```text
//! mode    bits             group         value               scales      kept
//! affine  2 3 4 5 6 8      32 64 128     q scale + bias      as stored   2 4 4 8 8 8 bits a code
//! mxfp4   4                32            e2m1 scale          e8m0        4, e2m1 doubled
//! nvfp4   4                16            e2m1 scale          e4m3        4, e2m1 doubled
//! mxfp8   8                32            e4m3 scale          e8m0        8
//! ```

mod config;
mod scheme;
#[cfg(test)]
mod tests;

pub(super) use self::config::{Choice, Quantization};
pub(super) use self::scheme::{Parts, ScaleType, Scheme};
