//! The operating system, behind one function per need.
//!
//! The only place in this crate with `unsafe` code and with a `cfg` on the operating system.
#![expect(unsafe_code, reason = "system calls and mapped memory live here, each with its note")]

pub mod memory;
pub mod mmap;
