//! What the behaviour tests share.

pub mod process;
