//! Whether weights are numbers. With one that is none, NaN or infinite, no logit is one either.
//!
//! They are looked at while they are packed, where they are in the processor's cache anyway; of
//! quantised ones only the scales. Packed weights that were kept have been looked at.

use half::{bf16, f16};

use super::LoadError;

/// Bits of the exponents, which are all set in what is no finite number.
const F16_EXPONENT: u16 = 0x7c00;
const BF16_EXPONENT: u16 = 0x7f80;

/// Weights or scales of a tensor.
pub(super) fn numbers(tensor: &str, numbers: &[f32]) -> Result<(), LoadError> {
    check(tensor, numbers, |number| number.is_finite(), |number| number)
}

/// Bits of 16-bit floats.
pub(super) fn halves(tensor: &str, bits: &[u16]) -> Result<(), LoadError> {
    let number = |bits| f16::from_bits(bits).to_f32();
    check(tensor, bits, |bits| bits & F16_EXPONENT != F16_EXPONENT, number)
}

/// Bits of the upper halves of floats.
pub(super) fn brain_halves(tensor: &str, bits: &[u16]) -> Result<(), LoadError> {
    let number = |bits| bf16::from_bits(bits).to_f32();
    check(tensor, bits, |bits| bits & BF16_EXPONENT != BF16_EXPONENT, number)
}

fn check<T: Copy>(
    tensor: &str,
    weights: &[T],
    is_finite: impl Fn(T) -> bool,
    number: impl Fn(T) -> f32,
) -> Result<(), LoadError> {
    // Without an early end it is done many at a time.
    if weights.iter().fold(true, |all, &weight| all & is_finite(weight)) {
        return Ok(());
    }
    let found = weights.iter().find(|&&weight| !is_finite(weight));
    let found = found.map_or(f32::NAN, |&weight| number(weight)).to_string();
    Err(LoadError::NotFinite { tensor: tensor.into(), found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_finite_number_is_refused_in_every_width() {
        for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = LoadError::NotFinite { tensor: "t".into(), found: number.to_string() };
            assert_eq!(numbers("t", &[0.0, number, 1.0]), Err(error.clone()));
            assert_eq!(halves("t", &[0, f16::from_f32(number).to_bits()]), Err(error.clone()));
            assert_eq!(brain_halves("t", &[bf16::from_f32(number).to_bits()]), Err(error));
        }
    }

    #[test]
    fn every_finite_number_passes() {
        assert_eq!(numbers("t", &[f32::MAX, f32::MIN, -0.0, f32::MIN_POSITIVE / 2.0]), Ok(()));
        assert_eq!(halves("t", &[f16::MAX, f16::MIN, f16::ZERO].map(f16::to_bits)), Ok(()));
        assert_eq!(brain_halves("t", &[bf16::MAX, bf16::MIN].map(bf16::to_bits)), Ok(()));
        assert_eq!(numbers("t", &[]), Ok(()));
    }
}
