//! ggml's element types, and their blocks in the one packed form the kernels take.
//!
//! Every quantised type read here is a code: groups of small integers with a scale and, for some,
//! a minimum, `value = q * scale + min`, or numbers of a table's entries, which are integers, too.
//! Unpacking to `i8` with one f32 scale and minimum per group therefore loses nothing, and one
//! kernel serves them all. K-quants keep two levels of scales; their product is the group's scale.

mod affine;
mod k;
#[cfg(test)]
mod tests;

use half::{bf16, f16};
use tinygpt_kernels::{Code, Format, Table, Tile};

use self::affine::Affine;
use super::{LoadError, finite};

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
    IQ4_NL,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_XS,
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
            10 => Self::Q2_K,
            11 => Self::Q3_K,
            12 => Self::Q4_K,
            13 => Self::Q5_K,
            14 => Self::Q6_K,
            15 => other("Q8_K", 256, 292),
            16 => other("IQ2_XXS", 256, 66),
            17 => other("IQ2_XS", 256, 74),
            18 => other("IQ3_XXS", 256, 98),
            19 => other("IQ1_S", 256, 50),
            20 => Self::IQ4_NL,
            21 => other("IQ3_S", 256, 110),
            22 => other("IQ2_S", 256, 82),
            23 => Self::IQ4_XS,
            24 => other("I8", 1, 1),
            25 => other("I16", 1, 2),
            26 => other("I32", 1, 4),
            27 => other("I64", 1, 8),
            28 => other("F64", 1, 8),
            29 => other("IQ1_M", 256, 56),
            30 => Self::BF16,
            34 => other("TQ1_0", 256, 54),
            35 => other("TQ2_0", 256, 66),
            39 => Self::MXFP4,
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
            Self::IQ4_NL | Self::IQ4_XS => Format::Table { table: Table::IQ4NL, group: 32 },
            Self::MXFP4 => Format::Table { table: Table::E2M1, group: 32 },
            _ => Format::Affine { code: self.code()?, group: self.group(), min: self.has_min() },
        })
    }

    /// The integers of a quantised type that has no table.
    fn code(self) -> Option<Code> {
        let (bits, zero) = match self {
            Self::Q2_K => (2, 0),
            Self::Q3_K => (3, 4),
            Self::Q4_0 => (4, 8),
            Self::Q4_1 | Self::Q4_K => (4, 0),
            Self::Q5_0 => (5, 16),
            Self::Q5_1 | Self::Q5_K => (5, 0),
            Self::Q6_K => (6, 32),
            Self::Q8_0 => (8, 128),
            _ => return None,
        };
        Some(Code { bits, zero })
    }

    /// Elements that share a scale.
    fn group(self) -> usize {
        match self {
            Self::Q2_K | Self::Q3_K | Self::Q6_K => 16,
            _ => 32,
        }
    }

    fn has_min(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q2_K | Self::Q4_K | Self::Q5_K)
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
            Self::IQ4_NL => ("IQ4_NL", 32, 18),
            Self::MXFP4 => ("MXFP4", 32, 17),
            Self::Q2_K => ("Q2_K", 256, 84),
            Self::Q3_K => ("Q3_K", 256, 110),
            Self::Q4_K => ("Q4_K", 256, 144),
            Self::Q5_K => ("Q5_K", 256, 176),
            Self::Q6_K => ("Q6_K", 256, 210),
            Self::IQ4_XS => ("IQ4_XS", 256, 136),
            Self::Other(Unreadable { name, block, block_bytes }) => (name, block, block_bytes),
        }
    }
}

/// Rows of a matrix, from the bytes of a file into a tile: 16-bit numbers as they are, quantised
/// ones unpacked.
///
/// # Errors
/// When the `tensor` has weights that are no finite numbers.
pub(super) fn fill(
    tensor: &str,
    dtype: GgmlType,
    bytes: &[u8],
    tile: &mut Tile<'_>,
) -> Result<(), LoadError> {
    match dtype {
        GgmlType::F32 => {
            let numbers: Vec<_> = words(bytes).map(f32::from_le_bytes).collect();
            finite::numbers(tensor, &numbers)?;
            tile.f32(&numbers);
        }
        GgmlType::F16 => {
            let halves: Vec<_> = words(bytes).map(u16::from_le_bytes).collect();
            finite::halves(tensor, &halves)?;
            tile.f16(&halves);
        }
        GgmlType::BF16 => {
            let halves: Vec<_> = words(bytes).map(u16::from_le_bytes).collect();
            finite::brain_halves(tensor, &halves)?;
            tile.bf16(&halves);
        }
        dtype => {
            let Some(Affine { q, scale, min }) = Affine::unpack(dtype, bytes) else {
                return Ok(());
            };
            finite::numbers(tensor, &scale)?;
            finite::numbers(tensor, &min)?;
            match dtype.format() {
                Some(Format::Table { .. }) => {
                    let codes: Vec<u8> = q.into_iter().map(|code| code as u8).collect();
                    tile.codes(&codes, &scale, None);
                }
                _ => tile.affine(&q, &scale, dtype.has_min().then_some(&min)),
            }
        }
    }
    Ok(())
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
