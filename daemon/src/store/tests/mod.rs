//! The store as its users see it, over real files.

#![expect(clippy::unwrap_used, reason = "tests")]

mod kit;
mod roundtrip;
