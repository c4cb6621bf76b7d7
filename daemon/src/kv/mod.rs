//! The KV cache: blocks, their bytes, and the chains that they form.
//!
//! A KV cache is a chain of immutable blocks, and a block has the same bytes wherever it lives:
//! in a slab on the heap, in a mapped segment, on a disk.
//! Restoring is mapping, sharing is `Arc::clone`, evicting is dropping, persisting is writing
//! bytes that already exist.
//!
//! Reading order: [`key`] names blocks, [`codec`] and [`layout`] give them bytes, [`block`] holds
//! them, [`seq`] grows a chain of them, [`device`] has its rows elsewhere, too, [`record`] keeps the rest of a prompt that fills no block,
//! [`index`] finds the longest chain that is already there, and [`remove`] says what goes with one
//! that is to be forgotten.

pub mod block;
pub mod codec;
pub mod device;
pub mod index;
pub mod key;
pub mod layout;
pub mod pin;
pub mod record;
pub mod remove;
pub mod seq;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
pub(crate) mod samples;
