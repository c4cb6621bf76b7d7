//! Every key that changes the arithmetic is implemented, or refused by its name.

use tinygpt_kernels::Convention;

use super::*;
use crate::kv::layout::Window;
use crate::model::load::hf::config::Config;
use crate::model::load::hf::families::{Body, Family};
use crate::model::load::{Gelu, GemmaConfig, GptConfig, LlamaConfig, Shorter};

/// A configuration of a family with the least that it needs.
fn least(family: &str) -> Value {
    match family {
        "gpt2" => json!({
            "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 128,
            "vocab_size": 100
        }),
        _ => json!({
            "model_type": family, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 128, "vocab_size": 100
        }),
    }
}

const FAMILIES: [&str; 8] =
    ["gemma3_text", "gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3"];

fn with(family: &str, more: &Value) -> Value {
    let mut config = least(family);
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn plan(family: &str, more: &Value) -> Result<Body, LoadError> {
    Family::plan(&Config::new(with(family, more))?).map(|plan| plan.body)
}

fn llama(family: &str, more: &Value) -> LlamaConfig {
    match plan(family, more) {
        Ok(Body::Llama(config, _)) => config,
        other => panic!("{family} {more}: {other:?}"),
    }
}

fn gemma(more: &Value) -> GemmaConfig {
    match plan("gemma3_text", more) {
        Ok(Body::Gemma(config, _)) => config,
        other => panic!("{more}: {other:?}"),
    }
}

fn gpt(more: &Value) -> GptConfig {
    match plan("gpt2", more) {
        Ok(Body::Gpt(config, _)) => config,
        other => panic!("{more}: {other:?}"),
    }
}

fn refusal(family: &str, more: &Value) -> String {
    let error = plan(family, more).expect_err(&format!("{family} {more}"));
    assert!(!matches!(error, LoadError::Json { .. }));
    error.to_string()
}

#[test]
fn what_changes_the_arithmetic_and_is_not_implemented_is_refused_by_name() {
    let scaled = |kind: &str| json!({"rope_scaling": {"rope_type": kind, "factor": 2.0}});
    let everywhere = [
        ("quantization_config", json!({"quantization_config": {"quant_method": "gptq"}})),
        ("is_causal", json!({"is_causal": false})),
        ("architectures", json!({"architectures": ["RewardModel"]})),
        ("num_experts", json!({"num_experts": 8})),
        ("anything_new", json!({"anything_new": true})),
        ("anything_new", json!({"anything_new": 0.5})),
        ("logit_scale", json!({"logit_scale": 2.0})),
        ("partial_rotary_factor", json!({"partial_rotary_factor": 1.25})),
    ];
    let of_llamas = [
        ("rope_scaling.rope_type", scaled("dynamic")),
        ("rope_scaling.rope_type", scaled("yarn")),
        ("rope_scaling.rope_type", scaled("mrope")),
        ("rope_scaling.type", json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}})),
        ("rope_scaling.mrope_section", json!({"rope_scaling": {"mrope_section": [1]}})),
        ("rope_parameters.rope_type", json!({"rope_parameters": {"rope_type": "yarn"}})),
        ("hidden_act", json!({"hidden_act": "relu2"})),
        (
            "layer_types",
            json!({"layer_types": ["full_attention", "linear_attention",
            "full_attention", "full_attention"]}),
        ),
        ("layer_types", json!({"layer_types": ["full_attention"]})),
    ];
    let own = [
        ("mistral", "attention_bias", json!({"attention_bias": true})),
        ("qwen2", "mlp_bias", json!({"mlp_bias": true})),
        ("llama", "sliding_window", json!({"sliding_window": 16})),
        ("llama", "layer_types", json!({"layer_types": vec!["full_attention"; 4]})),
        ("llama", "no_rope_layers", json!({"no_rope_layers": [1, 1, 1, 0]})),
        ("phi3", "attention_bias", json!({"attention_bias": true})),
        (
            "gemma3_text",
            "use_bidirectional_attention",
            json!({"use_bidirectional_attention": true}),
        ),
        ("gemma3_text", "hidden_activation", json!({"hidden_activation": "gelu"})),
        ("gpt2", "activation_function", json!({"activation_function": "relu"})),
        (
            "gpt2",
            "scale_attn_by_inverse_layer_idx",
            json!({"scale_attn_by_inverse_layer_idx": true}),
        ),
        ("gpt2", "scale_attn_weights", json!({"scale_attn_weights": false})),
        ("gpt2", "add_cross_attention", json!({"add_cross_attention": true})),
    ];
    let cases = FAMILIES.into_iter().flat_map(|family| {
        let llamas = of_llamas.iter().filter(move |_| !["gpt2", "llama"].contains(&family));
        everywhere.iter().chain(llamas).map(move |(key, more)| (family, *key, more.clone()))
    });
    for (family, key, more) in cases.chain(own) {
        if family == "gemma3_text" && key == "hidden_act" {
            continue;
        }
        let said = refusal(family, &more);
        assert!(said.contains(&format!("key \"{key}\"")), "{family} {more}: {said}");
    }
}

#[test]
fn a_family_that_does_not_run_is_refused_by_its_name() {
    for name in ["gemma3", "gpt_neox", "mixtral", "qwen3_moe", ""] {
        let said = refusal("llama", &json!({"model_type": name}));
        assert!(
            said.contains("\"model_type\"") && said.contains(&format!("\"{name}\";")),
            "{said}"
        );
    }
    let said = refusal("llama", &json!({"model_type": null}));
    assert_eq!(said, "metadata key \"model_type\" is missing");
}

#[test]
fn what_says_nothing_about_the_arithmetic_is_left_alone() {
    let chatter = json!({
        "_name_or_path": "somewhere", "transformers_version": "5.0.0", "torch_dtype": "bfloat16",
        "attention_dropout": 0.1, "use_cache": true, "initializer_range": 0.02, "top_p": 0.9,
        "auto_map": {"AutoConfig": "x.Y"}, "unsloth_fixed": true, "pad_token_id": 3,
        "quantization_config": null, "num_experts": 0, "features": [], "switches": {},
        "switch": false, "name": "", "partial_rotary_factor": 1.0
    });
    for family in FAMILIES {
        assert!(plan(family, &chatter).is_ok(), "{family}: {:?}", plan(family, &chatter));
    }
}

#[test]
fn numbers_that_cannot_be_are_refused_with_what_they_should_be() {
    for (family, key, value) in [
        ("llama", "hidden_size", json!(0)),
        ("llama", "hidden_size", json!(66)),
        ("llama", "hidden_size", json!(-64)),
        ("llama", "hidden_size", json!("64")),
        ("llama", "hidden_size", json!(null)),
        ("llama", "head_dim", json!(15)),
        ("llama", "head_dim", json!(1 << 15)),
        ("llama", "num_key_value_heads", json!(3)),
        ("llama", "num_hidden_layers", json!(1 << 20)),
        ("llama", "max_position_embeddings", json!(1u64 << 40)),
        ("llama", "vocab_size", json!(1.5)),
        ("llama", "rms_norm_eps", json!(-1.0)),
        ("llama", "rope_theta", json!(0.0)),
        ("llama", "attention_bias", json!(1)),
        ("llama", "rope_scaling", json!("linear")),
        ("mistral", "sliding_window", json!(0)),
        ("smollm3", "no_rope_layers", json!([1, 0])),
        ("smollm3", "no_rope_layers", json!([1, 0, 2, 1])),
        ("gemma3_text", "query_pre_attn_scalar", json!(0)),
        ("phi3", "partial_rotary_factor", json!(0.2)),
        ("gpt2", "n_head", json!(7)),
        ("gpt2", "n_positions", json!(null)),
    ] {
        let mut more = json!({});
        more[key] = value;
        let said = refusal(family, &more);
        assert!(said.contains(&format!("key \"{key}\"")), "{family} {more}: {said}");
    }
}

#[test]
fn what_a_file_does_not_say_is_what_its_family_means() {
    let config = llama("llama", &json!({}));
    assert_eq!((config.head_dim, config.eps, config.kv_heads), (16, 1e-6, 2));
    let rope = &config.ropes[..];
    assert_eq!((rope.len(), rope[0].base, rope[0].dims), (1, 10_000.0, 16));
    assert_eq!((rope[0].convention, &rope[0].factors), (Convention::HalfSplit, &None));
    assert_eq!(llama("llama", &json!({"num_key_value_heads": null})).kv_heads, 4);
    assert_eq!(llama("qwen3", &json!({})).head_dim, 128);
    let gemma = gemma(&json!({}));
    assert_eq!(
        (gemma.llama.head_dim, gemma.query_scale, gemma.embedding_scale),
        (256, 0.0625, 8.0)
    );
    assert_eq!(gemma.llama.ropes[0].base, 1_000_000.0);
    assert_eq!(gemma.llama.ropes[1].base, 10_000.0);
    let gpt = gpt(&json!({}));
    assert_eq!((gpt.mlp, gpt.eps, gpt.activation), (256, 1e-5, Gelu::Tanh));
    assert_eq!(self::gpt(&json!({"activation_function": "gelu"})).activation, Gelu::Erf);
}

fn windows(config: &LlamaConfig) -> Vec<Option<usize>> {
    config.plan.iter().map(|plan| plan.window.tokens()).collect()
}

#[test]
fn each_layer_has_the_window_that_its_family_gives_it() {
    let window = json!({"sliding_window": 16});
    assert_eq!(windows(&llama("mistral", &window)), [Some(16); 4]);
    assert_eq!(windows(&llama("mistral", &json!({"sliding_window": null}))), [None; 4]);
    assert_eq!(windows(&llama("phi3", &window)), [Some(16); 4]);
    assert_eq!(windows(&llama("qwen2", &window)), [None; 4]);
    let used = json!({"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 3});
    assert_eq!(windows(&llama("qwen2", &used)), [None, None, None, Some(16)]);
    assert_eq!(windows(&llama("qwen3", &used)), [None, None, None, Some(16)]);
    let listed = json!({"sliding_window": 16, "layer_types": ["sliding_attention",
        "full_attention", "full_attention", "sliding_attention"]});
    assert_eq!(windows(&llama("mistral", &listed)), [Some(16), None, None, Some(16)]);
    let gemma = gemma(&json!({"sliding_window": 16, "sliding_window_pattern": 3})).llama;
    assert_eq!(windows(&gemma), [Some(16), Some(16), None, Some(16)]);
    let ropes: Vec<_> = gemma.plan.iter().map(|plan| plan.rope).collect();
    assert_eq!(ropes, [Some(1), Some(1), Some(0), Some(1)]);
    let said = refusal("mistral", &json!({"layer_types": vec!["sliding_attention"; 4]}));
    assert_eq!(said, "metadata key \"sliding_window\" is missing");
    assert_eq!(Window::Sliding(16).tokens(), Some(16));
}

#[test]
fn some_layers_of_smollm3_are_not_told_positions() {
    let told = |more: Value| {
        let config = llama("smollm3", &more);
        config.plan.iter().map(|plan| plan.rope.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(told(json!({})), [true, true, true, false]);
    assert_eq!(told(json!({"no_rope_layer_interval": 2})), [true, false, true, false]);
    assert_eq!(told(json!({"no_rope_layers": [0, 1, 1, 0]})), [false, true, true, false]);
}

/// Against numbers that the definition gives in another language.
#[test]
fn frequencies_are_scaled_as_llama_3_scales_them() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    let rope = llama("llama", &json!({"rope_scaling": scaling})).ropes.remove(0);
    let expected = [1.0, 1.293_975_8, 7.667_385, 8.0, 8.0, 8.0, 8.0, 8.0];
    for (factor, expected) in rope.factors.unwrap().into_iter().zip(expected) {
        assert!((factor - expected).abs() <= 1e-6 * expected, "{factor} {expected}");
    }
    let mut newer = scaling;
    newer["rope_theta"] = json!(500_000.0);
    let rope = llama("llama", &json!({"rope_parameters": newer})).ropes.remove(0);
    assert_eq!((rope.base, rope.factors.unwrap()[7]), (500_000.0, 8.0));
}

#[test]
fn linear_scaling_divides_every_frequency() {
    let scaling = json!({"rope_scaling": {"type": "linear", "factor": 4.0}});
    assert_eq!(llama("qwen2", &scaling).ropes[0].factors, Some(vec![4.0; 8]));
    let gemma = gemma(&scaling).llama.ropes;
    assert_eq!((gemma[0].factors.as_ref().unwrap()[0], &gemma[1].factors), (4.0, &None));
}

#[test]
fn the_context_chooses_phis_factors() {
    let long = |context: usize, more: Value| {
        let mut scaling = json!({"type": "longrope", "short_factor": vec![1.5; 4],
            "long_factor": vec![2.5; 4]});
        more.as_object().unwrap().iter().for_each(|(key, value)| scaling[key] = value.clone());
        let more = json!({"partial_rotary_factor": 0.5, "original_max_position_embeddings": 4096,
            "max_position_embeddings": context, "rope_scaling": scaling});
        llama("phi3", &more).ropes.remove(0)
    };
    let rope = long(131_072, json!({}));
    assert_eq!((rope.dims, rope.factors), (8, Some(vec![2.5; 4])));
    assert!((rope.attention_factor - 1.190_238).abs() < 1e-6, "{}", rope.attention_factor);
    assert_eq!(rope.shorter, Some(Shorter { context: 4096, factors: vec![1.5; 4] }));
    let rope = long(4096, json!({}));
    assert_eq!((rope.factors, rope.attention_factor), (Some(vec![1.5; 4]), 1.0));
    assert_eq!(rope.shorter, None);
    assert_eq!(long(131_072, json!({"attention_factor": 2.0})).attention_factor, 2.0);
    let said = refusal(
        "phi3",
        &json!({"rope_scaling": {"type": "longrope",
        "factor": 2.0, "short_factor": [1.0], "long_factor": [1.0]}}),
    );
    assert!(said.contains("rope_scaling.short_factor"), "{said}");
}

#[test]
fn gemmas_newer_files_have_a_rope_for_each_kind_of_layer() {
    let parameters = json!({"full_attention": {"rope_type": "linear", "factor": 8.0,
        "rope_theta": 500_000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 7.0}});
    let ropes = gemma(&json!({"rope_parameters": parameters})).llama.ropes;
    assert_eq!((ropes[0].base, ropes[1].base), (500_000.0, 7.0));
    assert_eq!((&ropes[0].factors, &ropes[1].factors), (&Some(vec![8.0; 128]), &None));
    let said = refusal("gemma3_text", &json!({"rope_parameters": {"full_attention": {}}}));
    assert!(said.contains("rope_parameters.sliding_attention"), "{said}");
}
