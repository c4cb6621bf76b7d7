//! Rows on a device, or why there are none.

use candle_core::{Result, Tensor};

use crate::kv::device::DeviceError;

/// A tensor `[T][N]`, or the first error on the way to it, which everything made of it carries on
/// to whoever downloads: architectures need not ask after each operation.
#[derive(Clone, Debug)]
pub struct Rows(pub(super) std::result::Result<Tensor, DeviceError>);

impl Rows {
    /// What `operation` makes of these rows.
    pub(super) fn map(&self, operation: impl FnOnce(&Tensor) -> Result<Tensor>) -> Self {
        Self(self.0.as_ref().map_err(Clone::clone).and_then(|x| Ok(operation(x)?)))
    }

    /// What `operation` makes of these and other rows.
    pub(super) fn with(
        &self,
        other: &Self,
        operation: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Self {
        match &other.0 {
            Ok(y) => self.map(|x| operation(x, y)),
            Err(error) => Self(self.0.clone().and(Err(error.clone()))),
        }
    }
}

impl From<Result<Tensor>> for Rows {
    fn from(made: Result<Tensor>) -> Self {
        Self(made.map_err(DeviceError::from))
    }
}
