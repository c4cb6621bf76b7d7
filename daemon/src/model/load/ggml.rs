//! ggml's element types, and their blocks in the one packed form the kernels take.
//!
//! Every quantised type read here is an affine code: groups of small integers with a scale and,
//! for some, a minimum, `value = q * scale + min`.
//! Unpacking to `i8` with one f32 scale and minimum per group therefore loses nothing, and one
//! kernel serves them all. K-quants keep two levels of scales; their product is the group's scale.

use half::{bf16, f16};
use tinygpt_kernels::{Code, Format, Tile};

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(non_camel_case_types, reason = "the names under which everyone knows them")]
pub(super) enum GgmlType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4_K,
    Q5_K,
    Q6_K,
    /// Defined by ggml, not readable here.
    Other(Unreadable),
}

/// A type that ggml defines and that is not readable here: enough to measure and to name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unreadable {
    name: &'static str,
    block: usize,
    block_bytes: usize,
}

impl GgmlType {
    /// By the number that GGUF files carry; `None` where ggml defines none.
    pub(super) fn from_id(id: u32) -> Option<Self> {
        let other = |name, block, block_bytes| Self::Other(Unreadable { name, block, block_bytes });
        Some(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            9 => other("Q8_1", 32, 36),
            10 => other("Q2_K", 256, 84),
            11 => other("Q3_K", 256, 110),
            12 => Self::Q4_K,
            13 => Self::Q5_K,
            14 => Self::Q6_K,
            15 => other("Q8_K", 256, 292),
            16 => other("IQ2_XXS", 256, 66),
            17 => other("IQ2_XS", 256, 74),
            18 => other("IQ3_XXS", 256, 98),
            19 => other("IQ1_S", 256, 50),
            20 => other("IQ4_NL", 32, 18),
            21 => other("IQ3_S", 256, 110),
            22 => other("IQ2_S", 256, 82),
            23 => other("IQ4_XS", 256, 136),
            24 => other("I8", 1, 1),
            25 => other("I16", 1, 2),
            26 => other("I32", 1, 4),
            27 => other("I64", 1, 8),
            28 => other("F64", 1, 8),
            29 => other("IQ1_M", 256, 56),
            30 => Self::BF16,
            34 => other("TQ1_0", 256, 54),
            35 => other("TQ2_0", 256, 66),
            39 => other("MXFP4", 32, 17),
            40 => other("NVFP4", 64, 36),
            41 => other("Q1_0", 128, 18),
            _ => return None,
        })
    }

    /// ggml's name of the type.
    pub(super) fn name(self) -> &'static str {
        self.measures().0
    }

    /// Elements in a block; 1 for plain numbers.
    pub(super) fn block(self) -> usize {
        self.measures().1
    }

    /// Bytes of a block.
    pub(super) fn block_bytes(self) -> usize {
        self.measures().2
    }

    /// How the kernels keep weights of this type; `None` for types that are not readable here.
    pub(super) fn format(self) -> Option<Format> {
        Some(match self {
            Self::F32 => Format::F32,
            Self::F16 => Format::F16,
            Self::BF16 => Format::BF16,
            Self::Q6_K => Format::Affine { code: self.code()?, group: 16, min: false },
            _ => Format::Affine { code: self.code()?, group: 32, min: self.has_min() },
        })
    }

    /// The integers of a quantised type.
    fn code(self) -> Option<Code> {
        let (bits, zero) = match self {
            Self::Q4_0 => (4, 8),
            Self::Q4_1 | Self::Q4_K => (4, 0),
            Self::Q5_0 => (5, 16),
            Self::Q5_1 | Self::Q5_K => (5, 0),
            Self::Q6_K => (6, 32),
            Self::Q8_0 => (8, 128),
            Self::F32 | Self::F16 | Self::BF16 | Self::Other(_) => return None,
        };
        Some(Code { bits, zero })
    }

    fn has_min(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q4_K | Self::Q5_K)
    }

    fn measures(self) -> (&'static str, usize, usize) {
        match self {
            Self::F32 => ("F32", 1, 4),
            Self::F16 => ("F16", 1, 2),
            Self::BF16 => ("BF16", 1, 2),
            Self::Q8_0 => ("Q8_0", 32, 34),
            Self::Q4_0 => ("Q4_0", 32, 18),
            Self::Q4_1 => ("Q4_1", 32, 20),
            Self::Q5_0 => ("Q5_0", 32, 22),
            Self::Q5_1 => ("Q5_1", 32, 24),
            Self::Q4_K => ("Q4_K", 256, 144),
            Self::Q5_K => ("Q5_K", 256, 176),
            Self::Q6_K => ("Q6_K", 256, 210),
            Self::Other(Unreadable { name, block, block_bytes }) => (name, block, block_bytes),
        }
    }
}

/// Rows of a matrix, from the bytes of a file into a tile: 16-bit numbers as they are, quantised
/// ones unpacked.
pub(super) fn fill(dtype: GgmlType, bytes: &[u8], tile: &mut Tile<'_>) {
    match dtype {
        GgmlType::F32 => tile.f32(&words(bytes).map(f32::from_le_bytes).collect::<Vec<_>>()),
        GgmlType::F16 => tile.f16(&words(bytes).map(u16::from_le_bytes).collect::<Vec<_>>()),
        GgmlType::BF16 => tile.bf16(&words(bytes).map(u16::from_le_bytes).collect::<Vec<_>>()),
        dtype => {
            if let Some(Affine { q, scale, min, .. }) = Affine::unpack(dtype, bytes) {
                tile.affine(&q, &scale, dtype.has_min().then_some(&min));
            }
        }
    }
}

/// The numbers of a plain type, exactly; `None` for a quantised one.
pub(super) fn plain(dtype: GgmlType, bytes: &[u8]) -> Option<Vec<f32>> {
    Some(match dtype {
        GgmlType::F32 => words(bytes).map(f32::from_le_bytes).collect(),
        GgmlType::F16 => words(bytes).map(|word| f16::from_le_bytes(word).to_f32()).collect(),
        GgmlType::BF16 => words(bytes).map(|word| bf16::from_le_bytes(word).to_f32()).collect(),
        _ => return None,
    })
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

/// Quantised elements: `value[i] = q[i] * scale[i / group] + min[i / group]`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Affine {
    pub(super) group: usize,
    pub(super) q: Vec<i8>,
    pub(super) scale: Vec<f32>,
    pub(super) min: Vec<f32>,
}

impl Affine {
    /// Unpacks whole blocks of a quantised type; `None` for any other type.
    pub(super) fn unpack(dtype: GgmlType, bytes: &[u8]) -> Option<Self> {
        Some(match dtype {
            GgmlType::Q8_0 => Self::blocks(bytes, 32, 32, q8_0),
            GgmlType::Q4_0 => Self::blocks(bytes, 32, 32, q4_0),
            GgmlType::Q4_1 => Self::blocks(bytes, 32, 32, q4_1),
            GgmlType::Q5_0 => Self::blocks(bytes, 32, 32, q5_0),
            GgmlType::Q5_1 => Self::blocks(bytes, 32, 32, q5_1),
            GgmlType::Q4_K => Self::blocks(bytes, 256, 32, q4_k),
            GgmlType::Q5_K => Self::blocks(bytes, 256, 32, q5_k),
            GgmlType::Q6_K => Self::blocks(bytes, 256, 16, q6_k),
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::Other(_) => return None,
        })
    }

    fn blocks<const BYTES: usize>(
        bytes: &[u8],
        elements: usize,
        group: usize,
        unpack: impl Fn(&[u8; BYTES], &mut [i8], &mut [f32], &mut [f32]),
    ) -> Self {
        let blocks = bytes.as_chunks::<BYTES>().0;
        let groups = elements / group;
        let mut q = vec![0; blocks.len() * elements];
        let mut scale = vec![0.0; blocks.len() * groups];
        let mut min = vec![0.0; blocks.len() * groups];
        let outputs = q.chunks_exact_mut(elements);
        let outputs = outputs.zip(scale.chunks_exact_mut(groups)).zip(min.chunks_exact_mut(groups));
        for (block, ((q, scale), min)) in blocks.iter().zip(outputs) {
            unpack(block, q, scale, min);
        }
        Self { group, q, scale, min }
    }
}

fn half(bytes: &[u8], at: usize) -> f32 {
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

/// Low nibbles first, then high ones.
fn nibbles(packed: &[u8], q: &mut [i8]) {
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

/// `d | dmin | 8 packed (scale, min) pairs | 128 bytes`
fn q4_k(block: &[u8; 144], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    k_scales(&block[..16], scale, min);
    for (packed, q) in block[16..].chunks_exact(32).zip(q.chunks_exact_mut(64)) {
        nibbles(packed, q);
    }
}

/// `d | dmin | 8 packed (scale, min) pairs | 32 bytes of high bits | 128 bytes`
fn q5_k(block: &[u8; 176], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
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
fn q6_k(block: &[u8; 210], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use candle_core::Device;
    use candle_core::quantized::{GgmlDType, ggml_file::qtensor_from_ggml};
    use proptest::prelude::*;

    use super::*;

    /// Every quantised type, the oracle's name for it, and where its f16 fields lie in a block.
    const TYPES: [(GgmlType, GgmlDType, &[usize]); 8] = [
        (GgmlType::Q8_0, GgmlDType::Q8_0, &[0]),
        (GgmlType::Q4_0, GgmlDType::Q4_0, &[0]),
        (GgmlType::Q4_1, GgmlDType::Q4_1, &[0, 2]),
        (GgmlType::Q5_0, GgmlDType::Q5_0, &[0]),
        (GgmlType::Q5_1, GgmlDType::Q5_1, &[0, 2]),
        (GgmlType::Q4_K, GgmlDType::Q4K, &[0, 2]),
        (GgmlType::Q5_K, GgmlDType::Q5K, &[0, 2]),
        (GgmlType::Q6_K, GgmlDType::Q6K, &[208]),
    ];

    fn check(dtype: GgmlType, oracle: GgmlDType, bytes: &[u8]) {
        let Affine { group, q, scale, min } = Affine::unpack(dtype, bytes).unwrap();
        let expected = qtensor_from_ggml(oracle, bytes, vec![q.len()], &Device::Cpu).unwrap();
        let expected: Vec<f32> = expected.dequantize(&Device::Cpu).unwrap().to_vec1().unwrap();
        for (i, (&q, expected)) in q.iter().zip(expected).enumerate() {
            let (scale, min) = (scale[i / group], min[i / group]);
            let value = f32::from(q).mul_add(scale, min);
            let size = (f32::from(q) * scale).abs() + min.abs();
            let error = (value - expected).abs();
            assert!(error <= 1e-6 * size, "{dtype:?} element {i}: {value}, expected {expected}");
        }
    }

    proptest! {
        #[test]
        fn random_blocks_of_every_type_have_the_oracles_values(
            seed in proptest::collection::vec(any::<u8>(), 3 * 210),
            halves in proptest::collection::vec(-100.0f32..100.0, 6),
        ) {
            for (dtype, oracle, fields) in TYPES {
                let mut bytes = seed[..3 * dtype.block_bytes()].to_vec();
                for (block, bytes) in bytes.chunks_exact_mut(dtype.block_bytes()).enumerate() {
                    for (&field, half) in fields.iter().zip(&halves[2 * block..]) {
                        let half = f16::from_f32(*half).to_le_bytes();
                        bytes[field..field + 2].copy_from_slice(&half);
                    }
                }
                check(dtype, oracle, &bytes);
            }
        }
    }

    #[test]
    fn every_type_number_has_the_oracles_block_size() {
        for (dtype, oracle, _) in TYPES {
            let id = (0..64).find(|&id| GgmlType::from_id(id) == Some(dtype)).unwrap();
            assert_eq!(dtype.block_bytes(), oracle.type_size(), "{id}");
            assert_eq!(dtype.block(), oracle.block_size(), "{id}");
        }
        assert_eq!(GgmlType::from_id(4), None);
    }
}
