//! Blocks of integers with scales, and those of 32 elements.

use half::f16;

use super::{GgmlType, k};

/// Quantised elements: `value[i] = q[i] * scale[i / group] + min[i / group]`, or
/// `table[q[i]] * scale[i / group]`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Affine {
    pub(super) q: Vec<i8>,
    pub(super) scale: Vec<f32>,
    pub(super) min: Vec<f32>,
}

impl Affine {
    /// Unpacks whole blocks of a quantised type; `None` for any other type.
    pub(super) fn unpack(dtype: GgmlType, bytes: &[u8]) -> Option<Self> {
        Some(match dtype {
            GgmlType::Q8_0 => Self::blocks(dtype, bytes, q8_0),
            GgmlType::Q4_0 => Self::blocks(dtype, bytes, q4_0),
            GgmlType::Q4_1 => Self::blocks(dtype, bytes, q4_1),
            GgmlType::Q5_0 => Self::blocks(dtype, bytes, q5_0),
            GgmlType::Q5_1 => Self::blocks(dtype, bytes, q5_1),
            GgmlType::IQ4_NL => Self::blocks(dtype, bytes, iq4_nl),
            GgmlType::MXFP4 => Self::blocks(dtype, bytes, mxfp4),
            GgmlType::Q2_K => Self::blocks(dtype, bytes, k::q2_k),
            GgmlType::Q3_K => Self::blocks(dtype, bytes, k::q3_k),
            GgmlType::Q4_K => Self::blocks(dtype, bytes, k::q4_k),
            GgmlType::Q5_K => Self::blocks(dtype, bytes, k::q5_k),
            GgmlType::Q6_K => Self::blocks(dtype, bytes, k::q6_k),
            GgmlType::IQ4_XS => Self::blocks(dtype, bytes, k::iq4_xs),
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::Other(_) => return None,
        })
    }

    fn blocks<const BYTES: usize>(
        dtype: GgmlType,
        bytes: &[u8],
        unpack: impl Fn(&[u8; BYTES], &mut [i8], &mut [f32], &mut [f32]),
    ) -> Self {
        debug_assert_eq!(BYTES, dtype.block_bytes());
        let blocks = bytes.as_chunks::<BYTES>().0;
        let (elements, groups) = (dtype.block(), dtype.block() / dtype.group());
        let mut q = vec![0; blocks.len() * elements];
        let mut scale = vec![0.0; blocks.len() * groups];
        let mut min = vec![0.0; blocks.len() * groups];
        let outputs = q.chunks_exact_mut(elements);
        let outputs = outputs.zip(scale.chunks_exact_mut(groups)).zip(min.chunks_exact_mut(groups));
        for (block, ((q, scale), min)) in blocks.iter().zip(outputs) {
            unpack(block, q, scale, min);
        }
        Self { q, scale, min }
    }
}

pub(super) fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// `d | 32 x i8`
fn q8_0(block: &[u8; 34], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale[0] = half(block, 0);
    for (q, &byte) in q.iter_mut().zip(&block[2..]) {
        *q = byte as i8;
    }
}

/// `d | 16 bytes`, value `d (q - 8)`
fn q4_0(block: &[u8; 18], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale[0] = half(block, 0);
    nibbles(&block[2..], q);
    q.iter_mut().for_each(|q| *q -= 8);
}

/// `d | m | 16 bytes`, value `d q + m`
fn q4_1(block: &[u8; 20], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    (scale[0], min[0]) = (half(block, 0), half(block, 2));
    nibbles(&block[4..], q);
}

/// `d | 32 high bits | 16 bytes`, value `d (q - 16)`
fn q5_0(block: &[u8; 22], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale[0] = half(block, 0);
    nibbles(&block[6..], q);
    fifth_bits(&block[2..6], q);
    q.iter_mut().for_each(|q| *q -= 16);
}

/// `d | m | 32 high bits | 16 bytes`, value `d q + m`
fn q5_1(block: &[u8; 24], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    (scale[0], min[0]) = (half(block, 0), half(block, 2));
    nibbles(&block[8..], q);
    fifth_bits(&block[4..8], q);
}

/// `d | 16 bytes`, value `d * table[q]`
fn iq4_nl(block: &[u8; 18], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale[0] = half(block, 0);
    nibbles(&block[2..], q);
}

/// `exponent | 16 bytes`, value `2^(exponent - 127) * table[q] / 2`
fn mxfp4(block: &[u8; 17], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale[0] = f64::powi(2.0, i32::from(block[0]) - 128) as f32;
    nibbles(&block[1..], q);
}

/// Low nibbles first, then high ones.
pub(super) fn nibbles(packed: &[u8], q: &mut [i8]) {
    let (low, high) = q.split_at_mut(packed.len());
    for ((byte, low), high) in packed.iter().zip(low).zip(high) {
        *low = (byte & 15) as i8;
        *high = (byte >> 4) as i8;
    }
}

/// Bit `i` of a little-endian word is the fifth bit of element `i`.
fn fifth_bits(word: &[u8], q: &mut [i8]) {
    for (i, q) in q.iter_mut().enumerate() {
        *q |= ((word[i / 8] >> (i % 8) & 1) << 4) as i8;
    }
}
