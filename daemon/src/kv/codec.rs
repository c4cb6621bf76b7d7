//! `kv_dtype`: how numbers become bytes in a block.

use std::fmt;
use std::str::FromStr;

use tinygpt_kernels::attend::Element;
use tinygpt_kernels::convert;

/// The codec of a chain. All of these are plain: an element is stored by itself, so a block has
/// its final bytes as soon as its rows are written, and sealing it changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Codec {
    /// 32-bit floats: what the model computed.
    F32,
    /// IEEE half precision; values beyond 65,504 saturate and are counted.
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
                scatter(row, bytemuck::cast_slice_mut(to), start, stride, convert::f16_bits);
                row.iter().filter(|x| convert::saturates_f16(**x)).count() as u64
            }
            Self::BF16 => {
                scatter(row, bytemuck::cast_slice_mut(to), start, stride, convert::bf16_bits);
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
