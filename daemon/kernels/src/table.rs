//! Codes of 4 bits that stand for the integers of a table.
//!
//! Such a weight is `table[code] * scale`. A lookup of sixteen entries is one shuffle of bytes on
//! every processor, and what it gives are codes with a zero point ([`Table::code`]): products know
//! no tables.

use crate::code::{Code, Step};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Kind;

/// Sixteen small integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Twice the 4-bit floats with two bits of exponent and one of mantissa, of MXFP4 and NVFP4:
    /// their scales are halved. Negative zero is 0.
    E2M1,
    /// llama.cpp's IQ4_NL.
    IQ4NL,
}

impl Table {
    /// What the codes stand for.
    pub fn integers(self) -> [i8; 16] {
        match self {
            Table::E2M1 => [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12],
            Table::IQ4NL => {
                [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
            }
        }
    }

    /// What the codes are as they are kept.
    pub(crate) const KEPT: Code = Code { bits: 4, zero: 0 };

    /// What they are once they are looked up.
    pub(crate) fn code(self) -> Code {
        match self {
            Table::E2M1 => Code { bits: 5, zero: 12 },
            Table::IQ4NL => Code { bits: 8, zero: 128 },
        }
    }

    /// The codes that stand for the integers.
    pub(crate) fn entries(self) -> [u8; 16] {
        self.integers().map(|q| self.code().of(q))
    }

    /// Looks up codes that lie one to a byte.
    pub(crate) fn look_up(self, isa: Isa, steps: &mut [Step]) {
        let entries = self.entries();
        let bytes = steps.as_flattened_mut();
        match isa.0 {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "calls an instantiation for detected features")]
            // SAFETY: an `Isa` of these kinds only comes from `all`, which has looked.
            Kind::Avx2 | Kind::Vnni => unsafe { avx2(entries, bytes) },
            #[cfg(target_arch = "aarch64")]
            _ => neon(entries, bytes),
            #[cfg(not(target_arch = "aarch64"))]
            _ => bytes.iter_mut().for_each(|byte| *byte = entries[usize::from(*byte & 15)]),
        }
    }
}

/// Whole steps of codes below 16.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(entries: [u8; 16], bytes: &mut [u8]) {
    use std::arch::x86_64::*;

    let table = _mm256_broadcastsi128_si256(bytemuck::cast(entries));
    for bytes in bytes.as_chunks_mut::<32>().0 {
        *bytes = bytemuck::cast(_mm256_shuffle_epi8(table, bytemuck::cast(*bytes)));
    }
}

/// Whole steps of codes below 16.
#[cfg(target_arch = "aarch64")]
fn neon(entries: [u8; 16], bytes: &mut [u8]) {
    use std::arch::aarch64::*;

    for bytes in bytes.as_chunks_mut::<16>().0 {
        // SAFETY: every aarch64 processor that this is built for has NEON.
        #[expect(unsafe_code, reason = "one instruction of the baseline")]
        let looked_up = unsafe { vqtbl1q_u8(bytemuck::cast(entries), bytemuck::cast(*bytes)) };
        *bytes = bytemuck::cast(looked_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::isas;

    #[test]
    fn every_code_is_looked_up_in_every_instantiation() {
        for table in [Table::E2M1, Table::IQ4NL] {
            for isa in isas() {
                let mut steps = [std::array::from_fn::<u8, 64, _>(|i| (i * 7 % 16) as u8); 3];
                table.look_up(isa, &mut steps);
                for (i, byte) in steps.as_flattened().iter().enumerate() {
                    let q = i16::from(*byte) - i16::from(table.code().zero);
                    assert_eq!(q, i16::from(table.integers()[i % 64 * 7 % 16]), "{isa:?}");
                }
            }
        }
    }

    #[test]
    fn the_small_floats_are_twice_what_their_bits_say() {
        for code in 0..16_u8 {
            let (exponent, mantissa) = (i32::from(code >> 1 & 3), f32::from(code & 1));
            let size = match exponent {
                0 => mantissa / 2.0,
                _ => (1.0 + mantissa / 2.0) * 2.0_f32.powi(exponent - 1),
            };
            let sign = if code < 8 { 1.0 } else { -1.0 };
            let q = Table::E2M1.integers()[usize::from(code)];
            assert_eq!(f32::from(q), 2.0 * sign * size, "{code}");
        }
    }
}
