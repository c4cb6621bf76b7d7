//! The bytes of a `.tinygpt` body, in its three layouts, as elements of named tensors.

use half::f16;

use super::header::{Entry, Layout};
use crate::model::load::LoadError;

/// Elements of one int4 block, which share a scale.
pub(super) const BLOCK: usize = 64;

/// A body whose size has been checked against the manifest.
#[derive(Debug)]
pub(super) struct Body<'a> {
    bytes: &'a [u8],
    layout: Layout,
    /// All int4 blocks of the file; the packed values follow their scales.
    blocks: usize,
}

/// Where one tensor begins: in elements for the float layouts, in blocks for int4.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) start: usize,
    pub(super) elements: usize,
}

impl<'a> Body<'a> {
    /// Finds every tensor of the manifest in `bytes` (what follows the step counter).
    pub(super) fn new(
        bytes: &'a [u8],
        layout: Layout,
        manifest: &[Entry],
    ) -> Result<(Self, Vec<Place>), LoadError> {
        let mut next = 0u64;
        let mut places = Vec::with_capacity(manifest.len());
        for entry in manifest {
            let elements = elements(entry)?;
            let start = match (layout, entry.float_offset) {
                (Layout::Fp16, Some(offset)) => offset,
                _ => next,
            };
            let units = if layout == Layout::Int4 { elements.div_ceil(64) } else { elements };
            next = next.checked_add(units).ok_or_else(|| overflow(entry))?;
            check_place(entry, layout, start, units, bytes.len())?;
            places.push(Place { start: start as usize, elements: elements as usize });
        }
        check_size(layout, next, bytes.len())?;
        Ok((Self { bytes, layout, blocks: next as usize }, places))
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Element `index` of a tensor, in stored order.
    pub(super) fn f32(&self, place: Place, index: usize) -> f32 {
        match self.layout {
            Layout::Triplets => {
                let at = 4 * (3 * place.start + index);
                f32::from_le_bytes(self.array(at))
            }
            Layout::Fp16 => self.f16(place, index).to_f32(),
            Layout::Int4 => self.scale(place, index / BLOCK) * f32::from(self.nibble(place, index)),
        }
    }

    /// Element `index` of a tensor in an fp16 body.
    pub(super) fn f16(&self, place: Place, index: usize) -> f16 {
        f16::from_le_bytes(self.array(2 * (place.start + index)))
    }

    /// Scale of a tensor's `block`-th block in an int4 body.
    pub(super) fn scale(&self, place: Place, block: usize) -> f32 {
        f16::from_le_bytes(self.array(2 * (place.start + block))).to_f32()
    }

    /// Element `index` of a tensor in an int4 body before scaling, -8..=7.
    pub(super) fn nibble(&self, place: Place, index: usize) -> i8 {
        let packed = 2 * self.blocks + BLOCK / 2 * place.start;
        let byte = self.bytes[packed + index / 2];
        let nibble = if index.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
        nibble as i8 - 8
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[at..at + N]);
        array
    }
}

fn elements(entry: &Entry) -> Result<u64, LoadError> {
    let product = entry.shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
    product.ok_or_else(|| overflow(entry))
}

fn overflow(entry: &Entry) -> LoadError {
    LoadError::Overflow { tensor: entry.name.clone(), dims: entry.shape.clone() }
}

/// Bytes that `units` elements (or int4 blocks) take, step counter not included.
fn size(layout: Layout, units: u64) -> Option<u64> {
    units.checked_mul(match layout {
        Layout::Triplets => 12,
        Layout::Fp16 => 2,
        Layout::Int4 => 2 + BLOCK as u64 / 2,
    })
}

fn check_place(
    entry: &Entry,
    layout: Layout,
    start: u64,
    units: u64,
    have: usize,
) -> Result<(), LoadError> {
    let begin = size(layout, start);
    let end = start.checked_add(units).and_then(|end| size(layout, end));
    match (begin, end) {
        (Some(_), Some(end)) if end <= have as u64 => Ok(()),
        _ => Err(LoadError::TensorData {
            tensor: entry.name.clone(),
            begin: begin.unwrap_or(u64::MAX),
            end: end.unwrap_or(u64::MAX),
            have,
        }),
    }
}

/// Inference bodies end with their last tensor; a training body may carry more behind it.
fn check_size(layout: Layout, units: u64, have: usize) -> Result<(), LoadError> {
    let expected = size(layout, units).unwrap_or(u64::MAX);
    let fits = match layout {
        Layout::Triplets => have as u64 >= expected,
        Layout::Fp16 | Layout::Int4 => have as u64 == expected,
    };
    if fits {
        return Ok(());
    }
    Err(LoadError::BodySize { layout: layout.name(), expected, found: have })
}
