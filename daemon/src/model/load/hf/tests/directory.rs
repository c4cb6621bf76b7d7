//! Which files are read, and what is said of those that lie.

use tinygpt_kernels::Matrix;

use super::*;
use crate::model::load::{LlamaWeights, Weights};

fn weights(model: &Model) -> LlamaWeights {
    match model.load().unwrap().weights {
        Weights::Llama(weights) => weights,
        other => panic!("{other:?}"),
    }
}

fn row(matrix: &Matrix, n: usize) -> Vec<f32> {
    let mut row = vec![0.0; matrix.k()];
    matrix.row(n, &mut row);
    row
}

#[test]
fn a_model_is_the_same_from_one_file_from_an_index_and_from_whatever_files_there_are() {
    let model = Model::new();
    let whole = weights(&model);
    assert_eq!(row(whole.head.as_ref().unwrap(), 2), [4.0, 5.0]);
    assert_eq!(row(&whole.token_embedding, 1), [8.0, 9.0]);
    assert_eq!(whole.final_norm.weight, [56.0, 57.0]);
    model.remove("model.safetensors");
    let tensors = tensors();
    let (first, second) = tensors.split_at(5);
    model.write_tensors("b.safetensors", first);
    model.write_tensors("a.safetensors", second);
    model.write("adapter_model.safetensors", "no model");
    let scattered = weights(&model);
    assert_eq!(row(&scattered.token_embedding, 1), [8.0, 9.0]);
    assert_eq!(scattered.final_norm.weight, [26.0, 27.0]);
    // The index knows which of them count.
    model.write("c.safetensors", "no model");
    assert!(model.refusal().starts_with("c.safetensors: "), "{}", model.refusal());
    index(&model, |_| {});
    assert_eq!(weights(&model).final_norm.weight, [26.0, 27.0]);
}

/// An index of the two files above.
fn index(model: &Model, change: impl Fn(&mut Value)) {
    let tensors = tensors();
    let file = |at| if at < 5 { "b.safetensors" } else { "a.safetensors" };
    let map = tensors.iter().enumerate().map(|(at, (name, _))| ((*name).into(), file(at).into()));
    let mut map = Value::Object(map.collect());
    change(&mut map);
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    model.write("model.safetensors.index.json", index.to_string());
}

#[test]
fn an_index_that_lies_is_told_by_the_tensor_and_the_file() {
    let model = Model::new();
    model.remove("model.safetensors");
    let tensors = tensors();
    let (first, second) = tensors.split_at(5);
    model.write_tensors("b.safetensors", first);
    model.write_tensors("a.safetensors", second);
    let said = |tensor: &str, file: &str| {
        index(&model, |map| map[tensor] = file.into());
        model.refusal()
    };
    let misplaced =
        "tensor \"model.norm.weight\" should be in b.safetensors, which does not have it";
    assert_eq!(said("model.norm.weight", "b.safetensors"), misplaced);
    let nowhere = "tensor \"x\" should be in b.safetensors, which does not have it";
    assert_eq!(said("x", "b.safetensors"), nowhere);
    assert_eq!(said("x", "d.safetensors"), "the directory has no d.safetensors");
    for elsewhere in ["../b.safetensors", "/etc/passwd", "sub/b.safetensors", "b.bin", ""] {
        let expected = format!(
            "model.safetensors.index.json: \"{elsewhere}\" is not the name of a .safetensors file \
             in the directory"
        );
        assert_eq!(said("x", elsewhere), expected);
    }
}

#[test]
fn a_file_that_is_missing_or_not_what_it_should_be_is_named() {
    for (file, said) in [
        ("config.json", "the directory has no config.json"),
        ("tokenizer.json", "the directory has no tokenizer.json"),
        ("model.safetensors", "the directory has no *.safetensors"),
    ] {
        let model = Model::new();
        model.remove(file);
        assert_eq!(model.refusal(), said);
    }
    for file in ["config.json", "generation_config.json", "tokenizer_config.json"] {
        let model = Model::new();
        model.write(file, "{");
        assert!(model.refusal().starts_with(&format!("{file}: not valid JSON: EOF")));
        model.write(file, "[]");
        assert!(model.refusal().starts_with(&format!("{file}: ")), "{}", model.refusal());
    }
    let model = Model::new();
    model.write("model.safetensors", "\x05\0\0\0\0\0\0\0{}");
    assert!(model.refusal().starts_with("model.safetensors: the file ends inside the JSON header"));
}

#[test]
fn a_tensor_that_is_missing_left_over_or_misshapen_is_named_with_its_file() {
    let refusal = |change: fn(&mut Vec<(&str, Vec<usize>)>)| {
        let model = Model::new();
        let mut tensors = tensors();
        change(&mut tensors);
        model.write_tensors("model.safetensors", &tensors);
        model.refusal()
    };
    assert_eq!(refusal(|tensors| drop(tensors.pop())), "tensor \"model.norm.weight\" is missing");
    assert_eq!(
        refusal(|tensors| tensors.push(("model.layers.1.mlp.up_proj.weight", vec![1]))),
        "model.safetensors: tensor \"model.layers.1.mlp.up_proj.weight\" has no place in the \
         architecture \"llama\""
    );
    assert_eq!(
        refusal(|tensors| tensors[1].1 = vec![2, 3]),
        "model.safetensors: tensor \"model.embed_tokens.weight\" has the shape [2, 3], expected \
         [3, 2]"
    );
    // Biases that the configuration does not speak of would change what is computed.
    const BIAS: &str = "model.layers.0.self_attn.q_proj.bias";
    assert!(refusal(|tensors| tensors.push((BIAS, vec![2]))).contains("has no place"));
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let model = Model::new();
    model.remove("model.safetensors");
    model.write_tensors("a.safetensors", &tensors());
    model.write_tensors("b.safetensors", &tensors()[..1]);
    assert_eq!(model.refusal(), "b.safetensors: tensor \"lm_head.weight\" appears twice");
}

#[test]
fn a_tied_head_is_the_embedding_whatever_is_stored_beside_it() {
    let model = Model::new();
    let mut config = llama();
    config["tie_word_embeddings"] = true.into();
    model.write("config.json", config.to_string());
    assert!(weights(&model).head.is_none());
    model.write_tensors("model.safetensors", &tensors()[1..]);
    assert!(weights(&model).head.is_none());
    model.write("config.json", llama().to_string());
    assert_eq!(model.refusal(), "tensor \"lm_head.weight\" is missing");
}

#[test]
fn frequencies_that_old_models_carry_are_left_alone() {
    let model = Model::new();
    let mut tensors = tensors();
    tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq", vec![1]));
    model.write_tensors("model.safetensors", &tensors);
    assert!(model.load().is_ok());
}

#[test]
fn elements_that_are_no_plain_numbers_are_refused_by_name() {
    let model = Model::new();
    let path = model.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let at = bytes.windows(5).position(|window| window == b"\"F32\"").unwrap();
    for (dtype, said) in [
        ("\"I32\"", "the element type of tensor \"lm_head.weight\" is not supported: I32"),
        ("\"F33\"", "tensor \"lm_head.weight\" has the unknown element type \"F33\""),
    ] {
        let mut bytes = bytes.clone();
        bytes[at..at + 5].copy_from_slice(dtype.as_bytes());
        model.write("model.safetensors", bytes);
        assert_eq!(model.refusal(), format!("model.safetensors: {said}"));
    }
}
