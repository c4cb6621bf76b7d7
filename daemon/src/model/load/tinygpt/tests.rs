//! Files made by hand, true ones and lying ones.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::num::NonZeroUsize;

use proptest::prelude::*;
use serde_json::{Value, json};
use tinygpt_kernels::Pool;

use super::*;
use crate::kv::layout::Window;
use crate::model::load::{BUILTIN, ExpertsConfig, Gelu, load};

fn pool() -> Pool {
    Pool::new(NonZeroUsize::MIN)
}

fn read(bytes: &[u8]) -> Result<GptWeights, LoadError> {
    load(bytes, &pool()).map(|checkpoint| match checkpoint.weights {
        Weights::Gpt(weights) => weights,
        _ => unreachable!("a .tinygpt file"),
    })
}

/// A one-layer model, 2 heads of 64, whose element `i` in stored order is `value(i)`.
struct Sample {
    header: Value,
    elements: usize,
}

const WIDTH: usize = 128;
const MLP: usize = 64;

fn sample(dtype: &str) -> Sample {
    sample_of(dtype, WIDTH, &[("mlp", 1)])
}

/// The same with other shapes: `keys` outputs of keys and values, and MLPs by their names, or one
/// router for so many.
fn sample_of(dtype: &str, keys: usize, mlps: &[(&str, usize)]) -> Sample {
    let mut shapes: Vec<(String, Vec<usize>)> = Vec::new();
    let outer: [(&str, &[usize]); 16] = [
        ("token_embedding.weight", &[256, WIDTH]),
        ("position_embedding.weight", &[3, WIDTH]),
        ("ln_final.weight", &[WIDTH]),
        ("ln_final.bias", &[WIDTH]),
        ("blocks.0.ln1.weight", &[WIDTH]),
        ("blocks.0.ln1.bias", &[WIDTH]),
        ("blocks.0.attn.q_proj.weight", &[WIDTH, WIDTH]),
        ("blocks.0.attn.q_proj.bias", &[WIDTH]),
        ("blocks.0.attn.k_proj.weight", &[keys, WIDTH]),
        ("blocks.0.attn.k_proj.bias", &[keys]),
        ("blocks.0.attn.v_proj.weight", &[keys, WIDTH]),
        ("blocks.0.attn.v_proj.bias", &[keys]),
        ("blocks.0.attn.o_proj.weight", &[WIDTH, WIDTH]),
        ("blocks.0.attn.o_proj.bias", &[WIDTH]),
        ("blocks.0.ln2.weight", &[WIDTH]),
        ("blocks.0.ln2.bias", &[WIDTH]),
    ];
    shapes.extend(outer.map(|(name, shape)| (name.to_owned(), shape.to_vec())));
    for (mlp, experts) in mlps {
        let mut add = |part, shape: &[usize]| {
            shapes.push((format!("blocks.0.{mlp}.{part}"), shape.to_vec()));
        };
        if *experts > 1 {
            add("router.weight", &[*experts, WIDTH]);
            continue;
        }
        add("fc_in.weight", &[MLP, WIDTH]);
        add("fc_in.bias", &[MLP]);
        add("fc_out.weight", &[WIDTH, MLP]);
        add("fc_out.bias", &[WIDTH]);
    }
    let mut elements = 0;
    let mut manifest = Vec::new();
    for (name, shape) in shapes {
        manifest.push(json!({"name": name, "shape": shape, "floatOffset": elements}));
        elements += shape.iter().product::<usize>();
    }
    let header = json!({
        "config": {"layers": 1, "heads": 2, "dModel": WIDTH, "dMlp": MLP, "ctx": 3},
        "manifest": manifest,
        "weightDtype": dtype,
        "includesOptimizerState": dtype == "fp32",
    });
    Sample { header, elements }
}

fn value(index: usize) -> f32 {
    (index % 1021) as f32 / 64.0 - 8.0
}

impl Sample {
    fn body(&self) -> Vec<u8> {
        let values = (0..self.elements).map(value);
        match self.header["weightDtype"].as_str().unwrap() {
            "fp16" => values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect(),
            "int4" => {
                let blocks = self.elements / BLOCK;
                let scales = (0..blocks).flat_map(|b| half(b).to_le_bytes());
                let packed = (0..blocks * BLOCK / 2).map(|at| (at % 251) as u8);
                scales.chain(packed).collect()
            }
            _ => self.triplets(),
        }
    }

    /// Weights, then moments that must not be read as weights.
    fn triplets(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let mut start = 0;
        for entry in self.header["manifest"].as_array().unwrap() {
            let shape = entry["shape"].as_array().unwrap();
            let count: usize = shape.iter().map(|dim| dim.as_u64().unwrap() as usize).product();
            body.extend((start..start + count).flat_map(|i| value(i).to_le_bytes()));
            body.extend((0..2 * count).flat_map(|_| 1e30f32.to_le_bytes()));
            start += count;
        }
        body
    }

    fn file(&self) -> Vec<u8> {
        self.file_with(&self.body())
    }

    fn file_with(&self, body: &[u8]) -> Vec<u8> {
        let json = serde_json::to_vec(&self.header).unwrap();
        let mut file = b"TGPT\x02\0\0\0".to_vec();
        file.extend((json.len() as u32).to_le_bytes());
        file.extend(json);
        file.extend(7i32.to_le_bytes());
        file.extend(body);
        file
    }
}

/// Scale of the `block`-th int4 block of a sample.
fn half(block: usize) -> half::f16 {
    half::f16::from_f32(0.001 + block as f32 / 4096.0)
}

fn int4(index: usize) -> f32 {
    let byte = (index / 2 % 251) as u8;
    let nibble = if index.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
    (f32::from(nibble) - 8.0) * half(index / BLOCK).to_f32()
}

fn row(matrix: &Matrix, row: usize) -> Vec<f32> {
    let mut values = vec![0.0; matrix.k()];
    matrix.row(row, &mut values);
    values
}

fn check(dtype: &str, expected: impl Fn(usize) -> f32) {
    let sample = sample(dtype);
    let weights = read(&sample.file()).unwrap();
    let stored = |from: usize, to: usize, step: usize| {
        (from..to).step_by(step).map(&expected).collect::<Vec<_>>()
    };
    assert_eq!(row(&weights.token_embedding, 5), stored(5 * WIDTH, 6 * WIDTH, 1));
    let positions = 256 * WIDTH;
    assert_eq!(weights.position_embedding, stored(positions, positions + 3 * WIDTH, 1));
    let q = positions + 3 * WIDTH + 4 * WIDTH;
    let block = &weights.blocks[0];
    assert_eq!(row(&block.attention.q.weight, 9), stored(q + 9, q + WIDTH * WIDTH, WIDTH));
    let bias = q + WIDTH * WIDTH;
    assert_eq!(block.attention.q.bias.as_deref(), Some(&*stored(bias, bias + WIDTH, 1)));
    let Mlp::Dense(mlp) = &block.mlp else { panic!("one MLP") };
    let fc_in = q + 4 * (WIDTH * WIDTH + WIDTH) + 2 * WIDTH;
    assert_eq!((mlp.fc_in.weight.n(), mlp.fc_in.weight.k()), (MLP, WIDTH));
    assert_eq!(row(&mlp.fc_in.weight, 63), stored(fc_in + 63, fc_in + WIDTH * MLP, MLP));
}

#[test]
fn linear_weights_of_every_body_are_transposed_and_embeddings_are_not() {
    check("fp32", value);
    check("fp16", value);
    check("int4", int4);
}

#[test]
fn fewer_heads_of_keys_are_read_in_their_own_shape() {
    let mut sample = sample_of("fp32", WIDTH / 2, &[("mlp", 1)]);
    sample.header["config"]["kvHeads"] = json!(1);
    sample.header["config"]["slidingWindow"] = json!(64);
    let weights = read(&sample.file()).unwrap();
    assert_eq!((weights.config.kv_heads, weights.config.window), (1, Window::Sliding(64)));
    let Attention { q, k, v, .. } = &weights.blocks[0].attention;
    assert_eq!([q, k, v].map(|linear| linear.weight.n()), [WIDTH, WIDTH / 2, WIDTH / 2]);
    let k_at = (256 + 3 + 4) * WIDTH + WIDTH * WIDTH + WIDTH;
    let stored = (k_at + 7..k_at + WIDTH * WIDTH / 2).step_by(WIDTH / 2).map(value);
    assert_eq!(row(&k.weight, 7), stored.collect::<Vec<_>>());
    let error = refusal(|sample| sample.header["config"]["kvHeads"] = json!(1)).to_string();
    assert!(error.contains("k_proj") && error.contains("[64, 128]"), "{error}");
}

#[test]
fn experts_are_read_with_their_router() {
    let mut sample =
        sample_of("fp16", WIDTH, &[("moe", 2), ("moe.experts.0", 1), ("moe.experts.1", 1)]);
    sample.header["config"]["nExperts"] = json!(2);
    let experts = |sample: &Sample| {
        let weights = read(&sample.file())?;
        let Mlp::Experts(experts) = weights.blocks.into_iter().next().unwrap().mlp else {
            panic!("experts")
        };
        Ok((weights.config.experts.unwrap(), experts))
    };
    let (config, weights) = experts(&sample).unwrap();
    assert_eq!(config, ExpertsConfig { count: 2, top: 1 });
    assert!(weights.router.bias.is_none());
    assert_eq!((weights.router.weight.n(), weights.router.weight.k()), (2, WIDTH));
    let router = (256 + 3 + 4) * WIDTH + 4 * (WIDTH * WIDTH + WIDTH) + 2 * WIDTH;
    let stored = (router + 1..router + 2 * WIDTH).step_by(2).map(value);
    assert_eq!(row(&weights.router.weight, 1), stored.collect::<Vec<_>>());
    let second = router + 2 * WIDTH + 2 * WIDTH * MLP + MLP + WIDTH;
    let stored = (second..second + MLP * WIDTH).step_by(MLP).map(value);
    assert_eq!(row(&weights.experts[1].fc_in.weight, 0), stored.collect::<Vec<_>>());
    sample.header["config"]["moeTopK"] = json!(2);
    assert_eq!(experts(&sample).unwrap().0.top, 2);
    sample.header["config"]["moeTopK"] = json!(3);
    let error: LoadError = experts(&sample).err().unwrap();
    assert!(error.to_string().contains("moeTopK") && error.to_string().contains('3'), "{error}");
    let error = refusal(|sample| sample.header["config"]["nExperts"] = json!(2)).to_string();
    assert!(error.contains("20") && error.contains("25"), "{error}");
}

#[test]
fn the_built_in_model_has_the_dimensions_it_was_trained_with() {
    let weights = read(BUILTIN).unwrap();
    let expected = GptConfig {
        layers: 6,
        heads: 6,
        kv_heads: 6,
        width: 192,
        mlp: 768,
        context: 1024,
        vocab: 256,
        eps: 1e-5,
        window: Window::Full,
        activation: Gelu::Erf,
        experts: None,
    };
    assert_eq!(weights.config, expected);
}

fn refusal(change: impl FnOnce(&mut Sample)) -> LoadError {
    let mut sample = sample("fp16");
    change(&mut sample);
    read(&sample.file()).unwrap_err()
}

#[test]
fn every_feature_that_changes_the_arithmetic_is_refused_by_name() {
    for (key, setting) in [
        ("nExperts", json!(1u64 << 40)),
        ("kvHeads", json!(0)),
        ("slidingWindow", json!(1u64 << 40)),
        ("tokenizerSource", json!("dir")),
        ("useMoD", json!(true)),
        ("useDifferentialAttention", json!(true)),
        ("useYOCO", json!(true)),
        ("useDeepNorm", json!(true)),
        ("useEmbeddingRMSNorm", json!(true)),
        ("vocabSize", json!(512)),
        ("heads", json!(3)),
        ("layers", json!(0)),
        ("dModel", json!(1u64 << 40)),
    ] {
        let error = refusal(|sample| sample.header["config"][key] = setting.clone());
        let text = error.to_string();
        assert!(text.contains(key) || (key == "heads" && text.contains("dModel")), "{text}");
    }
}

#[test]
fn neutral_settings_of_those_features_are_accepted() {
    let mut sample = sample("fp16");
    for (key, setting) in [
        ("nExperts", json!(1)),
        ("kvHeads", json!(2)),
        ("slidingWindow", Value::Null),
        ("useMoD", json!(false)),
        ("somethingNew", json!({"a": 1})),
    ] {
        sample.header["config"][key] = setting;
    }
    read(&sample.file()).unwrap();
}

#[test]
fn a_lie_about_tensors_names_the_tensor_and_the_numbers() {
    let entry = |sample: &mut Sample, key: &str, value: Value| {
        sample.header["manifest"][6][key] = value;
    };
    let q = || "blocks.0.attn.q_proj.weight".to_owned();
    assert_eq!(
        refusal(|s| entry(s, "name", json!("other"))),
        LoadError::MissingTensor { tensor: q() }
    );
    assert_eq!(
        refusal(|s| entry(s, "name", json!("ln_final.bias"))),
        LoadError::Duplicate { what: "tensor", name: "ln_final.bias".into() }
    );
    assert_eq!(
        refusal(|s| entry(s, "shape", json!([64, 256]))),
        LoadError::Shape { tensor: q(), expected: vec![128, 128], found: vec![64, 256] }
    );
    assert_eq!(
        refusal(|s| entry(s, "shape", json!([1u64 << 40, 1u64 << 40]))),
        LoadError::Overflow { tensor: q(), dims: vec![1 << 40, 1 << 40] }
    );
    let begin = 2 * (u64::from(u32::MAX));
    assert!(matches!(
        refusal(|s| entry(s, "floatOffset", json!(u32::MAX))),
        LoadError::TensorData { begin: found, .. } if found == begin
    ));
    let error = refusal(|s| s.header["manifest"] = json!([]));
    assert!(error.to_string().contains("manifest is 0"), "{error}");
    let error = refusal(|s| s.header["config"]["layers"] = json!(u32::MAX));
    assert!(error.to_string().contains("as 4294967295 layers"), "{error}");
}

#[test]
fn a_body_of_another_size_than_the_layout_needs_is_refused() {
    for dtype in ["fp16", "int4"] {
        let mut file = sample(dtype).file();
        file.push(0);
        assert!(matches!(read(&file), Err(LoadError::BodySize { .. })), "{dtype}");
    }
    let mut trailing = sample("fp32").file();
    trailing.push(0);
    read(&trailing).unwrap();
}

#[test]
fn layouts_that_readers_disagree_about_are_refused() {
    for (dtype, optimizer) in [("fp32", false), ("int4", true), ("bf16", false)] {
        let error = refusal(|sample| {
            sample.header["includesOptimizerState"] = json!(optimizer);
            sample.header["weightDtype"] = json!(dtype);
        });
        let expected = format!("\"{dtype}\" with includesOptimizerState {optimizer}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn a_file_cut_anywhere_is_an_error_and_never_a_panic() {
    let file = sample("fp16").file();
    for length in (0..file.len()).step_by(997).chain(0..32) {
        assert!(read(&file[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn version_one_is_told_to_re_export() {
    let mut file = sample("fp16").file();
    file[4] = 1;
    let error = read(&file).unwrap_err().to_string();
    assert!(error.contains("version 1") && error.contains("re-export"), "{error}");
}

#[test]
fn a_header_longer_than_the_file_is_refused_before_it_is_read() {
    let mut file = sample("fp16").file();
    file[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = read(&file).unwrap_err();
    assert!(matches!(error, LoadError::Truncated { need: 0xffff_ffff, at: 12, .. }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_file_with_changed_bytes_never_panics(
        changes in proptest::collection::vec((0usize..2000, any::<u8>()), 1..4),
    ) {
        let mut file = sample("int4").file();
        for (at, byte) in changes {
            file[at] = byte;
        }
        let _ = read(&file);
    }

    #[test]
    fn a_header_with_a_changed_number_never_panics(
        at in any::<proptest::sample::Index>(),
        number in prop_oneof![any::<u64>(), 0..300u64],
    ) {
        let mut sample = sample("int4");
        let body = sample.body();
        let entries = sample.header["manifest"].as_array_mut().unwrap();
        let mut numbers: Vec<&mut Value> = entries
            .iter_mut()
            .flat_map(|entry| entry["shape"].as_array_mut().unwrap())
            .collect();
        **at.get_mut(&mut numbers) = json!(number);
        let _ = read(&sample.file_with(&body));
    }
}
