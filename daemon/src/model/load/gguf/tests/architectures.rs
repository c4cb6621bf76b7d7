//! What each architecture's keys and tensors become.

use proptest::prelude::*;
use tinygpt_kernels::{Convention, Gelu, Matrix};

use super::file::{
    File, array, every, flag, float, gemma3, gpt2, llama, meta, named, number, phi3, qwen2, qwen3,
    raw_string, text,
};
use super::{config, read};
use crate::kv::layout::Window;
use crate::model::load::{
    GemmaWeights, GptWeights, LayerPlan, LlamaWeights, Mlp, Vocabulary, Weights,
};

fn llama_of(file: &File) -> LlamaWeights {
    let Weights::Llama(weights) = read(&file.bytes()).unwrap().weights else { panic!("a Llama") };
    weights
}

fn gemma_of(file: &File) -> GemmaWeights {
    let Weights::Gemma(weights) = read(&file.bytes()).unwrap().weights else { panic!("a Gemma") };
    weights
}

fn gpt_of(file: &File) -> GptWeights {
    let Weights::Gpt(weights) = read(&file.bytes()).unwrap().weights else { panic!("a GPT") };
    weights
}

fn refused(file: &File) -> String {
    read(&file.bytes()).unwrap_err().to_string()
}

/// Numbers of a tensor as [`File::add`] makes them.
fn stored(name: &str, at: usize, count: usize) -> Vec<f32> {
    (at..at + count).map(|i| i as f32 / 100.0 - name.len() as f32).collect()
}

fn row(matrix: &Matrix, n: usize) -> Vec<f32> {
    let mut row = vec![0.0; matrix.k()];
    matrix.row(n, &mut row);
    row
}

#[test]
fn every_architecture_is_read_under_its_name() {
    let names = ["llama", "smollm3", "qwen2", "qwen3", "gemma3", "phi3", "gpt2"];
    for (file, name) in every().iter().zip(names) {
        assert_eq!(read(&file.bytes()).unwrap().architecture, name);
    }
    let unknown = refused(&named("falcon"));
    assert!(names.iter().all(|name| unknown.contains(name)), "{unknown}");
}

#[test]
fn rows_turn_as_the_converter_left_them() {
    let convention = |file: &File| config(file).ropes[0].convention;
    for file in [llama(), named("smollm3")] {
        assert_eq!(convention(&file), Convention::Interleaved);
    }
    for file in [qwen2(), qwen3(), phi3()] {
        assert_eq!(convention(&file), Convention::HalfSplit);
    }
}

#[test]
fn qwen2_has_biases_and_qwen3_normalised_heads() {
    let qwen2 = llama_of(&qwen2());
    let attention = &qwen2.blocks[0].attention;
    assert_eq!(attention.k.bias.as_deref(), Some(&*stored("blk.0.attn_k.bias", 0, 16)));
    assert!(attention.o.bias.is_none() && attention.q_norm.is_none());
    let weights = llama_of(&qwen3());
    let norm = weights.blocks[0].attention.k_norm.as_ref().unwrap();
    assert_eq!(norm.weight, stored("blk.0.attn_k_norm.weight", 0, 8));
    assert!(refused(&named("qwen3")).contains("blk.0.attn_q_norm.weight"));
}

#[test]
fn every_fourth_layer_of_smollm3_is_not_told_positions() {
    let mut file = named("smollm3");
    file.set("smollm3.block_count", number(9));
    let first: Vec<_> =
        file.tensors.iter().filter(|tensor| tensor.name.starts_with("blk.0.")).cloned().collect();
    for layer in 1..9 {
        file.tensors.extend(first.iter().cloned().map(|mut tensor| {
            tensor.name = tensor.name.replace("blk.0.", &format!("blk.{layer}."));
            tensor
        }));
    }
    let told: Vec<_> = config(&file).plan.iter().map(|plan| plan.rope.is_some()).collect();
    assert_eq!(told, [true, true, true, false, true, true, true, false, true]);
}

#[test]
fn windows_are_those_of_the_file_unless_the_context_is_no_wider() {
    for name in ["llama", "phi3"] {
        let mut file = if name == "phi3" { phi3() } else { llama() };
        let key = format!("{name}.attention.sliding_window");
        for (tokens, window) in [
            (0, Window::Full),
            (16, Window::Sliding(16)),
            (64, Window::Full),
            (1 << 20, Window::Full),
        ] {
            file.set(&key, number(tokens));
            assert_eq!(
                config(&file).plan,
                [LayerPlan { rope: Some(0), window }],
                "{name} {tokens}"
            );
        }
    }
    let mut file = qwen2();
    file.set("qwen2.attention.sliding_window", number(16));
    assert!(refused(&file).contains("qwen2.attention.sliding_window"));
}

#[test]
fn linear_scaling_divides_every_frequency() {
    let mut file = qwen2();
    file.set("qwen2.rope.scaling.factor", float(4.0));
    assert_eq!(config(&file).ropes[0].factors, Some(vec![4.0; 4]));
    file.set("qwen2.rope.scaling.type", text("none"));
    assert_eq!(config(&file).ropes[0].factors, None);
    for factor in [-1.0, 1e-30, 1e30] {
        file.set("qwen2.rope.scaling.factor", float(factor));
        assert!(refused(&file).contains("qwen2.rope.scaling.factor"), "{factor}");
    }
    let mut file = llama();
    file.add("rope_freqs.weight", &[4]);
    file.tensor("rope_freqs.weight").data = [1f32, 2.0, 4.0, 8.0].map(f32::to_le_bytes).concat();
    file.set("llama.rope.scaling.type", text("linear"));
    file.set("llama.rope.scaling.factor", float(2.0));
    assert_eq!(config(&file).ropes[0].factors, Some(vec![2.0, 4.0, 8.0, 16.0]));
}

#[test]
fn phi3s_parts_are_cut_out_of_the_tensors_that_hold_them() {
    let weights = llama_of(&phi3());
    let attention = &weights.blocks[0].attention;
    let stored = |name, n: usize| stored(name, 32 * n, 32);
    const QKV: &str = "blk.0.attn_qkv.weight";
    assert_eq!((attention.q.weight.n(), attention.k.weight.n()), (32, 16));
    assert_eq!(row(&attention.q.weight, 31), stored(QKV, 31));
    assert_eq!(row(&attention.k.weight, 0), stored(QKV, 32));
    assert_eq!(row(&attention.v.weight, 15), stored(QKV, 63));
    const UP: &str = "blk.0.ffn_up.weight";
    assert_eq!(row(&weights.blocks[0].gate.weight, 63), stored(UP, 63));
    assert_eq!(row(&weights.blocks[0].up.weight, 0), stored(UP, 64));
    assert_eq!(weights.blocks[0].up.weight.n(), 64);
}

#[test]
fn phi3_turns_by_the_factors_of_its_context() {
    let rope = |file: &File| config(file).ropes.remove(0);
    let mut file = phi3();
    assert_eq!((rope(&file).factors, rope(&file).attention_factor), (Some(vec![8.0; 4]), 1.25));
    file.set("phi3.context_length", number(32));
    assert_eq!((rope(&file).factors, rope(&file).attention_factor), (Some(vec![1.0; 4]), 1.25));
    file.set("phi3.rope.dimension_count", number(6));
    assert!(refused(&file).contains("rope_factors_short.weight"));
    for name in ["rope_factors_short.weight", "rope_factors_long.weight"] {
        let tensor = file.tensor(name);
        tensor.dims = vec![3];
        tensor.data.truncate(12);
    }
    assert_eq!((rope(&file).dims, rope(&file).factors), (6, Some(vec![1.0; 3])));
    file.remove("phi3.rope.scaling.attn_factor");
    assert!(refused(&file).contains("phi3.rope.scaling.attn_factor"));
    file.tensors.retain(|tensor| !tensor.name.contains("long"));
    assert!(refused(&file).contains("rope_factors_long.weight"));
}

#[test]
fn gemma3_has_two_kinds_of_layers_and_scales_of_its_own() {
    let config = gemma_of(&gemma3()).config;
    let [local, global] = [(1, Window::Sliding(16)), (0, Window::Full)]
        .map(|(rope, window)| LayerPlan { rope: Some(rope), window });
    assert_eq!(config.llama.plan, [local, global]);
    let bases: Vec<_> = config.llama.ropes.iter().map(|rope| rope.base).collect();
    assert_eq!(bases, [1e6, 1e4]);
    assert_eq!(config.query_scale, 1.0 / 8f32.sqrt());
    assert_eq!(config.embedding_scale, 32f32.sqrt());
    assert_eq!((config.attention_softcap, config.final_softcap), (None, Some(30.0)));
}

#[test]
fn gemma3s_pattern_is_a_number_or_a_list_and_its_scaling_is_for_whole_layers() {
    let mut file = gemma3();
    file.set("gemma3.attention.sliding_window_pattern", array(7, &[vec![0], vec![1]]));
    file.set("gemma3.rope.scaling.factor", float(8.0));
    let config = gemma_of(&file).config.llama;
    assert_eq!(config.plan.map_ropes(), [Some(0), Some(1)]);
    assert_eq!((&config.ropes[0].factors, &config.ropes[1].factors), (&Some(vec![8.0; 4]), &None));
    file.remove("gemma3.attention.sliding_window_pattern");
    assert_eq!(gemma_of(&file).config.llama.plan.map_ropes(), [Some(1), Some(1)]);
    file.set("gemma3.attention.sliding_window", number(0));
    assert_eq!(gemma_of(&file).config.llama.plan, [LayerPlan::PLAIN; 2]);
    file.set("gemma3.attention.sliding_window", number(16));
    file.set("gemma3.attention.sliding_window_pattern", array(7, &[vec![1]]));
    assert!(refused(&file).contains("gemma3.attention.sliding_window_pattern"));
}

/// Which turns each layer uses.
trait Ropes {
    fn map_ropes(&self) -> Vec<Option<usize>>;
}

impl Ropes for Vec<LayerPlan> {
    fn map_ropes(&self) -> Vec<Option<usize>> {
        self.iter().map(|plan| plan.rope).collect()
    }
}

#[test]
fn gpt2_is_a_gpt_with_the_other_gelu() {
    let weights = gpt_of(&gpt2());
    assert_eq!(weights.config.activation, Gelu::Tanh);
    assert_eq!(weights.position_embedding, stored("position_embd.weight", 0, 32 * 64));
    let attention = &weights.blocks[0].attention;
    const QKV: &str = "blk.0.attn_qkv";
    assert_eq!(row(&attention.v.weight, 0), stored(&format!("{QKV}.weight"), 64 * 32, 32));
    assert_eq!(attention.k.bias.as_deref(), Some(&*stored(&format!("{QKV}.bias"), 32, 32)));
    let Mlp::Dense(mlp) = &weights.blocks[0].mlp else { panic!("one MLP") };
    assert_eq!(mlp.fc_out.bias.as_deref(), Some(&*stored("blk.0.ffn_down.bias", 0, 32)));
    assert!(weights.head.is_none());
    let mut file = gpt2();
    file.add("output.weight", &[32, 3]);
    let head = gpt_of(&file).head.unwrap();
    assert_eq!(row(&head, 0), stored("output.weight", 0, 32));
}

#[test]
fn phi3s_control_tokens_swallow_what_follows_and_turns_end_a_generation() {
    let mut file = phi3();
    let tokens: Vec<_> = ["<unk>", "<|end|>", "x"].map(raw_string).into();
    let types: Vec<_> = [2i32, 3, 1].map(|kind| kind.to_le_bytes().to_vec()).into();
    file.set("tokenizer.ggml.tokens", array(8, &tokens));
    file.set("tokenizer.ggml.token_type", array(5, &types));
    file.set("tokenizer.ggml.model", text("llama"));
    file.remove("tokenizer.ggml.eos_token_id");
    let vocabulary = |file: &File| match read(&file.bytes()).unwrap().vocabulary {
        Vocabulary::Gguf(vocabulary) => vocabulary,
        _ => panic!("a GGUF file"),
    };
    let found = vocabulary(&file);
    assert_eq!((found.swallow, found.bos, found.eos_ids), (vec![1], Some(1), vec![2, 1]));
    file.set("tokenizer.ggml.model", text("gpt2"));
    let found = vocabulary(&file);
    assert_eq!((found.swallow, found.bos, found.eos_ids), (vec![], None, vec![1]));
}

#[test]
fn keys_that_ask_for_other_arithmetic_are_refused_in_every_architecture() {
    let names = ["llama", "smollm3", "qwen2", "qwen3", "gemma3", "phi3", "gpt2"];
    for (file, name) in every().into_iter().zip(names) {
        for (part, value) in [
            ("expert_count", number(8)),
            ("attention.scale", float(0.5)),
            ("rope.scaling.yarn_beta_fast", float(32.0)),
            ("attention.causal", flag(0)),
        ] {
            let (mut file, key) = (file.clone(), format!("{name}.{part}"));
            file.set(&key, value);
            let error = refused(&file);
            assert!(error.contains(&key), "{key}: {error}");
        }
    }
}

/// Values of every kind that no key wants.
fn odd_value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<u32>().prop_map(number),
        (0u32..70).prop_map(number),
        any::<u64>().prop_map(|value| meta(10, &value.to_le_bytes())),
        any::<i64>().prop_map(|value| meta(11, &value.to_le_bytes())),
        any::<f32>().prop_map(float),
        (0u8..2).prop_map(flag),
        "[a-z0-9▁<>]{0,8}".prop_map(|value| text(&value)),
        proptest::collection::vec("[ab▁ <>]{0,3}", 0..5).prop_map(|items| array(
            8,
            &items.iter().map(|item| raw_string(item)).collect::<Vec<_>>()
        )),
        proptest::collection::vec(any::<f32>(), 0..5).prop_map(|items| {
            array(6, &items.iter().map(|item| item.to_le_bytes().to_vec()).collect::<Vec<_>>())
        }),
        proptest::collection::vec(-1i32..8, 0..5).prop_map(|items| {
            array(5, &items.iter().map(|item| item.to_le_bytes().to_vec()).collect::<Vec<_>>())
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_file_whose_metadata_says_anything_is_read_or_refused_and_never_panics(
        file in 0usize..7,
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), odd_value()), 1..3),
    ) {
        let mut file = every()[file].clone();
        for (key, value) in changes {
            let key = key.index(file.keys.len());
            file.keys[key].1 = value;
        }
        let _ = read(&file.bytes());
    }

    #[test]
    fn a_file_of_any_architecture_with_changed_bytes_never_panics(
        file in 0usize..7,
        changes in proptest::collection::vec((0usize..4000, any::<u8>()), 1..4),
    ) {
        let mut bytes = every()[file].bytes();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        let _ = read(&bytes);
    }
}
