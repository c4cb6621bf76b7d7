//! The bytes of a `.tinygpt` body, in its three layouts, as elements of named tensors.

use std::borrow::Cow;
use std::ops::Range;

use half::f16;

use super::header::{Entry, Layout};
use crate::model::load::LoadError;
use crate::model::load::input::Input;

/// Elements of one int4 block, which share a scale.
pub(super) const BLOCK: usize = 64;

/// A body whose size has been checked against the manifest.
#[derive(Debug)]
pub(super) struct Body<'a> {
    input: Input<'a>,
    /// Where in the file it begins.
    begin: usize,
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
    /// Finds every tensor of the manifest in the file behind `begin`, the end of the step counter.
    pub(super) fn new(
        input: Input<'a>,
        begin: usize,
        layout: Layout,
        manifest: &[Entry],
    ) -> Result<(Self, Vec<Place>), LoadError> {
        let have = input.len() - begin;
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
            check_place(entry, layout, start, units, have)?;
            places.push(Place { start: start as usize, elements: elements as usize });
        }
        check_size(layout, next, have)?;
        Ok((Self { input, begin, layout, blocks: next as usize }, places))
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// The elements of one tensor, out of the bytes that `read` reads.
    pub(super) fn elements(
        &self,
        place: Place,
        read: impl Fn(Input<'a>, Range<usize>) -> Result<Cow<'a, [u8]>, LoadError>,
    ) -> Result<Elements<'a>, LoadError> {
        let Place { start, elements } = place;
        let read = |at: usize, bytes: usize| {
            let at = self.begin + at;
            read(self.input, at..at + bytes)
        };
        Ok(match self.layout {
            Layout::Triplets => Elements::F32(read(12 * start, 4 * elements)?),
            Layout::Fp16 => Elements::F16(read(2 * start, 2 * elements)?),
            Layout::Int4 => {
                let (blocks, packed) = (elements.div_ceil(BLOCK), 2 * self.blocks);
                let scales = read(2 * start, 2 * blocks)?;
                let values = read(packed + BLOCK / 2 * start, BLOCK / 2 * blocks)?;
                Elements::Int4 { scales, values }
            }
        })
    }
}

/// The elements of a tensor in stored order.
#[derive(Debug)]
pub(super) enum Elements<'a> {
    F32(Cow<'a, [u8]>),
    F16(Cow<'a, [u8]>),
    Int4 {
        /// An f16 for each block.
        scales: Cow<'a, [u8]>,
        /// Two to a byte, the low half first.
        values: Cow<'a, [u8]>,
    },
}

impl Elements<'_> {
    pub(super) fn f32(&self, index: usize) -> f32 {
        match self {
            Self::F32(bytes) => f32::from_le_bytes(array(bytes, index)),
            Self::F16(bytes) => f16::from_le_bytes(array(bytes, index)).to_f32(),
            Self::Int4 { scales, values } => {
                scale(scales, index / BLOCK) * f32::from(nibble(values, index))
            }
        }
    }
}

/// Number `index` of a row of numbers.
pub(super) fn array<const N: usize>(bytes: &[u8], index: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[N * index..][..N]);
    array
}

/// Scale of a block.
pub(super) fn scale(scales: &[u8], block: usize) -> f32 {
    f16::from_le_bytes(array(scales, block)).to_f32()
}

/// An int4 element before scaling, -8..=7.
pub(super) fn nibble(values: &[u8], index: usize) -> i8 {
    let byte = values[index / 2];
    let nibble = if index.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
    nibble as i8 - 8
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
