//! Unpacked blocks against candle's dequantiser, and where it has none against the definition.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::num::NonZeroUsize;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, ggml_file::qtensor_from_ggml};
use half::f16;
use proptest::prelude::*;
use tinygpt_kernels::{Matrix, Pool, heap};

use super::*;

/// Every quantised type that the oracle has, its name for it, and where its f16 fields lie in a
/// block.
const TYPES: [(GgmlType, GgmlDType, &[usize]); 10] = [
    (GgmlType::Q8_0, GgmlDType::Q8_0, &[0]),
    (GgmlType::Q4_0, GgmlDType::Q4_0, &[0]),
    (GgmlType::Q4_1, GgmlDType::Q4_1, &[0, 2]),
    (GgmlType::Q5_0, GgmlDType::Q5_0, &[0]),
    (GgmlType::Q5_1, GgmlDType::Q5_1, &[0, 2]),
    (GgmlType::Q2_K, GgmlDType::Q2K, &[80, 82]),
    (GgmlType::Q3_K, GgmlDType::Q3K, &[108]),
    (GgmlType::Q4_K, GgmlDType::Q4K, &[0, 2]),
    (GgmlType::Q5_K, GgmlDType::Q5K, &[0, 2]),
    (GgmlType::Q6_K, GgmlDType::Q6K, &[208]),
];

/// The largest block of them, in bytes.
const LARGEST: usize = 210;

fn check(dtype: GgmlType, oracle: GgmlDType, bytes: &[u8]) {
    let Affine { q, scale, min } = Affine::unpack(dtype, bytes).unwrap();
    let expected = qtensor_from_ggml(oracle, bytes, vec![q.len()], &Device::Cpu).unwrap();
    let expected: Vec<f32> = expected.dequantize(&Device::Cpu).unwrap().to_vec1().unwrap();
    for (i, (&q, expected)) in q.iter().zip(expected).enumerate() {
        let (scale, min) = (scale[i / dtype.group()], min[i / dtype.group()]);
        let value = f32::from(q).mul_add(scale, min);
        let size = (f32::from(q) * scale).abs() + min.abs();
        let error = (value - expected).abs();
        assert!(error <= 1e-6 * size, "{dtype:?} element {i}: {value}, expected {expected}");
        assert!(dtype.has_min() || min == 0.0, "{dtype:?} has minima");
    }
}

proptest! {
    #[test]
    fn random_blocks_of_every_type_have_the_oracles_values(
        seed in proptest::collection::vec(any::<u8>(), 3 * LARGEST),
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

    #[test]
    fn integers_fit_the_code_of_their_type(
        seed in proptest::collection::vec(any::<u8>(), LARGEST),
    ) {
        for id in 0..64 {
            let Some(dtype) = GgmlType::from_id(id) else { continue };
            let Some(Code { bits, zero }) = dtype.code() else { continue };
            let codes = Affine::unpack(dtype, &seed[..dtype.block_bytes()]).unwrap().q;
            let mut codes = codes.into_iter().map(|q| i16::from(q) + i16::from(zero));
            prop_assert!(codes.all(|code| (0..1 << bits).contains(&code)), "{dtype:?}");
        }
    }
}

/// The values of a row of one block, as a matrix has them.
fn values(dtype: GgmlType, block: &[u8]) -> Vec<f32> {
    let pool = Pool::new(NonZeroUsize::MIN);
    let fill = |_, tile: &mut Tile<'_>| fill("t", dtype, block, tile);
    let matrix =
        Matrix::build(&pool, &heap, 1, dtype.block(), dtype.format().unwrap(), fill).unwrap();
    let mut values = vec![0.0; dtype.block()];
    matrix.row(0, &mut values);
    values
}

/// Every code once in each half of a block, and the codes in their order.
fn every_code() -> ([u8; 16], Vec<u8>) {
    let bytes = std::array::from_fn(|i| i as u8 | (15 - i as u8) << 4);
    (bytes, (0..16).chain((0..16).rev()).collect())
}

#[test]
fn codes_of_iq4_nl_stand_for_its_table() {
    let (bytes, codes) = every_code();
    let block = [&f16::from_f32(0.5).to_le_bytes()[..], &bytes].concat();
    let table = Table::IQ4NL.integers().map(|value| f32::from(value) * 0.5);
    let expected: Vec<f32> = codes.into_iter().map(|code| table[usize::from(code)]).collect();
    assert_eq!(values(GgmlType::IQ4_NL, &block), expected);
}

#[test]
fn codes_of_mxfp4_are_floats_of_four_bits() {
    // Sign, two bits of exponent with bias 1, one of mantissa.
    let float = |code: u8| {
        let (exponent, mantissa) = (code >> 1 & 3, f32::from(code & 1));
        let size = match exponent {
            0 => mantissa / 2.0,
            _ => (1.0 + mantissa / 2.0) * f32::powi(2.0, i32::from(exponent) - 1),
        };
        if code & 8 == 0 { size } else { -size }
    };
    let (bytes, codes) = every_code();
    for exponent in [0, 1, 2, 127, 130, 252] {
        let block = [&[exponent][..], &bytes].concat();
        let power = f64::powi(2.0, i32::from(exponent) - 127);
        let expected = codes.iter().map(|&code| (power * f64::from(float(code))) as f32);
        assert_eq!(values(GgmlType::MXFP4, &block), expected.collect::<Vec<_>>(), "{exponent}");
    }
}

#[test]
fn iq4_xs_has_a_scale_of_six_bits_for_every_32_elements() {
    // d is 2, the scales are 32 + j, every code stands for 1.
    let scales: Vec<u8> = (0..8).map(|j| 32 + j).collect();
    let high = (0..8).fold(0u16, |high, j| high | u16::from(scales[j] >> 4) << (2 * j));
    let low: Vec<u8> = scales.chunks(2).map(|pair| pair[0] & 15 | pair[1] << 4).collect();
    let d = f16::from_f32(2.0).to_le_bytes();
    let block = [&d[..], &high.to_le_bytes(), &low, &[0x88; 128]].concat();
    let expected: Vec<f32> = (0..256).map(|i| (2 * (i / 32)) as f32).collect();
    assert_eq!(values(GgmlType::IQ4_XS, &block), expected);
}

#[test]
fn every_type_has_the_oracles_block_size() {
    for (dtype, oracle, _) in TYPES {
        assert_eq!(dtype.block_bytes(), oracle.type_size(), "{dtype:?}");
        assert_eq!(dtype.block(), oracle.block_size(), "{dtype:?}");
    }
    assert_eq!(GgmlType::from_id(4), None);
}
