//! Blocks of 256 elements: K-quants, whose scales have scales themselves, and their kin.

use super::affine::{half, nibbles};

/// `16 x (scale, min) of 4 bits | 64 bytes of 2-bit codes | d | dmin`
///
/// Value of group `j` is `(d scale_j) q - (dmin min_j)`.
pub(super) fn q2_k(block: &[u8; 84], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    let (d, dmin) = (half(block, 80), half(block, 82));
    for ((pair, scale), min) in block.iter().zip(scale).zip(min) {
        *scale = d * f32::from(pair & 15);
        *min = -(dmin * f32::from(pair >> 4));
    }
    pairs(&block[16..80], q);
}

/// `32 bytes of high bits | 64 bytes of 2-bit codes | 12 bytes: 16 scales of 6 bits | d`
///
/// A code without its high bit is 4 less; scales are 32 more than they mean.
pub(super) fn q3_k(block: &[u8; 110], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let (high, packed, d) = (&block[..32], &block[96..108], half(block, 108));
    for (j, scale) in scale.iter_mut().enumerate() {
        let low = packed[j % 8] >> (4 * (j / 8)) & 15;
        let upper = packed[8 + j % 4] >> (2 * (j / 4)) & 3;
        *scale = d * f32::from((low | upper << 4) as i8 - 32);
    }
    pairs(&block[32..96], q);
    for (group, q) in q.chunks_exact_mut(32).enumerate() {
        for (q, byte) in q.iter_mut().zip(high) {
            *q -= if byte >> group & 1 == 0 { 4 } else { 0 };
        }
    }
}

/// Codes of 2 bits: of every 32 bytes the lowest first, then the next.
fn pairs(packed: &[u8], q: &mut [i8]) {
    for (packed, q) in packed.chunks_exact(32).zip(q.chunks_exact_mut(128)) {
        for (i, q) in q.iter_mut().enumerate() {
            *q = (packed[i % 32] >> (2 * (i / 32)) & 3) as i8;
        }
    }
}

/// `d | dmin | 8 packed (scale, min) pairs | 128 bytes`
pub(super) fn q4_k(block: &[u8; 144], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    k_scales(&block[..16], scale, min);
    for (packed, q) in block[16..].chunks_exact(32).zip(q.chunks_exact_mut(64)) {
        nibbles(packed, q);
    }
}

/// `d | dmin | 8 packed (scale, min) pairs | 32 bytes of high bits | 128 bytes`
pub(super) fn q5_k(block: &[u8; 176], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    k_scales(&block[..16], scale, min);
    let (high, packed) = block[16..].split_at(32);
    for (packed, q) in packed.chunks_exact(32).zip(q.chunks_exact_mut(64)) {
        nibbles(packed, q);
    }
    for (group, q) in q.chunks_exact_mut(32).enumerate() {
        for (q, byte) in q.iter_mut().zip(high) {
            *q |= ((byte >> group & 1) << 4) as i8;
        }
    }
}

/// Value of group `j` is `(d scale_j) q - (dmin min_j)`.
fn k_scales(head: &[u8], scale: &mut [f32], min: &mut [f32]) {
    let (d, dmin) = (half(head, 0), half(head, 2));
    for (j, (scale, min)) in scale.iter_mut().zip(min).enumerate() {
        let (sc, m) = k_pair(&head[4..], j);
        *scale = d * f32::from(sc);
        *min = -(dmin * f32::from(m));
    }
}

/// The `j`-th 6-bit scale and minimum of 12 packed bytes: the first four pairs lie in the low bits
/// of bytes 0..4 and 4..8; the low nibbles of the last four in bytes 8..12, their upper two bits in
/// the top of the bytes of the first four.
fn k_pair(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        return (packed[j] & 63, packed[j + 4] & 63);
    }
    let low = packed[j + 4];
    (low & 15 | packed[j - 4] >> 6 << 4, low >> 4 | packed[j] >> 6 << 4)
}

/// `128 bytes of low nibbles | 64 bytes of high pairs | 16 x i8 scales | d`
pub(super) fn q6_k(block: &[u8; 210], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let d = half(rest, 16);
    for (scale, &byte) in scale.iter_mut().zip(rest) {
        *scale = d * f32::from(byte as i8);
    }
    let halves = low.chunks_exact(64).zip(high.chunks_exact(32));
    for ((low, high), q) in halves.zip(q.chunks_exact_mut(128)) {
        for (i, q) in q.iter_mut().enumerate() {
            let (quarter, lane) = (i / 32, i % 32);
            let nibble = low[i % 64] >> (4 * (i / 64)) & 15;
            let pair = high[lane] >> (2 * quarter) & 3;
            *q = (nibble | pair << 4) as i8 - 32;
        }
    }
}

/// `d | 8 high pairs of scales | 8 low nibbles of scales | 128 bytes`
///
/// Value `d (scale_j - 32) table[q]`.
pub(super) fn iq4_xs(block: &[u8; 136], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let (d, high) = (half(block, 0), u16::from_le_bytes([block[2], block[3]]));
    for (j, scale) in scale.iter_mut().enumerate() {
        let low = block[4 + j / 2] >> (4 * (j % 2)) & 15;
        let upper = (high >> (2 * j) & 3) as u8;
        *scale = d * f32::from((low | upper << 4) as i8 - 32);
    }
    for (packed, q) in block[8..].chunks_exact(16).zip(q.chunks_exact_mut(32)) {
        nibbles(packed, q);
    }
}
