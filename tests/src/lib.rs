//! What the behaviour tests share.

pub mod client;
pub mod process;
pub mod prompts;
