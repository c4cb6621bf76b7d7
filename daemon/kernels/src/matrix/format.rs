//! How the weights of a matrix are kept.

use crate::code::{BLOCK, Code};
use crate::convert::f32_from_e4m3;
use crate::lanes::LANES;
use crate::table::Table;

/// How the weights of a matrix are kept.
///
/// All but plain numbers have scales, and minima or none, for each `group`: 16, 32, 64 or 128
/// consecutive `k`, which divide `K`; and `K` is a multiple of 32. Scales and minima take 4 bytes
/// each, or 2 where each of a matrix is an f16, or each a bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 4 bytes each.
    F32,
    /// 2 bytes each.
    F16,
    /// 2 bytes each.
    BF16,
    /// `value[n][k] = fma(q, scale, min)`: 2, 4 or 8 bits each.
    Affine {
        /// What the integers are.
        code: Code,
        /// Consecutive `k` that share a scale.
        group: usize,
        /// Whether each group has a minimum; it is 0 otherwise.
        min: bool,
    },
    /// `value[n][k] = table[code] * scale`: 4 bits each.
    Table {
        /// What the codes stand for.
        table: Table,
        /// Consecutive `k` that share a scale.
        group: usize,
    },
    /// `value[n][k] = number * scale`: a byte each, floats with four bits of exponent and three of
    /// mantissa. Products take them as plain numbers under every numerics.
    E4M3 {
        /// Consecutive `k` that share a scale.
        group: usize,
    },
}

/// How codes are kept, and what they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coded {
    pub(crate) code: Code,
    pub(crate) values: Values,
    pub(crate) group: usize,
}

/// What codes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Integers, but for their zero point.
    Integers,
    /// Numbers of a table's entries.
    Entries(Table),
    /// Bits of an 8-bit float.
    Floats,
}

impl Format {
    /// How its codes are read, unless they are plain numbers.
    #[inline(always)]
    pub(crate) fn coded(self) -> Option<Coded> {
        let (code, values, group) = match self {
            Format::F32 | Format::F16 | Format::BF16 => return None,
            Format::Affine { code, group, .. } => (code, Values::Integers, group),
            Format::Table { table, group } => (Table::KEPT, Values::Entries(table), group),
            Format::E4M3 { group } => (Code { bits: 8, zero: 0 }, Values::Floats, group),
        };
        Some(Coded { code, values, group })
    }

    /// Bytes of the weights of a tile, its scales aside.
    pub(super) fn tile_bytes(self, k: usize) -> usize {
        match self.coded() {
            Some(Coded { code, .. }) => k / BLOCK * code.block_bytes(),
            None if self == Format::F32 => k * LANES * 4,
            None => k * LANES * 2,
        }
    }

    /// How many `k` groups have a scale, and how many have a minimum.
    #[inline(always)]
    pub(super) fn groups(self, k: usize) -> (usize, usize) {
        let scales = self.coded().map_or(0, |coded| k / coded.group);
        (scales, if self.has_min() { scales } else { 0 })
    }

    pub(super) fn has_min(self) -> bool {
        matches!(self, Format::Affine { min: true, .. })
    }

    pub(super) fn check(self, k: usize) {
        if let Some(Coded { code, group, .. }) = self.coded() {
            code.check();
            assert!(matches!(group, 16 | 32 | 64 | 128), "groups of 16 to 128, not {group}");
            assert!(k.is_multiple_of(group.max(BLOCK)), "groups of {group} in rows of {k}");
        }
    }
}

impl Coded {
    /// The code of row `lane` and `k` of a block, before it is scaled.
    pub(super) fn number(self, block: &[u8], lane: usize, k: usize) -> f32 {
        match self.values {
            Values::Floats => f32_from_e4m3(self.code.get(block, lane, k)),
            _ => self.integer(block, lane, k) as f32,
        }
    }

    /// The integer of row `lane` and `k` of a block.
    ///
    /// # Panics
    /// When it is no integer.
    pub(super) fn integer(self, block: &[u8], lane: usize, k: usize) -> i32 {
        let code = self.code.get(block, lane, k);
        match self.values {
            Values::Integers => i32::from(code) - i32::from(self.code.zero),
            Values::Entries(table) => i32::from(table.integers()[usize::from(code)]),
            Values::Floats => panic!("the integer of a float"),
        }
    }
}
