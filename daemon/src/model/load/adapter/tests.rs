//! Adapters that are right, and what is wrong with others.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::num::NonZeroUsize;

use proptest::prelude::*;
use serde_json::{Value, json};
use tinygpt_kernels::Pool;
use tinygpt_tests::adapters;

use super::*;
use crate::model::AdapterId;
use crate::model::load::{BUILTIN, OpenError, Weights, load};

/// Of a layer each of the built-in model: 6 layers of 192, 768 in the MLP.
fn sample() -> adapters::Adapter {
    let layers = [("attn.q_proj", [192, 192]), ("mlp.fc_in", [768, 192])];
    let layers = layers.map(|(part, shape)| (format!("blocks.1.{part}"), shape)).into();
    adapters::Adapter { rank: 2, alpha: 3.0, seed: 1, layers }
}

/// The same layers, the way Hugging Face's decoders name them.
fn of_peft() -> adapters::Adapter {
    let layers = [("self_attn.q_proj", [6, 4]), ("mlp.down_proj", [4, 6])];
    let layers = layers.map(|(part, shape)| (format!("model.layers.0.{part}"), shape)).into();
    adapters::Adapter { rank: 2, alpha: 3.0, seed: 1, layers }
}

fn peft(config: &Value, weights: &[u8]) -> Result<Adapter, LoadError> {
    Adapter::from_peft(config.to_string().as_bytes(), weights)
}

/// Why PEFT's files with a key of the configuration set are refused.
fn refused(key: &str, value: Value) -> String {
    let mut config = of_peft().config();
    config[key] = value;
    peft(&config, &of_peft().safetensors()).unwrap_err().to_string()
}

/// The scale of the first layer, told from its numbers.
fn scale(config: &Value, sample: &adapters::Adapter) -> f32 {
    let adapter = peft(config, &sample.safetensors()).unwrap();
    let change = adapter.changes.iter().find(|it| it.module.ends_with("q_proj")).unwrap();
    change.up[0] / sample.up(0)[0]
}

#[test]
fn the_scale_is_alpha_over_the_rank_or_its_root_and_in_the_numbers() {
    let sample = of_peft();
    let mut config = sample.config();
    assert!((scale(&config, &sample) - 1.5).abs() < 1e-6);
    config["use_rslora"] = json!(true);
    assert!((scale(&config, &sample) - 3.0 / 2.0_f32.sqrt()).abs() < 1e-6);
    config["use_rslora"] = json!(false);
    config["alpha_pattern"] = json!({"v_proj": 9, "layers.[0-3].self_attn.q_proj": 5.0});
    assert!((scale(&config, &sample) - 2.5).abs() < 1e-6);
}

#[test]
fn a_layer_may_have_a_rank_of_its_own() {
    let mut config = of_peft().config();
    config["r"] = json!(8);
    let error = peft(&config, &of_peft().safetensors()).unwrap_err().to_string();
    assert!(error.contains("lora_A") && error.contains("expected [8, "), "{error}");
    config["rank_pattern"] = json!({"q_proj": 2, "down_proj": 2});
    assert_eq!(peft(&config, &of_peft().safetensors()).unwrap().rank(), 2);
}

#[test]
fn both_formats_of_one_adapter_are_one_adapter() {
    let sample = sample();
    let lora = Adapter::from_lora(&sample.lora()).unwrap();
    let peft = peft(&sample.config(), &sample.safetensors()).unwrap();
    assert_eq!(lora.digest(), peft.digest());
    assert_eq!((lora.rank(), lora.bytes()), (2, 4 * 2 * (192 + 192 + 768 + 192)));
    for other in [
        adapters::Adapter { seed: 2, ..sample.clone() },
        adapters::Adapter { alpha: 3.5, ..sample.clone() },
        adapters::Adapter { layers: sample.layers[..1].to_vec(), ..sample },
    ] {
        assert_ne!(Adapter::from_lora(&other.lora()).unwrap().digest(), lora.digest());
    }
}

#[test]
fn every_key_that_changes_the_arithmetic_and_is_not_implemented_is_refused_by_name() {
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("bias", json!("all")),
        ("use_dora", json!(true)),
        ("use_qalora", json!(true)),
        ("lora_bias", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("layer_replication", json!([[0, 1], [0, 1]])),
        ("trainable_token_indices", json!([1])),
        ("target_parameters", json!(["experts.weight"])),
        ("alora_invocation_tokens", json!([1])),
        ("init_lora_weights", json!("pissa")),
        ("something_new", json!("on")),
        ("rank_pattern", json!({"q_proj": 0})),
        ("rank_pattern", json!({"(": 1})),
        ("lora_alpha", json!("much")),
        ("r", json!(0)),
    ] {
        let error = refused(key, value);
        assert!(error.contains("adapter_config.json") && error.contains(key), "{key}: {error}");
    }
    for key in ["r", "lora_alpha", "peft_type"] {
        assert!(refused(key, Value::Null).contains(key));
    }
}

#[test]
fn numbers_that_are_none_are_refused_by_the_name_of_their_layer() {
    for number in [f32::NAN, f32::INFINITY] {
        let mut weights = of_peft().safetensors();
        let last = weights.len() - 4;
        weights[last..].copy_from_slice(&number.to_le_bytes());
        let error = peft(&of_peft().config(), &weights).unwrap_err().to_string();
        assert!(error.contains("a number of \"") && error.contains(&number.to_string()), "{error}");
    }
}

#[test]
fn a_scale_that_is_no_number_for_computing_is_refused() {
    let error = refused("lora_alpha", json!(1e300));
    assert!(error.contains("the scale of") && error.contains("inf"), "{error}");
}

#[test]
fn what_the_configuration_does_not_target_is_no_part_of_the_adapter() {
    let error = refused("target_modules", json!(["q_proj", "own_proj"]));
    assert!(error.contains("down_proj.lora_A.weight"), "{error}");
    for all in [json!("all-linear"), json!(["q_proj", "mlp.down_proj"]), Value::Null] {
        let mut config = of_peft().config();
        config["target_modules"] = all;
        peft(&config, &of_peft().safetensors()).unwrap();
    }
}

#[test]
fn a_tensor_without_a_use_or_without_its_other_half_is_refused_by_name() {
    let named = |from: &str, to: &str| {
        let text = of_peft().safetensors();
        let at = text.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        let mut changed = text;
        changed[at..at + to.len()].copy_from_slice(to.as_bytes());
        peft(&of_peft().config(), &changed).unwrap_err().to_string()
    };
    for (from, to, words) in [
        ("self_attn.q_proj.lora_A.weight", "self_attn.q_proj.lora_A.weighs", "lora_A.weighs"),
        ("self_attn.q_proj.lora_B", "self_attn.q_proj.lora_C", "q_proj.lora_B.weight\" is missing"),
        ("self_attn.q_proj.lora_A", "self_attn.q_norm.lora_A", "q_norm.lora_A"),
        ("layers.0.self_attn", "layers.x.self_attn", "layers.x.self_attn"),
    ] {
        let error = named(from, to);
        assert!(error.contains("adapter_model.safetensors") && error.contains(words), "{error}");
    }
}

fn builtin() -> Weights {
    load(BUILTIN, &Pool::new(NonZeroUsize::MIN)).unwrap().weights
}

fn unfit(sample: &adapters::Adapter) -> String {
    let adapter = Adapter::from_lora(&sample.lora()).unwrap();
    builtin().adapt(AdapterId(0), &adapter).unwrap_err().to_string()
}

#[test]
fn an_adapter_that_does_not_fit_names_the_layer_and_both_shapes() {
    let with = |name: &str, shape| {
        let layers = vec![(name.to_owned(), shape)];
        unfit(&adapters::Adapter { layers, ..sample() })
    };
    let error = with("blocks.1.attn.q_proj", [192, 64]);
    assert!(error.contains("blocks.1.attn.q_proj"), "{error}");
    assert!(error.contains("[192, 64]") && error.contains("[192, 192]"), "{error}");
    assert!(with("h.0.attn.c_attn", [192, 192]).contains("[576, 192]"));
    for name in ["blocks.6.attn.q_proj", "model.layers.0.mlp.gate_proj"] {
        let error = with(name, [192, 192]);
        assert!(error.contains(name) && error.contains("6 layers"), "{error}");
    }
    let twice = ["blocks.0.attn.q_proj", "h.0.attn.q_proj"];
    let layers = twice.map(|name| (name.to_owned(), [192, 192])).into();
    assert!(unfit(&adapters::Adapter { layers, ..sample() }).contains("twice"));
}

#[test]
fn what_a_file_says_of_its_model_must_be_so() {
    let sample = sample();
    for (key, right, wrong) in
        [("baseLayers", 6, 7), ("baseDModel", 192, 64), ("baseHeads", 6, 3), ("baseCtx", 1024, 9)]
    {
        let mut header = sample.header();
        header[key] = json!(right);
        let adapter = Adapter::from_lora(&sample.lora_with(&header)).unwrap();
        builtin().adapt(AdapterId(0), &adapter).unwrap();
        header[key] = json!(wrong);
        let adapter = Adapter::from_lora(&sample.lora_with(&header)).unwrap();
        let error = builtin().adapt(AdapterId(0), &adapter).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(&right.to_string()), "{error}");
    }
}

#[test]
fn every_lie_of_a_lora_file_has_an_error_of_its_own() {
    let sample = sample();
    let lie = |change: &dyn Fn(&mut Value)| {
        let mut header = sample.header();
        change(&mut header);
        Adapter::from_lora(&sample.lora_with(&header)).unwrap_err()
    };
    let shape =
        |shape: Value| lie(&move |header| header["entries"][0]["loraAShape"] = shape.clone());
    assert!(matches!(shape(json!([192, 3])), LoadError::Shape { .. }));
    assert!(matches!(shape(json!([0, 2])), LoadError::Shape { .. }));
    assert!(matches!(shape(json!([192, 2, 1])), LoadError::Shape { .. }));
    assert!(matches!(shape(json!([1_u64 << 40, 2])), LoadError::Truncated { .. }));
    assert!(matches!(shape(json!([1_u64 << 62, 2])), LoadError::Overflow { .. }));
    assert!(matches!(shape(json!([191, 2])), LoadError::Hole { .. }));
    assert!(matches!(lie(&|it| it["rank"] = json!(0)), LoadError::OutOfRange { .. }));
    assert!(matches!(lie(&|it| it["rank"] = json!(-1)), LoadError::Header { .. }));
    assert!(matches!(lie(&|it| it["entries"] = json!([])), LoadError::Hole { .. }));
    let dora = lie(&|it| it["entries"][1]["loraMShape"] = json!([768])).to_string();
    assert!(dora.contains("DoRA") && dora.contains("blocks.1.mlp.fc_in"), "{dora}");
    let target = lie(&|it| it["entries"][0]["name"] = json!("blocks.1.ln1")).to_string();
    assert!(target.contains("blocks.1.ln1"), "{target}");
    let none = adapters::Adapter { layers: Vec::new(), ..sample.clone() };
    assert!(matches!(Adapter::from_lora(&none.lora()), Err(LoadError::OutOfRange { .. })));

    let whole = sample.lora();
    let cut = |length: usize| Adapter::from_lora(&whole[..length]).unwrap_err();
    assert!(matches!(cut(0), LoadError::AdapterMagic { .. }));
    assert!(matches!(cut(10), LoadError::Truncated { .. }));
    assert!(matches!(cut(whole.len() - 1), LoadError::Truncated { .. }));
    let mut newer = whole.clone();
    newer[4] = 3;
    assert!(matches!(Adapter::from_lora(&newer), Err(LoadError::Version { found: 3, .. })));
}

#[test]
fn a_directory_without_one_of_its_files_and_a_file_that_is_none_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let of = |path: &std::path::Path| match AdapterFiles::open(path) {
        Ok(files) => files.load().map(|adapter| adapter.rank()).map_err(|error| error.to_string()),
        Err(OpenError::Load(error)) => Err(error.to_string()),
        Err(OpenError::Read { path, .. }) => Err(path.display().to_string()),
    };
    let (peft, none) = (folder.path().join("peft"), folder.path().join("none"));
    of_peft().write_peft(&peft).unwrap();
    assert_eq!(of(&peft), Ok(2));
    fs::rename(peft.join("adapter_model.safetensors"), &none).unwrap();
    assert!(of(&peft).unwrap_err().contains("adapter_model.safetensors"));
    assert!(of(&none).unwrap_err().contains("TGLA"));
    assert!(of(&folder.path().join("nowhere")).unwrap_err().contains("nowhere"));
    fs::write(&none, sample().lora()).unwrap();
    assert_eq!(of(&none), Ok(2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn files_with_changed_bytes_never_panic(
        changes in proptest::collection::vec((0_usize..700, any::<u8>()), 1..4),
    ) {
        let (mut lora, mut peft) = (sample().lora(), of_peft().safetensors());
        let mut config = of_peft().config().to_string().into_bytes();
        for (at, byte) in changes {
            for file in [&mut lora, &mut peft, &mut config] {
                let at = at % file.len();
                file[at] = byte;
            }
        }
        let _ = Adapter::from_lora(&lora);
        let _ = Adapter::from_peft(&config, &of_peft().safetensors());
        let _ = Adapter::from_peft(of_peft().config().to_string().as_bytes(), &peft);
    }
}
