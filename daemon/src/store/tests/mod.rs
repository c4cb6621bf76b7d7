//! The store as its users see it, over real files.

#![expect(clippy::unwrap_used, reason = "tests")]

mod kit;

mod branches;
mod budget;
mod crash;
mod damage;
mod full;
mod moved;
mod pins;
mod relative;
mod remove;
mod rewrite;
mod roundtrip;
mod seeds;
mod side;
mod start;
mod stress;
