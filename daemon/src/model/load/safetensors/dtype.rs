//! The element types of `.safetensors`.

use crate::model::load::ggml::GgmlType;

/// Element type of a tensor, by its name in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::model::load) enum Dtype {
    /// 4 bytes each.
    F32,
    /// 2 bytes each.
    F16,
    /// 2 bytes each.
    BF16,
    /// 4 bytes each: words of packed codes.
    U32,
    /// 1 byte each: packed codes and their scales.
    U8,
    /// Defined, and of no use in a model that is served here.
    Other(&'static str, u64),
}

/// The names that are defined and not used here, with their bits.
const OTHERS: [(&str, u64); 15] = [
    ("BOOL", 8),
    ("I8", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("F8_E4M3", 8),
    ("F8_E5M2", 8),
    ("F8_E8M0", 8),
    ("I16", 16),
    ("U16", 16),
    ("I32", 32),
    ("I64", 64),
    ("U64", 64),
    ("F64", 64),
    ("C64", 64),
];

impl Dtype {
    /// `None` where none is defined.
    pub(in crate::model::load) fn named(name: &str) -> Option<Self> {
        let used = [Self::F32, Self::F16, Self::BF16, Self::U32, Self::U8];
        let others = OTHERS.into_iter().map(|(name, bits)| Self::Other(name, bits));
        used.into_iter().chain(others).find(|dtype| dtype.name() == name)
    }

    pub(in crate::model::load) fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::U32 => "U32",
            Self::U8 => "U8",
            Self::Other(name, _) => name,
        }
    }

    /// Bits of an element.
    pub(in crate::model::load) fn bits(self) -> u64 {
        match self {
            Self::F32 | Self::U32 => 32,
            Self::F16 | Self::BF16 => 16,
            Self::U8 => 8,
            Self::Other(_, bits) => bits,
        }
    }

    /// The same plain numbers as ggml has them; `None` for anything else.
    pub(in crate::model::load) fn plain(self) -> Option<GgmlType> {
        match self {
            Self::F32 => Some(GgmlType::F32),
            Self::F16 => Some(GgmlType::F16),
            Self::BF16 => Some(GgmlType::BF16),
            Self::U32 | Self::U8 | Self::Other(..) => None,
        }
    }
}
