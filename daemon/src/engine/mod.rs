//! The engine: one thread that owns a model and all its sequences.
//!
//! Under construction.

pub mod constraint;
pub mod handle;
pub mod job;
