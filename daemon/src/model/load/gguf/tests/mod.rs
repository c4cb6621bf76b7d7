//! Files made by hand, true ones and lying ones.

#![expect(clippy::unwrap_used, reason = "tests")]

mod architectures;
mod file;

use std::io::Cursor;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;

use candle_core::quantized::gguf_file::Content;
use proptest::prelude::*;
use tinygpt_kernels::{Convention, Matrix, Pool};

use self::file::{File, array, flag, float, llama, meta, number, raw_string, text};
use super::container::Gguf;
use crate::model::load::{
    Checkpoint, LayerPlan, LlamaConfig, LoadError, Packing, RopeConfig, Vocabulary, Weights, load,
    load_file,
};

fn read(bytes: &[u8]) -> Result<Checkpoint, LoadError> {
    load(bytes, &Pool::new(NonZeroUsize::MIN))
}

fn config(file: &File) -> LlamaConfig {
    match read(&file.bytes()).unwrap().weights {
        Weights::Llama(weights) => weights.config,
        _ => unreachable!("a llama"),
    }
}

fn refusal(change: impl FnOnce(&mut File)) -> LoadError {
    let mut file = llama();
    change(&mut file);
    read(&file.bytes()).unwrap_err()
}

/// The refusal of a file with one key changed, as text.
fn refused_key(key: &str, value: Vec<u8>) -> String {
    refusal(|file| file.set(key, value)).to_string()
}

#[test]
fn a_true_file_gives_its_dimensions() {
    let expected = LlamaConfig {
        layers: 1,
        heads: 4,
        kv_heads: 2,
        width: 32,
        mlp: 64,
        head_dim: 8,
        context: 64,
        vocab: 3,
        eps: 1e-5,
        ropes: vec![RopeConfig {
            base: 10_000.0,
            convention: Convention::Interleaved,
            dims: 8,
            factors: None,
            attention_factor: 1.0,
            shorter: None,
        }],
        plan: vec![LayerPlan::PLAIN],
    };
    assert_eq!(config(&llama()), expected);
}

#[test]
fn more_layers_than_any_model_has_are_refused_before_they_are_counted() {
    for layers in [1 << 20, u32::MAX] {
        let text = refused_key("llama.block_count", number(layers));
        assert!(text.contains("llama.block_count") && text.contains(&layers.to_string()), "{text}");
    }
}

#[test]
fn version_two_reads_like_version_three() {
    let mut file = llama();
    file.version = 2;
    config(&file);
}

#[test]
fn the_container_agrees_with_the_oracles_reader() {
    let bytes = llama().bytes();
    let ours = Gguf::parse(&bytes, bytes.len()).unwrap();
    let theirs = Content::read(&mut Cursor::new(&bytes)).unwrap();
    let mut keys: Vec<_> = theirs.metadata.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(ours.metadata.keys().copied().collect::<Vec<_>>(), keys);
    assert_eq!(ours.tensors.len(), theirs.tensor_infos.len());
    for (name, tensor) in &ours.tensors {
        let info = &theirs.tensor_infos[*name];
        let shape: Vec<u64> = info.shape.dims().iter().map(|&dim| dim as u64).collect();
        assert_eq!(tensor.shape, shape, "{name}");
        let begin = (theirs.tensor_data_offset + info.offset) as usize;
        let count = shape.iter().product::<u64>() as usize;
        assert_eq!(tensor.range, begin..begin + 4 * count, "{name}");
    }
}

#[test]
fn a_file_gives_the_weights_that_memory_gives() {
    let mut model = llama();
    // A head that takes more than is read of it at first.
    model.set("general.description", text(&"long ".repeat(1 << 20)));
    let bytes = model.bytes();
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    let pool = Pool::new(NonZeroUsize::MIN);
    let [ours, theirs] =
        [load_file(&file, &Packing::new(&pool)), load(&bytes, &pool)].map(Result::unwrap);
    assert_eq!(ours.vocabulary, theirs.vocabulary);
    let [ours, theirs] = [&ours.weights, &theirs.weights];
    assert_eq!(ours.vectors(), theirs.vectors());
    let [ours, theirs] = [ours, theirs].map(Weights::matrices);
    for (ours, theirs) in ours.iter().zip(theirs) {
        let row = |matrix: &Matrix, row| {
            let mut values = vec![0.0; matrix.k()];
            matrix.row(row, &mut values);
            values
        };
        assert!((0..ours.n()).all(|n| row(ours, n) == row(theirs, n)));
    }
}

#[test]
fn the_vocabulary_is_taken_whole() {
    let mut file = llama();
    file.set("tokenizer.ggml.bos_token_id", number(1));
    file.set("tokenizer.ggml.eot_token_id", number(0));
    file.set("tokenizer.ggml.eom_token_id", number(2));
    file.set("tokenizer.ggml.add_bos_token", flag(1));
    file.set("tokenizer.chat_template", text("{{ messages }}"));
    let checkpoint = read(&file.bytes()).unwrap();
    let Vocabulary::Gguf(vocabulary) = checkpoint.vocabulary else { panic!("a GGUF file") };
    assert_eq!(vocabulary.tokens, ["a", "b", "</s>"]);
    assert_eq!(vocabulary.token_types, [1, 1, 3]);
    assert_eq!(
        (vocabulary.bos, vocabulary.eos, vocabulary.add_bos),
        (Some(1), Some(2), Some(true))
    );
    assert_eq!(vocabulary.eos_ids, [2, 0]);
    assert_eq!(checkpoint.chat_template.as_deref(), Some("{{ messages }}"));
    assert_eq!(checkpoint.quantisation, "F32");
}

#[test]
fn every_number_that_changes_the_arithmetic_changes_the_digest_input() {
    let digests = |file: &File| {
        let checkpoint = read(&file.bytes()).unwrap();
        (checkpoint.weights.config_digest_input(), checkpoint.tokenizer)
    };
    let (config, vocabulary) = digests(&llama());
    for (key, value) in [
        ("llama.context_length", number(65)),
        ("llama.attention.layer_norm_rms_epsilon", float(1e-6)),
        ("llama.rope.freq_base", float(5e5)),
    ] {
        let mut file = llama();
        file.set(key, value);
        assert_ne!(digests(&file).0, config, "{key}");
        assert_eq!(digests(&file).1, vocabulary, "{key}");
    }
    for (key, value) in [
        ("tokenizer.ggml.pre", text("smollm")),
        ("tokenizer.ggml.add_bos_token", flag(0)),
        ("tokenizer.ggml.merges", array(8, &[raw_string("a b")])),
        ("tokenizer.ggml.tokens", array(8, &["a", "c", "</s>"].map(raw_string))),
    ] {
        let mut file = llama();
        file.set(key, value);
        assert_eq!(digests(&file).0, config, "{key}");
        assert_ne!(digests(&file).1, vocabulary, "{key}");
    }
    let mut named = llama();
    named.set("general.name", text("another name"));
    assert_eq!(digests(&named), (config, vocabulary));
}

#[test]
fn keys_that_ask_for_other_arithmetic_are_refused_by_name() {
    for (key, value) in [
        ("general.architecture", text("falcon")),
        ("llama.rope.scaling.type", text("yarn")),
        ("llama.rope.freq_base", float(-1.0)),
        ("llama.expert_count", number(8)),
        ("split.count", number(2)),
        ("llama.attention.causal", flag(0)),
        ("llama.logit_scale", float(1.0)),
        ("llama.attention.value_length", number(4)),
        ("llama.rope.dimension_count", number(4)),
        ("llama.attention.head_count_kv", number(3)),
        ("llama.vocab_size", number(4)),
        ("llama.block_count", number(0)),
        ("llama.context_length", number(u32::MAX)),
        ("tokenizer.ggml.add_eos_token", flag(1)),
        ("tokenizer.ggml.remove_extra_whitespaces", flag(1)),
        ("tokenizer.ggml.precompiled_charsmap", array(0, &[vec![0]])),
        ("tokenizer.ggml.eos_token_id", number(3)),
        ("tokenizer.ggml.scores", array(6, &[1f32.to_le_bytes().to_vec()])),
    ] {
        let error = refused_key(key, value);
        assert!(error.contains(key), "{key}: {error}");
    }
}

#[test]
fn neutral_values_of_such_keys_are_accepted() {
    let mut file = llama();
    for (key, value) in [
        ("llama.rope.scaling.type", text("none")),
        ("llama.rope.scaling.factor", float(4.0)),
        ("llama.rope.dimension_count", number(8)),
        ("llama.expert_count", number(0)),
        ("llama.attention.sliding_window", number(0)),
        ("llama.attention.causal", flag(1)),
        ("general.something.new", array(9, &[array(4, &[vec![1, 0, 0, 0]])[4..].to_vec()])),
    ] {
        file.set(key, value);
    }
    config(&file);
}

#[test]
fn a_head_size_of_its_own_and_rope_factors_are_read() {
    let mut file = llama();
    file.set("llama.attention.key_length", number(4));
    file.set("llama.attention.value_length", number(4));
    for name in ["q", "k", "v"] {
        let rows = if name == "q" { 16 } else { 8 };
        let tensor = file.tensor(&format!("blk.0.attn_{name}.weight"));
        tensor.dims[1] = rows;
        tensor.data.truncate(4 * 32 * rows as usize);
    }
    let output = file.tensor("blk.0.attn_output.weight");
    output.dims[0] = 16;
    output.data.truncate(4 * 16 * 32);
    file.add("rope_freqs.weight", &[2]);
    file.tensor("rope_freqs.weight").data = [1f32, 8.0].map(f32::to_le_bytes).concat();
    let config = config(&file);
    assert_eq!((config.head_dim, config.ropes[0].dims), (4, 4));
    assert_eq!(config.ropes[0].factors, Some(vec![1.0, 8.0]));
}

#[test]
fn missing_and_mistyped_keys_are_told_apart() {
    let error = refusal(|file| file.remove("llama.block_count"));
    assert_eq!(error, LoadError::MissingKey { key: "llama.block_count".into() });
    let error = refused_key("llama.block_count", text("one"));
    assert!(error.contains("should be a whole number"), "{error}");
    let error = refused_key("tokenizer.ggml.tokens", number(1));
    assert!(error.contains("should be an array of strings"), "{error}");
    let error = refused_key("llama.attention.layer_norm_rms_epsilon", float(f32::NAN));
    assert!(error.contains("finite"), "{error}");
}

#[test]
fn lies_about_metadata_are_told_with_their_numbers() {
    assert!(matches!(
        refusal(|file| file.claimed_keys = Some(1 << 60)),
        LoadError::Count { what: "metadata keys", count, each: 13, .. } if count == 1 << 60
    ));
    assert!(matches!(
        refusal(|file| file.claimed_tensors = Some(1 << 60)),
        LoadError::Count { what: "tensors", .. }
    ));
    let long = meta(9, &[&4u32.to_le_bytes()[..], &(1u64 << 40).to_le_bytes()].concat());
    assert!(matches!(
        refusal(|file| file.set("x", long)),
        LoadError::Count { what: "array elements", count, each: 4, .. } if count == 1 << 40
    ));
    assert!(matches!(
        refusal(|file| file.set("x", meta(8, &(1u64 << 40).to_le_bytes()))),
        LoadError::Truncated { what: "a metadata string", .. }
    ));
    assert_eq!(
        refusal(|file| file.set("x", meta(13, &[]))),
        LoadError::ValueType { key: "x".into(), found: 13 }
    );
    assert_eq!(
        refusal(|file| file.set("x", flag(2))),
        LoadError::Boolean { key: "x".into(), found: 2 }
    );
    let deep = (0..6).fold(vec![], |inner: Vec<u8>, _| array(9, &[inner])[4..].to_vec());
    assert!(matches!(
        refusal(|file| file.set("x", meta(9, &deep))),
        LoadError::Nesting { limit: 4, .. }
    ));
    assert_eq!(
        refusal(|file| file.keys.push(file.keys[1].clone())),
        LoadError::Duplicate { what: "metadata key", name: "llama.block_count".into() }
    );
    let broken = meta(8, &[&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat());
    assert!(refused_key("tokenizer.ggml.model", broken).contains("not UTF-8"));
    assert!(refused_key("general.alignment", number(24)).contains("power of two"));
}

#[test]
fn lies_about_tensors_are_told_with_their_numbers() {
    const Q: &str = "blk.0.attn_q.weight";
    let tensor = || Q.to_owned();
    assert_eq!(
        refusal(|file| file.tensor(Q).kind = 4),
        LoadError::UnknownType { tensor: tensor(), found: 4 }
    );
    assert_eq!(
        refusal(|file| file.tensor(Q).dims = vec![1; 5]),
        LoadError::Dimensions { tensor: tensor(), found: 5, limit: 4 }
    );
    assert_eq!(
        refusal(|file| file.tensor(Q).dims = vec![1 << 40, 1 << 40]),
        LoadError::Overflow { tensor: tensor(), dims: vec![1 << 40, 1 << 40] }
    );
    assert!(matches!(
        refusal(|file| file.tensor(Q).dims = vec![1 << 20, 1 << 20]),
        LoadError::TensorData { end, .. } if end >= 1 << 42
    ));
    assert_eq!(
        refusal(|file| {
            file.tensor(Q).kind = 12;
            file.tensor(Q).dims = vec![32, 32];
        }),
        LoadError::BlockSize { tensor: tensor(), row: 32, block: 256, dtype: "Q4_K" }
    );
    assert_eq!(
        refusal(|file| file.tensor(Q).offset = Some(7)),
        LoadError::Misaligned { tensor: tensor(), offset: 7, alignment: 32 }
    );
    assert_eq!(
        refusal(|file| file.tensor(Q).offset = Some(0)),
        LoadError::Overlap { first: "token_embd.weight".into(), second: tensor() }
    );
    assert_eq!(
        refusal(|file| file.tensor(Q).name = "output_norm.weight".into()),
        LoadError::Duplicate { what: "tensor", name: "output_norm.weight".into() }
    );
    assert_eq!(
        refusal(|file| file.tensor(Q).dims = vec![64, 16]),
        LoadError::Shape { tensor: tensor(), expected: vec![32, 32], found: vec![16, 64] }
    );
    assert_eq!(
        refusal(|file| file.tensors.retain(|tensor| tensor.name != Q)),
        LoadError::MissingTensor { tensor: tensor() }
    );
    assert_eq!(
        refusal(|file| file.add("blk.0.attn_q_norm.weight", &[8])),
        LoadError::UnexpectedTensor {
            tensor: "blk.0.attn_q_norm.weight".into(),
            architecture: "llama"
        }
    );
    let error = refusal(|file| file.tensor(Q).kind = 24).to_string();
    assert!(error.contains(Q) && error.contains("I8"), "{error}");
}

#[test]
fn a_weight_that_is_no_number_is_refused_by_the_name_of_its_tensor() {
    for name in ["token_embd.weight", "blk.0.ffn_norm.weight", "blk.0.attn_k.weight"] {
        for number in [f32::NAN, f32::INFINITY] {
            let odd = |file: &mut File| {
                file.tensor(name).data[60..64].copy_from_slice(&number.to_le_bytes());
            };
            let (tensor, found) = (name.into(), number.to_string());
            assert_eq!(refusal(odd), LoadError::NotFinite { tensor, found });
        }
    }
    let scale_of = |file: &mut File| {
        file.set("llama.embedding_length", number(32));
        let tensor = file.tensor("blk.0.ffn_up.weight");
        // Q8_0: 64 blocks of a scale and 32 bytes.
        (tensor.kind, tensor.data) = (8, vec![0; 64 * 34]);
        tensor.data[34 * 7 + 1] = 0x7c;
    };
    let (tensor, found) = ("blk.0.ffn_up.weight".into(), "inf".into());
    assert_eq!(refusal(scale_of), LoadError::NotFinite { tensor, found });
}

#[test]
fn other_versions_and_byte_orders_are_named() {
    let version = |version: u32| refusal(|file| file.version = version).to_string();
    assert!(version(1).contains("version 1 is not read: convert the file"));
    assert!(version(3u32.swap_bytes()).contains("big-endian"));
    assert!(version(9).contains("versions 2 and 3"));
}

#[test]
fn a_file_cut_anywhere_is_an_error_and_never_a_panic() {
    let bytes = llama().bytes();
    for length in 0..bytes.len() {
        assert!(read(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_file_with_changed_bytes_never_panics(
        changes in proptest::collection::vec((0usize..2000, any::<u8>()), 1..4),
    ) {
        let mut bytes = llama().bytes();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        let _ = read(&bytes);
    }
}
