//! The tensors of a quantised layer.

use std::borrow::Cow;
use std::ops::Range;

use tinygpt_kernels::Tile;

use crate::model::load::LoadError;
use crate::model::load::input::Input;
use crate::model::load::mlx::{Parts, ScaleType, Scheme};
use crate::model::load::safetensors::Dtype;

/// Codes, scales and, where the scheme has them, biases `[n, _]`.
#[derive(Debug)]
pub(super) struct Quantised<'a> {
    /// Of the tensor with the codes.
    pub(super) name: String,
    pub(super) scheme: Scheme,
    pub(super) scale_type: ScaleType,
    pub(super) codes: Rows<'a>,
    pub(super) scales: Rows<'a>,
    pub(super) biases: Option<Rows<'a>>,
}

/// Rows of bytes in a file.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    pub(super) input: Input<'a>,
    pub(super) range: Range<usize>,
    /// Bytes of each.
    pub(super) row: usize,
}

impl Quantised<'_> {
    /// Packs the rows that a tile wants.
    pub(super) fn fill(&self, rows: &Range<usize>, tile: &mut Tile<'_>) -> Result<(), LoadError> {
        let [weight, scales] = [self.codes.read(rows)?, self.scales.read(rows)?];
        let biases = self.biases.as_ref().map(|biases| biases.read(rows)).transpose()?;
        let biases = biases.unwrap_or_default();
        let parts = Parts { weight: &weight, scales: &scales, biases: &biases };
        self.scheme.fill(&self.name, parts, self.scale_type, tile)
    }
}

impl<'a> Rows<'a> {
    fn read(&self, rows: &Range<usize>) -> Result<Cow<'a, [u8]>, LoadError> {
        let at = |row| self.range.start + row * self.row;
        self.input.read(at(rows.start)..at(rows.end))
    }
}

/// What scales of this element type are; `None` for what none are.
pub(super) fn scale_type(dtype: Dtype) -> Option<ScaleType> {
    match dtype {
        Dtype::F32 => Some(ScaleType::F32),
        Dtype::F16 => Some(ScaleType::F16),
        Dtype::BF16 => Some(ScaleType::BF16),
        Dtype::U8 => Some(ScaleType::U8),
        Dtype::U32 | Dtype::Other(..) => None,
    }
}
