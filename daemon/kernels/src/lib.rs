//! The CPU arithmetic of tinygptd: one reference arithmetic, and the pool of threads that runs it.
//!
//! # One arithmetic, many instantiations
//!
//! The `exact` numerics of the daemon are defined here, once, in plain Rust:
//!
//! * f32 activations; a product is a chain of fused multiply-adds over ascending `k`, started at 0,
//!   one chain per output;
//! * a sum or a dot product along a row runs in 16 interleaved lanes, folded by a fixed tree
//!   ([`lanes`]);
//! * `exp`, `ln`, `sin`, `cos` and the normal distribution are our own ([`elementary`]), because
//!   the system's differ from machine to machine;
//! * everything else is one correctly rounded IEEE operation at a time.
//!
//! Kernels are vectorised *across* outputs and never along `k`, so the compiler may turn sixteen
//! chains into vector instructions without changing a bit. The same source is instantiated for
//! the target's baseline and with the instruction sets that [`Isa`] finds at run time; the integer
//! products of `fast` have strips written by hand for each. Without
//! fused multiply-add hardware `mul_add` calls a library routine: slow, same bits.
//!
//! # What no result depends on
//!
//! Every output has one owner and one order of summation whatever the number of rows that travel
//! together, the way they are cut into slices, the number of threads, or which thread runs what.
//! That is what lets the daemon promise bit-identical logits for cold, warm, joined, restored and
//! batched runs.
//!
//! # Shapes
//!
//! One alphabet everywhere: `T` rows (tokens), `N` outputs, `K` inputs, `H` heads, `G` kv heads,
//! `D` head dim, `V` vocabulary, `C` channels of a row. Buffers are row-major, last axis fastest.
//! A buffer whose length does not fit its shape is a bug of the caller and panics.
//!
//! What this crate does not do: policy, allocation strategy, files.

#![expect(
    clippy::needless_range_loop,
    reason = "one index over several arrays of lanes is the plainest way to say it"
)]

#[cfg(target_endian = "big")]
compile_error!("cached keys and values are little-endian bytes and are computed on in place");

pub mod act;
pub mod attend;
mod code;
pub mod convert;
mod disjoint;
pub mod elementary;
pub mod experts;
mod fast;
pub mod isa;
pub mod lanes;
pub mod linear;
pub mod matrix;
#[cfg(test)]
mod noise;
pub mod norm;
mod panel;
pub mod pool;
mod quantized;
pub mod reference;
pub mod rope;
pub mod sample;
mod table;

pub use act::{Gate, Gelu};
pub use attend::{Block, Element, Sequence, Shape, attend};
pub use code::Code;
pub use fast::{Output, gated_fast, linear_fast};
pub use isa::Isa;
pub use linear::linear;
pub use matrix::{Format, Matrix, Memory, PACKING, Piece, Scales, Tile, heap};
pub use pool::Pool;
pub use quantized::Quantized;
pub use rope::{Convention, Rope};
pub use table::Table;
