//! Rows that live on a device.
//!
//! A sequence that runs on a device has its rows there, as a list of pieces:
//!
//! ```text
//! positions   0        64            160       len
//!             | piece  | piece       | piece ..   room |
//!               a run that others      a run of its own,
//!               read, too              written in place
//! ```
//!
//! A [`Run`] is room for some hundred rows of a chain in all layers, with one address for all its
//! life: rows are written behind each other and never copied, moved or joined.
//! Sealed blocks are found by their keys in the [`Tier`], so a prompt that begins like another is
//! read where the other one computed it; what the tier does not have is uploaded, once.
//! The heap, the disk and everyone's index see the device only through the rows that a step
//! downloads into open blocks: to them a sequence on a device is a sequence.
//!
//! Reading order: [`run`] is memory, [`tier`] finds and bounds it, [`resident`] is one sequence,
//! `attend` reads it.
//!
//! Invariant: every row that counts (`KvSeq::len`) is on the host, too; so whatever is lost on the
//! device is uploaded again.

pub mod resident;
pub mod run;
pub mod tier;

mod attend;

use candle_core::DType;

pub use self::resident::Resident;
pub use self::run::Run;
pub use self::tier::{Tier, Usage};

use super::codec::Codec;

/// Why a device did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The rows of running sequences fill the budget.
    #[error(
        "{needed} bytes of KV cache do not fit on the device: running requests use {used} of {budget} (--device-memory)"
    )]
    Full {
        /// Bytes asked for.
        needed: usize,
        /// Bytes that running sequences read.
        used: usize,
        /// Bytes there may be.
        budget: usize,
    },
    /// The device, or its driver.
    #[error("the device failed: {0}")]
    Failed(String),
}

impl From<candle_core::Error> for DeviceError {
    fn from(error: candle_core::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Codec {
    /// The element type of rows on a device.
    fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
        }
    }
}

#[cfg(test)]
mod tests;
