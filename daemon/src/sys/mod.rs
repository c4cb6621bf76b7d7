//! The operating system, behind one function per need.
//!
//! The only place in this crate with `unsafe` code and with a `cfg` on the operating system.
#![expect(unsafe_code, reason = "system calls and mapped memory live here, each with its note")]

pub mod directory;
pub mod file;
pub mod heap;
pub mod huge;
pub mod lock;
pub mod memory;
pub mod mmap;
pub mod processors;
pub mod socket;
/// Whoever started this process, if anybody: sockets it opened for us, and word of how we are.
#[cfg_attr(target_os = "linux", path = "systemd.rs")]
#[cfg_attr(target_os = "macos", path = "launchd.rs")]
pub mod supervisor;
