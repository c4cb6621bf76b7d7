//! Our own `exp` in f32, and `exp`, `ln`, `sin`, `cos` in f64.
//!
//! The system's routines give other bits on other machines, and a numerics version that two
//! machines share must not. The f32 functions are branch-free so that they vectorise; the f64 ones
//! run once per row or at load and are plain series.

/// `exp(x)` within 1.5 ulp; exactly 1 at 0, 0 below the smallest normal result, `inf` above the
/// largest, NaN for NaN.
///
/// The argument is split as `n ln 2 + r` with `|r| <= ln 2 / 2`; `2^n` is applied in two steps
/// because `n = 128` has no f32.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (p, n) = split_exp(x);
    let half = n >> 1;
    let result = p * power_of_two(half) * power_of_two(n.wrapping_sub(half));
    let result = if x > EXP_MAX { f32::INFINITY } else { result };
    if x < EXP_MIN { 0.0 } else { result }
}

/// The bits of [`exp`] where `x` is at most 0, with a third fewer operations: no power of two is too
/// large for an f32.
#[inline(always)]
pub fn exp_nonpositive(x: f32) -> f32 {
    let (p, n) = split_exp(x);
    if x < EXP_MIN { 0.0 } else { p * power_of_two(n) }
}

/// `(p, n)` with `exp(x) = p 2^n` and `p` near 1.
#[inline(always)]
fn split_exp(x: f32) -> (f32, i32) {
    /// 1.5 * 2^23: adding it rounds to an integer, to nearest even, held in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts, the first short enough that `n * LN2_HI` is exact.
    const LN2_HI: f32 = 0.693_145_75;
    const LN2_LO: f32 = 1.428_606_8e-6;

    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = (-n).mul_add(LN2_HI, x);
    let r = (-n).mul_add(LN2_LO, r);
    let mut q = 0.001_395_054_f32;
    for c in [0.008_368_918, 0.041_666_206, 0.166_665_18, 0.5] {
        q = q.mul_add(r, c);
    }
    let p = (q * r).mul_add(r, r) + 1.0;
    (p, (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// The largest argument of [`exp`] with a finite result.
const EXP_MAX: f32 = 88.722_83;
/// The smallest argument of [`exp`] with a normal result.
const EXP_MIN: f32 = -87.336_54;

/// `2^n` for `-126 <= n <= 127`; some number for any other.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `tanh(x)` within 2 ulp, exact at 0 and at the ends.
///
/// A minimax fit of `(tanh(x) / x - 1) / x^2` near 0, where the quotient of exponentials would
/// cancel, and that quotient elsewhere.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let square = x * x;
    let mut p = -0.005_717_021_4_f32;
    for c in [0.020_650_564, -0.053_743_49, 0.133_314_91, -0.333_332_84] {
        p = p.mul_add(square, c);
    }
    let near = (p * square).mul_add(x, x);
    let far = (1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.625 { near } else { far }
}

/// The upper tail of the normal distribution, `erfc(a / sqrt 2) / 2`, for `a >= 0`, to a relative
/// 1e-7 plus the rounding of `exp(-a^2 / 2)`.
///
/// The tail over its envelope is smooth in `t = 1 / (1 + 0.21 a)`; the coefficients are a minimax
/// fit of that ratio on `0 <= a <= 14`.
#[inline(always)]
pub fn normal_tail(a: f32) -> f32 {
    let t = 1.0 / 0.21_f32.mul_add(a, 1.0);
    let mut p = -0.071_656_22_f32;
    for c in [
        0.283_588,
        -0.330_251_95,
        0.349_399_1,
        -0.093_923_666,
        0.124_871_99,
        0.069_192_38,
        0.085_068_83,
        0.083_711_58,
    ] {
        p = p.mul_add(t, c);
    }
    p * t * exp(-0.5 * a * a)
}

/// `ln(x)` for a positive normal `x`, to about 1e-16 relative.
pub fn ln_f64(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let mut sum = 0.0;
    for k in (0..14).rev() {
        sum = sum * (s * s) + 1.0 / f64::from(2 * k + 1);
    }
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * sum
}

/// `exp(x)` for `|x| < 700`, to about 1e-15 relative.
pub fn exp_f64(x: f64) -> f64 {
    let n = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = (x - n * LN2_HI_F64) - n * LN2_LO_F64;
    let mut sum = 1.0;
    for k in (1..=14).rev() {
        sum = sum * r / f64::from(k) + 1.0;
    }
    sum * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

/// ln 2 to 33 bits, and the rest.
const LN2_HI_F64: f64 = 0.693_147_180_485_539_1;
const LN2_LO_F64: f64 = 7.440_617_110_012_397e-11;

/// `(sin x, cos x)` to about 1e-15 absolute for `|x| < 2^20`, 1e-10 up to `2^30`.
pub fn sin_cos_f64(x: f64) -> (f64, f64) {
    let n = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = ((x - n * PIO2_1) - n * PIO2_2) - n * PIO2_3;
    let (sin, cos) = (sin_series(r), cos_series(r));
    match (n as i64) & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// pi / 2 in three parts; the first two have 33 bits, so that `n` times them is exact up to
/// `n = 2^20`.
const PIO2_1: f64 = 1.570_796_326_734_125_6;
const PIO2_2: f64 = 6.077_100_506_303_966e-11;
const PIO2_3: f64 = 2.022_266_248_795_950_6e-21;

/// Taylor's series of the sine for `|r| <= pi / 4`.
fn sin_series(r: f64) -> f64 {
    let mut sum = 1.0;
    for k in (1..=9).rev() {
        sum = 1.0 - sum * r * r / f64::from(2 * k * (2 * k + 1));
    }
    r * sum
}

/// Taylor's series of the cosine for `|r| <= pi / 4`.
fn cos_series(r: f64) -> f64 {
    let mut sum = 1.0;
    for k in (1..=9).rev() {
        sum = 1.0 - sum * r * r / f64::from(2 * k * (2 * k - 1));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the last place of the wanted result.
    fn ulps(got: f32, want: f64) -> f64 {
        let unit = f64::from(want as f32) - f64::from((want as f32).next_down());
        (f64::from(got) - want).abs() / unit
    }

    #[test]
    fn exp_is_within_two_ulp_over_its_whole_range() {
        let steps = 2_000_000;
        let mut worst = 0.0_f64;
        for i in 0..=steps {
            let x = EXP_MIN + (EXP_MAX - EXP_MIN) * (i as f32 / steps as f32);
            worst = worst.max(ulps(exp(x), f64::from(x).exp()));
        }
        assert!(worst < 1.5, "{worst} ulp");
    }

    #[test]
    fn exp_nonpositive_has_the_bits_of_exp() {
        let ends = [0.0, -0.0, EXP_MIN, EXP_MIN.next_down(), f32::MIN, f32::NEG_INFINITY];
        let spread = (0..1 << 20).map(|i: u32| -f32::from_bits(i * 1_153));
        for x in ends.into_iter().chain(spread) {
            assert_eq!(exp_nonpositive(x).to_bits(), exp(x).to_bits(), "{x}");
        }
        assert!(exp_nonpositive(f32::NAN).is_nan());
    }

    #[test]
    fn exp_is_exact_where_the_kernels_rely_on_it() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(-88.0).to_bits(), 0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert!(exp(EXP_MAX).is_finite());
        assert!(exp(EXP_MIN) >= f32::MIN_POSITIVE);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_within_two_ulp_and_holds_at_the_ends() {
        let mut worst = 0.0_f64;
        for i in -400_000..=400_000 {
            let x = i as f32 / 40_000.0;
            worst = worst.max(if x == 0.0 { 0.0 } else { ulps(tanh(x), f64::from(x).tanh()) });
        }
        assert!(worst < 2.0, "{worst} ulp");
        for x in [0.0, -1e-30, f32::MIN_POSITIVE] {
            assert_eq!(tanh(x), x);
        }
        assert_eq!((tanh(f32::INFINITY), tanh(f32::MIN)), (1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn double_precision_functions_agree_with_the_systems() {
        for i in 1..20_000 {
            let x = f64::from(i) * 0.37;
            assert!((ln_f64(x) - x.ln()).abs() <= 4e-16 * x.ln().abs().max(1.0), "ln {x}");
            let y = (x - 3_700.0) / 10.0;
            assert!((exp_f64(y) / y.exp() - 1.0).abs() < 2e-15, "exp {y}");
            for angle in [x, -x, x * 100.0] {
                let (sin, cos) = sin_cos_f64(angle);
                assert!((sin - angle.sin()).abs() < 1e-15, "sin {angle}");
                assert!((cos - angle.cos()).abs() < 1e-15, "cos {angle}");
            }
        }
    }

    /// Bits that every machine must produce: the numerics version stands for them.
    #[test]
    fn the_bits_are_the_same_on_every_machine() {
        let mut digest = 0_u64;
        let mut add = |bits: u64| digest = (digest.rotate_left(5) ^ bits).wrapping_mul(0x9e37_79b9);
        for i in 0..100_000 {
            let x = (i - 50_000) as f32 * 0.00177;
            add(u64::from(exp(x).to_bits()));
            add(u64::from(normal_tail(x.abs()).to_bits()));
            add(ln_f64(f64::from(i + 1)).to_bits());
            add(exp_f64(f64::from(x)).to_bits());
            add(sin_cos_f64(f64::from(i)).0.to_bits());
        }
        assert_eq!(digest, 12_147_884_642_212_279_699);
    }
}
