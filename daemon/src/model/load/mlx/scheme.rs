//! One way in which MLX quantises: mode, bits, group; and the bytes that follow from it.

use half::{bf16, f16};
use serde_json::{Map, Value};
use tinygpt_kernels::convert::{f32_from_e4m3, f32_from_e8m0};
use tinygpt_kernels::{Code, Format, Table, Tile};

use crate::model::load::{LoadError, finite};

/// How a module is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model::load) struct Scheme {
    pub(super) mode: Mode,
    pub(super) bits: u8,
    pub(super) group: usize,
}

/// What codes and scales are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Affine,
    Mxfp4,
    Nvfp4,
    Mxfp8,
}

/// Element type of a tensor of scales or biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model::load) enum ScaleType {
    F32,
    F16,
    BF16,
    U8,
}

/// The bytes of some rows of a module; no biases where the mode has none.
#[derive(Clone, Copy, Debug)]
pub(in crate::model::load) struct Parts<'a> {
    pub(in crate::model::load) weight: &'a [u8],
    pub(in crate::model::load) scales: &'a [u8],
    pub(in crate::model::load) biases: &'a [u8],
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Affine, Mode::Mxfp4, Mode::Nvfp4, Mode::Mxfp8];

    fn name(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::Mxfp4 => "mxfp4",
            Mode::Nvfp4 => "nvfp4",
            Mode::Mxfp8 => "mxfp8",
        }
    }

    /// The bits and groups that it can have; the first of each where a module does not say.
    fn choices(self) -> (&'static [u64], &'static [u64]) {
        match self {
            Mode::Affine => (&[4, 2, 3, 5, 6, 8], &[64, 32, 128]),
            Mode::Mxfp4 => (&[4], &[32]),
            Mode::Nvfp4 => (&[4], &[16]),
            Mode::Mxfp8 => (&[8], &[32]),
        }
    }
}

impl Scheme {
    /// The keys that make one.
    pub(super) const KEYS: [&str; 3] = ["group_size", "bits", "mode"];

    /// The scheme that `said` has at `path` in a config.
    pub(super) fn read(path: &str, said: &Map<String, Value>) -> Result<Self, LoadError> {
        let mode = match said.get("mode") {
            None => Mode::Affine,
            Some(name) => *Mode::ALL.iter().find(|mode| name == mode.name()).ok_or_else(|| {
                unknown(path, "mode", name, &Mode::ALL.map(Mode::name).join(", "))
            })?,
        };
        let (bits, groups) = mode.choices();
        let number = |key, choices: &[u64]| match said.get(key) {
            None => Ok(choices[0]),
            Some(found) => {
                let known = found.as_u64().filter(|number| choices.contains(number));
                known.ok_or_else(|| unknown(path, key, found, &listed(choices, mode)))
            }
        };
        let (bits, group) = (number("bits", bits)? as u8, number("group_size", groups)? as usize);
        Ok(Self { mode, bits, group })
    }

    /// The scheme of a module whose rows of `k` elements are so many 32-bit words and so many
    /// scales of this type.
    ///
    /// # Errors
    /// When there is none.
    pub(in crate::model::load) fn inferred(
        tensor: &str,
        k: usize,
        (words, scales): (u64, u64),
        stored: ScaleType,
    ) -> Result<Self, LoadError> {
        let k = k as u64;
        let fits = |mode: &Mode| (*mode == Mode::Affine) == (stored != ScaleType::U8);
        let schemes = Mode::ALL.iter().filter(|mode| fits(mode)).flat_map(|&mode| {
            let (bits, groups) = mode.choices();
            let pairs = bits.iter().flat_map(|bits| groups.iter().map(move |group| (bits, group)));
            pairs.map(move |(&bits, &group)| (mode, bits, group))
        });
        let mut schemes = schemes.filter(|(_, bits, group)| {
            words.checked_mul(32) == k.checked_mul(*bits) && scales.checked_mul(*group) == Some(k)
        });
        let unknown = || LoadError::Unsupported {
            what: format!("the quantisation of tensor \"{tensor}\""),
            detail: format!("rows of {k} elements in {words} words, with {scales} scales"),
        };
        let (mode, bits, group) = schemes.next().ok_or_else(unknown)?;
        Ok(Self { mode, bits: bits as u8, group: group as usize })
    }

    /// How it is called: `affine 4 bits, groups of 64`, or `mxfp4`.
    pub(super) fn name(self) -> String {
        match self.mode {
            Mode::Affine => format!("affine {} bits, groups of {}", self.bits, self.group),
            mode => mode.name().into(),
        }
    }

    /// Whether a module has biases.
    pub(in crate::model::load) fn has_biases(self) -> bool {
        self.mode == Mode::Affine
    }

    /// Whether scales can be of this type.
    pub(in crate::model::load) fn takes(self, scales: ScaleType) -> bool {
        self.has_biases() == (scales != ScaleType::U8)
    }

    /// 32-bit words of a row of codes, and scales of a row.
    ///
    /// # Errors
    /// When a row of `k` elements of `tensor` is no whole number of groups, or of the kernels'
    /// blocks.
    pub(in crate::model::load) fn widths(
        self,
        tensor: &str,
        k: usize,
    ) -> Result<(usize, usize), LoadError> {
        let block = self.group.max(32);
        if !k.is_multiple_of(block) {
            let dtype = self.mode.name();
            return Err(LoadError::BlockSize {
                tensor: tensor.into(),
                row: k as u64,
                block,
                dtype,
            });
        }
        Ok((k / 32 * usize::from(self.bits), k / self.group))
    }

    /// How the kernels keep such weights.
    pub(in crate::model::load) fn format(self) -> Format {
        let group = self.group;
        match self.mode {
            Mode::Affine => {
                Format::Affine { code: Code { bits: self.bits, zero: 0 }, group, min: true }
            }
            Mode::Mxfp4 | Mode::Nvfp4 => Format::Table { table: Table::E2M1, group },
            Mode::Mxfp8 => Format::E4M3 { group },
        }
    }

    /// Packs the rows that a tile wants.
    pub(in crate::model::load) fn fill(
        self,
        tensor: &str,
        parts: Parts<'_>,
        stored: ScaleType,
        tile: &mut Tile<'_>,
    ) -> Result<(), LoadError> {
        let codes = unpacked(self.bits, parts.weight);
        let scales = self.scales(parts.scales, stored);
        let biases = self.has_biases().then(|| plain(parts.biases, stored));
        finite::numbers(tensor, &scales)?;
        finite::numbers(tensor, biases.as_deref().unwrap_or_default())?;
        tile.codes(&codes, &scales, biases.as_deref());
        Ok(())
    }

    /// The scales of the kernels' formats: half of those of floats that the table has doubled.
    fn scales(self, bytes: &[u8], stored: ScaleType) -> Vec<f32> {
        let each = |scale: fn(u8) -> f32, by: f32| bytes.iter().map(|&b| scale(b) * by).collect();
        match self.mode {
            Mode::Affine => plain(bytes, stored),
            Mode::Mxfp4 => each(f32_from_e8m0, 0.5),
            Mode::Nvfp4 => each(f32_from_e4m3, 0.5),
            Mode::Mxfp8 => each(f32_from_e8m0, 1.0),
        }
    }
}

/// Codes from a little-endian stream of bits.
pub(super) fn unpacked(bits: u8, stream: &[u8]) -> Vec<u8> {
    let mask = (1_u32 << bits) - 1;
    let mut codes = Vec::with_capacity(stream.len() * 8 / usize::from(bits));
    let (mut held, mut have) = (0_u32, 0);
    for &byte in stream {
        held |= u32::from(byte) << have;
        have += 8;
        while have >= bits {
            codes.push((held & mask) as u8);
            held >>= bits;
            have -= bits;
        }
    }
    codes
}

/// The numbers of a plain type.
fn plain(bytes: &[u8], stored: ScaleType) -> Vec<f32> {
    match stored {
        ScaleType::F32 => words(bytes).map(f32::from_le_bytes).collect(),
        ScaleType::F16 => words(bytes).map(|word| f16::from_le_bytes(word).to_f32()).collect(),
        ScaleType::BF16 => words(bytes).map(|word| bf16::from_le_bytes(word).to_f32()).collect(),
        ScaleType::U8 => bytes.iter().map(|&byte| f32::from(byte)).collect(),
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

fn listed(choices: &[u64], mode: Mode) -> String {
    let mut choices = choices.to_vec();
    choices.sort_unstable();
    let choices: Vec<String> = choices.iter().map(u64::to_string).collect();
    format!("{} for mode {}", choices.join(", "), mode.name())
}

fn unknown(path: &str, key: &str, found: &Value, known: &str) -> LoadError {
    LoadError::Unsupported {
        what: format!("key \"{path}.{key}\""),
        detail: format!("{found}; there are {known}"),
    }
}
