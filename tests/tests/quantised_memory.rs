//! What a daemon with a quantised model holds: its packed weights, the KV it may have, and little
//! else. The kernel's own counts say so, at their highest.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::env;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use tinygpt_tests::process::Home;
use tinygpt_tests::prompts;

/// Besides weights and KV: the program and its libraries, threads, the vocabulary, buffers.
const ELSE: usize = 60_000_000;
/// What requests may have, and what the cache may.
const KV: [usize; 2] = [16 << 20, 8 << 20];

/// Serves a model, asks it something long, and looks: its weights are at least so many bytes.
fn check(model: &Path, least: usize) {
    let home = Home::new();
    let [active, cache] = KV.map(|bytes| bytes.to_string());
    let budgets = ["--active-memory", &active, "--cache-memory", &cache];
    let daemon = home.serve(&[&["--model", model.to_str().unwrap()], &budgets[..]].concat());
    let fixed = ["sample", "-n", "8", "--temperature", "0", "--json"];
    let _ = home.run(&[&fixed[..], &["--prompt", &prompts::long(200)]].concat()).ok();
    let models = home.run(&["models", "--json"]).json();
    let weights = models["models"][0]["weight_bytes"].as_u64().unwrap() as usize;
    assert!(weights >= least, "{weights} bytes of weights");
    let peak = peak(daemon.pid());
    let most = weights + KV.iter().sum::<usize>() + ELSE;
    assert!(peak <= most, "{}: {peak} bytes, {weights} of them weights", model.display());
}

/// The most bytes of a process that were resident at once.
fn peak(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() * 1024
}

/// Where something is that the repository does not hold.
fn named(variable: &str) -> Option<PathBuf> {
    let path = env::var_os(variable).map(PathBuf::from).filter(|path| path.exists());
    if path.is_none() {
        assert!(env::var("CI").as_deref() != Ok("true"), "CI=true allows no skip: {variable}");
        eprintln!("skipped: {variable} names nothing");
    }
    path
}

/// A directory with a Llama whose layers are codes of 4 bits in groups of 64, all of them zeros: in
/// f32 it would take more than 200 MB.
fn mlx(directory: &Path) {
    const WIDTH: usize = 1024;
    const MLP: usize = 4096;
    fs::create_dir(directory).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/mlx/every_scheme");
    fs::copy(golden.join("tokenizer.json"), directory.join("tokenizer.json")).unwrap();
    let config = json!({
        "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": MLP,
        "num_hidden_layers": 4, "num_attention_heads": 16, "max_position_embeddings": 1024,
        "vocab_size": 512, "tie_word_embeddings": true,
        "quantization": {"bits": 4, "group_size": 64},
    });
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    let mut tensors = vec![("model.embed_tokens".to_owned(), [512, WIDTH])];
    let mut norms = vec!["model.norm.weight".to_owned()];
    for layer in 0..4 {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        norms.extend(["input_layernorm.weight", "post_attention_layernorm.weight"].map(name));
        let square = ["q", "k", "v", "o"].map(|part| name(&format!("self_attn.{part}_proj")));
        tensors.extend(square.map(|name| (name, [WIDTH, WIDTH])));
        tensors
            .extend(["gate", "up"].map(|part| (name(&format!("mlp.{part}_proj")), [MLP, WIDTH])));
        tensors.push((name("mlp.down_proj"), [WIDTH, MLP]));
    }
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    let mut put = |name: String, dtype: &str, shape: &[usize], bytes: usize| {
        let (begin, size) = (end, bytes * shape.iter().product::<usize>());
        end += size;
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]});
        header.insert(name, entry);
    };
    for (name, [n, k]) in tensors {
        put(format!("{name}.weight"), "U32", &[n, k / 8], 4);
        for part in ["scales", "biases"] {
            put(format!("{name}.{part}"), "BF16", &[n, k / 64], 2);
        }
    }
    norms.into_iter().for_each(|name| put(name, "BF16", &[WIDTH], 2));
    let header = serde_json::Value::Object(header).to_string();
    let head = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let file = fs::File::create(directory.join("model.safetensors")).unwrap();
    file.write_all_at(&head, 0).unwrap();
    file.set_len((head.len() + end) as u64).unwrap();
}

#[test]
fn a_gguf_model_takes_its_packed_weights_and_little_else() {
    let Some(model) = named("TINYGPT_REAL_MODEL") else { return };
    check(&model, 80_000_000);
}

#[test]
fn an_mlx_model_does() {
    let home = Home::new();
    mlx(&home.path("model"));
    check(&home.path("model"), 30_000_000);
}
