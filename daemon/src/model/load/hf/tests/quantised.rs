//! Directories that MLX quantised, and what is said of those that lie.

use std::collections::BTreeMap;

use super::*;

/// Element type and shape by name.
type Tensors = BTreeMap<String, (&'static str, Vec<usize>)>;

/// A Llama of width 64 whose layers have 4 bits in groups of 32.
fn quantised() -> (Value, Tensors) {
    let mut config = llama();
    for (key, value) in [
        ("hidden_size", json!(64)),
        ("intermediate_size", json!(128)),
        ("quantization", json!({"bits": 4, "group_size": 32})),
    ] {
        config[key] = value;
    }
    let scaled = |dim: usize| if dim == 3 { 3 } else { 32 * dim };
    let mut all = Tensors::new();
    for (name, shape) in tensors() {
        let shape: Vec<usize> = shape.into_iter().map(scaled).collect();
        match shape[..] {
            [n, k] => {
                let module = name.trim_end_matches(".weight");
                all.insert(name.into(), ("U32", vec![n, k / 8]));
                for part in ["scales", "biases"] {
                    all.insert(format!("{module}.{part}"), ("BF16", vec![n, k / 32]));
                }
            }
            _ => drop(all.insert(name.into(), ("F32", shape))),
        }
    }
    (config, all)
}

fn write(config: &Value, tensors: &Tensors) -> Model {
    let (model, mut header, mut end) = (Model::new(), serde_json::Map::new(), 0);
    for (name, (dtype, shape)) in tensors {
        let bytes = match *dtype {
            "U8" => 1,
            "BF16" | "F16" => 2,
            _ => 4,
        };
        let begin = end;
        end += bytes * shape.iter().product::<usize>();
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let size = (header.len() as u64).to_le_bytes();
    model.write("config.json", config.to_string());
    model.write("model.safetensors", [&size[..], header.as_bytes(), &vec![0; end]].concat());
    model
}

/// What is said of the model once it was changed.
fn refusal(change: impl FnOnce(&mut Value, &mut Tensors)) -> String {
    let (mut config, mut tensors) = quantised();
    change(&mut config, &mut tensors);
    write(&config, &tensors).refusal()
}

const Q: &str = "model.layers.0.self_attn.q_proj";

#[test]
fn a_quantised_model_keeps_its_weights_in_their_bits() {
    let (config, tensors) = quantised();
    let model = write(&config, &tensors).load().unwrap();
    assert_eq!(model.quantisation, "affine 4 bits, groups of 32");
    let matrices = model.weights.matrices();
    assert_eq!(matrices.len(), 9);
    // Rows come in tiles of sixteen; two numbers of 16 bits for each group.
    let bytes = |n: usize, k: usize| n.next_multiple_of(16) * (k / 2 + k / 32 * 4);
    for matrix in matrices {
        assert_eq!(matrix.bytes(), bytes(matrix.n(), matrix.k()), "{matrix:?}");
    }
}

#[test]
fn a_layer_may_be_plain_or_of_another_scheme_than_the_rest() {
    let (mut config, mut tensors) = quantised();
    config["quantization"][Q] = json!(false);
    tensors.retain(|name, _| !name.starts_with(Q));
    tensors.insert(format!("{Q}.weight"), ("F16", vec![64, 64]));
    // Nothing is said of this one: its shapes are those of MXFP4.
    let k = "model.layers.0.self_attn.k_proj";
    tensors.remove(&format!("{k}.biases"));
    tensors.insert(format!("{k}.scales"), ("U8", vec![64, 2]));
    write(&config, &tensors).load().unwrap();
}

#[test]
fn what_a_quantised_directory_lies_about_is_told_by_name() {
    let named = |part: &str| format!("{Q}.{part}");
    let without = |part| refusal(|_, tensors| drop(tensors.remove(&named(part))));
    assert!(without("biases").contains("q_proj.biases\" is missing"));
    // Without scales it would be plain numbers, which it is not.
    assert!(without("scales").contains("q_proj.weight"));
    let other = |part: &str, dtype: &'static str, shape: &[usize]| {
        let (name, shape) = (named(part), shape.to_vec());
        refusal(|_, tensors| drop(tensors.insert(name, (dtype, shape))))
    };
    for (part, dtype, shape, words) in [
        ("biases", "F16", [64, 2], "the element type of tensor"),
        ("biases", "BF16", [64, 1], "q_proj.biases\" has the shape"),
        ("scales", "BF16", [32, 2], "q_proj.scales\" has the shape"),
        ("scales", "BF16", [64, 3], "the quantisation of tensor"),
        ("weight", "U32", [64, 7], "the quantisation of tensor"),
        ("weight", "F32", [64, 8], "the element type of tensor"),
        ("global_scale", "F32", [1, 1], "q_proj.global_scale\" has no place"),
    ] {
        let refusal = other(part, dtype, &shape);
        assert!(refusal.starts_with("model.safetensors: "), "{refusal}");
        assert!(refusal.contains(words) && refusal.contains(part), "{part} {words}: {refusal}");
    }
    let said = refusal(|config, _| config["quantization"][Q] = json!({"bits": 8}));
    assert!(said.contains("q_proj.weight\" has the shape"), "{said}");
    let said = refusal(|config, _| config["quantization"] = Value::Null);
    assert!(said.contains("the shape") || said.contains("no place"), "{said}");
    let said = refusal(|config, _| {
        config["quantization"][Q] = json!({"bits": 4, "group_size": 128});
    });
    assert!(said.contains("q_proj.weight") && said.contains("128-element"), "{said}");
    let said = refusal(|config, _| config["quantization"]["bits"] = json!(9));
    assert!(said.starts_with("config.json: ") && said.contains("quantization.bits"), "{said}");
}
