//! What the behaviour tests, the demo and the benchmark share.

pub mod adapters;
pub mod client;
pub mod directory;
pub mod process;
pub mod prompts;
pub mod seeded;
pub mod soak;
