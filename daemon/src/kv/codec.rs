//! `kv_dtype`: how numbers become bytes in a block.

use std::fmt;
use std::str::FromStr;

use tinygpt_kernels::attend::Element;
use tinygpt_kernels::convert::{bf16_from_f32, f16_from_f32, saturates};

/// The codec of a chain. All of these are plain: an element is stored by itself, so a block has
/// its final bytes as soon as its rows are written, and sealing it changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Codec {
    /// 32-bit floats: what the model computed.
    F32,
    /// IEEE half precision; values that round beyond 65,504 saturate and are counted.
    #[default]
    F16,
    /// bfloat16: the range of `f32` with eight bits of precision.
    BF16,
}

impl Codec {
    /// Every codec, in the order of the documentation.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::BF16];

    /// The name on the command line, in the protocol and in the fingerprint.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
        }
    }

    /// The element type that the attention kernel reads.
    pub fn element(self) -> Element {
        match self {
            Self::F32 => Element::F32,
            Self::F16 => Element::F16,
            Self::BF16 => Element::BF16,
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// Stores `row` at elements `start`, `start + stride`, .. of `to`. Returns how many values
    /// saturated.
    pub(super) fn store(self, row: &[f32], to: &mut [u8], start: usize, stride: usize) -> u64 {
        match self {
            Self::F32 => {
                scatter(row, bytemuck::cast_slice_mut(to), start, stride, |x| x);
                0
            }
            Self::F16 => {
                scatter(row, bytemuck::cast_slice_mut(to), start, stride, f16_from_f32);
                row.iter().filter(|x| saturates(**x)).count() as u64
            }
            Self::BF16 => {
                scatter(row, bytemuck::cast_slice_mut(to), start, stride, bf16_from_f32);
                0
            }
        }
    }
}

fn scatter<T>(row: &[f32], to: &mut [T], start: usize, stride: usize, narrow: impl Fn(f32) -> T) {
    for (element, value) in to[start..].iter_mut().step_by(stride).zip(row) {
        *element = narrow(*value);
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name of no codec.
#[derive(Debug, thiserror::Error)]
#[error("unknown kv dtype {0:?}; known are f32, f16, bf16")]
pub struct UnknownCodec(String);

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        let known = Self::ALL.into_iter().find(|codec| codec.name() == name);
        known.ok_or_else(|| UnknownCodec(name.to_owned()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn values_beyond_f16_saturate_and_are_counted() {
        let mut to = [0u8; 16];
        let row =
            [1e6, -70_000.0, 65_504.0, 1.0, f32::INFINITY, -f32::INFINITY, 65_519.0, 65_520.0];
        assert_eq!(Codec::F16.store(&row, &mut to, 0, 1), 5);
        let stored: &[u16] = bytemuck::cast_slice(&to);
        let stored: Vec<f32> = stored.iter().map(|bits| f16::from_bits(*bits).to_f32()).collect();
        let most = 65_504.0;
        assert_eq!(stored, [most, -most, most, 1.0, most, -most, most, most]);
    }

    #[test]
    fn names_and_codecs_stand_for_each_other() {
        for codec in Codec::ALL {
            assert_eq!(codec.name().parse::<Codec>().unwrap(), codec);
        }
        assert!("q9".parse::<Codec>().unwrap_err().to_string().contains("q9"));
    }
}
