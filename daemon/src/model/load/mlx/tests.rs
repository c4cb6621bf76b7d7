//! Every scheme against what mlx makes of the same bytes, and configs that ask for others.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use serde_json::{Value, json};
use tinygpt_kernels::{Matrix, Pool, heap};

use super::scheme::unpacked;
use super::*;
use crate::model::load::LoadError;
use crate::model::load::safetensors::{self, Dtype, Tensor};

/// Arbitrary codes and scales of every scheme, and the numbers that mlx makes of them.
const SCHEMES: &[u8] = include_bytes!("../../../../../tests/golden/mlx/schemes.safetensors");

struct Golden(BTreeMap<String, Tensor>);

impl Golden {
    fn new() -> Self {
        Self(safetensors::parse(SCHEMES, SCHEMES.len()).unwrap())
    }

    fn bytes(&self, name: &str) -> &'static [u8] {
        &SCHEMES[self.0[name].range.clone()]
    }

    fn stored(&self, name: &str) -> ScaleType {
        match self.0[name].dtype {
            Dtype::F16 => ScaleType::F16,
            Dtype::BF16 => ScaleType::BF16,
            Dtype::U8 => ScaleType::U8,
            other => panic!("{other:?}"),
        }
    }
}

fn pool() -> Pool {
    Pool::new(NonZeroUsize::MIN)
}

fn scheme(said: Value) -> Result<Scheme, LoadError> {
    Scheme::read("quantization", said.as_object().unwrap())
}

fn refusal(said: Value) -> String {
    Quantization::of(|key| said.get(key)).unwrap_err().to_string()
}

/// The numbers of a module `[2][128]` in a scheme.
fn dequantised(golden: &Golden, scheme: Scheme, module: &str, kind: &str) -> Vec<u32> {
    let (n, k) = (2, 128);
    let part = |part: &str| golden.bytes(&format!("{module}.{kind}.{part}"));
    let stored = golden.stored(&format!("{module}.{kind}.scales"));
    let biases = if scheme.has_biases() { part("biases") } else { &[] };
    let parts =
        Parts { weight: golden.bytes(&format!("{module}.weight")), scales: part("scales"), biases };
    let matrix = Matrix::build(&pool(), &heap, n, k, scheme.format(), |_, tile| {
        scheme.fill(module, parts, stored, tile)
    });
    let (matrix, mut row) = (matrix.unwrap(), vec![f32::NAN; k]);
    (0..n)
        .flat_map(|n| {
            matrix.row(n, &mut row);
            // Negative zeros are zeros here.
            row.iter().map(|x| (x + 0.0).to_bits()).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn every_scheme_has_the_numbers_that_mlx_has_bit_for_bit() {
    let golden = Golden::new();
    let values = golden.0.keys().filter_map(|name| name.strip_suffix(".values"));
    let mut checked = 0;
    for (module, kind) in values.filter_map(|name| name.split_once('.')) {
        let [mode, bits, group] = module.split('-').collect::<Vec<_>>()[..] else { panic!() };
        let number = |text: &str| text.parse::<u64>().unwrap();
        let said = json!({"mode": mode, "bits": number(bits), "group_size": number(group)});
        let scheme = scheme(said).unwrap();
        let name = format!("{module}.{kind}.values");
        let words = golden.bytes(&name).as_chunks().0.iter();
        let want: Vec<u32> =
            words.map(|word| (f32::from_le_bytes(*word) + 0.0).to_bits()).collect();
        assert_eq!(dequantised(&golden, scheme, module, kind), want, "{name}");
        let tensor = |part: &str| golden.0[&format!("{module}.{part}")].shape[1];
        let (widths, scales) = (
            (tensor("weight"), tensor(&format!("{kind}.scales"))),
            format!("{module}.{kind}.scales"),
        );
        let inferred = Scheme::inferred("x", 128, widths, golden.stored(&scales));
        assert_eq!(inferred.unwrap(), scheme, "{name}");
        checked += 1;
    }
    assert_eq!(checked, 2 * 6 * 3 + 3);
}

#[test]
fn codes_of_every_width_come_out_of_a_stream_in_order() {
    for bits in [2_u8, 3, 4, 5, 6, 8] {
        let codes: Vec<u8> = (0..32).map(|i| (i * 29 % (1 << bits)) as u8).collect();
        let mut stream = vec![0_u8; 4 * usize::from(bits)];
        for (i, code) in codes.iter().enumerate() {
            for bit in (0..usize::from(bits)).filter(|bit| code >> bit & 1 == 1) {
                let at = i * usize::from(bits) + bit;
                stream[at / 8] |= 1 << (at % 8);
            }
        }
        assert_eq!(unpacked(bits, &stream), codes, "{bits} bits");
    }
}

#[test]
fn a_module_has_its_own_scheme_or_none_or_what_its_shapes_tell() {
    let config = json!({"quantization": {
        "bits": 4, "group_size": 64,
        "a": {"bits": 8}, "b": false, "c": {"mode": "mxfp4"},
    }});
    let said = Quantization::of(|key| config.get(key)).unwrap().unwrap();
    let own = |own| Choice::Quantised(scheme(own).unwrap());
    assert_eq!(said.choice("a"), own(json!({"bits": 8, "group_size": 64})));
    assert_eq!(said.choice("b"), Choice::Plain);
    assert_eq!(said.choice("c"), own(json!({"bits": 4, "group_size": 32, "mode": "mxfp4"})));
    assert_eq!(said.choice("d"), Choice::Unsaid);
    assert_eq!(said.name(), "affine 4 bits, groups of 64");
    for nothing in [json!({}), json!({"quantization": null, "quantization_config": null})] {
        assert_eq!(Quantization::of(|key| nothing.get(key)).unwrap(), None);
    }
}

#[test]
fn what_cannot_be_is_refused_by_the_name_of_its_key() {
    let global = |more: Value| {
        let mut said = json!({"bits": 4, "group_size": 64});
        said.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"quantization_config": said})
    };
    for (more, words) in [
        (json!({"bits": 7}), "quantization_config.bits"),
        (json!({"bits": "4"}), "quantization_config.bits"),
        (json!({"group_size": 48}), "quantization_config.group_size"),
        (json!({"mode": "nf4"}), "quantization_config.mode"),
        (json!({"mode": "mxfp8", "group_size": 32}), "8 for mode mxfp8"),
        (json!({"mode": "nvfp4", "group_size": 32}), "16 for mode nvfp4"),
        (json!({"quant_method": "gptq"}), "quantization_config.quant_method"),
        (json!({"x": {"bits": 1}}), "quantization_config.x.bits"),
        (json!({"x": {"scale": 1}}), "quantization_config.x.scale"),
        (json!({"x": true}), "quantization_config.x"),
        (json!({"linear_class": "bitnet"}), "quantization_config.linear_class"),
    ] {
        let refusal = refusal(global(more.clone()));
        assert!(refusal.contains(words), "{more}: {refusal}");
    }
    assert!(refusal(json!({"quantization": 4})).contains("\"quantization\""));
    assert!(refusal(json!({"quantization": {"bits": 4}})).contains("quantization.group_size"));
    let none = Scheme::inferred("x", 128, (28, 2), ScaleType::BF16).unwrap_err().to_string();
    assert!(none.contains("\"x\"") && none.contains("28 words"), "{none}");
    assert!(Scheme::inferred("x", 128, (16, 4), ScaleType::BF16).is_ok());
    assert!(Scheme::inferred("x", 128, (16, 2), ScaleType::U8).is_err());
}
