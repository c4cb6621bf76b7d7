//! Whatever instructions a processor has, a model gives the same bits on it: so a cache that was
//! filled on one machine serves on another.

use serde_json::Value;
use tinygpt_tests::process::{Home, Started};
use tinygpt_tests::prompts::long;

/// A small Llama with weights of 4 bits, and the built-in model with plain ones.
const MODELS: [&str; 2] = ["tiny", "builtin"];

/// Starts a daemon on both, with the instructions called so, or the best.
fn serve(home: &Home, isa: Option<&str>) -> Started {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/gguf_tiny/llama/Q4_0.gguf");
    let mut command = home.daemon();
    command.args(["--model", &format!("tiny={file}")]);
    command.envs(isa.map(|isa| ("TINYGPT_ISA", isa)));
    let daemon = Started::new(&mut command);
    let _ = home.run(&["wait", "--ready"]).ok();
    daemon
}

fn sample(home: &Home, model: &str, more: &[&str]) -> Value {
    let ids: Vec<_> = long(90).bytes().map(|byte| byte.to_string()).collect();
    let fixed = ["sample", "--json", "--temperature", "0", "-n", "20", "--logprobs", "5"];
    let prompt = ["--model", model, "--token-ids", &ids.join(",")];
    home.run(&[&fixed, &prompt[..], more].concat()).json()
}

#[test]
fn every_processor_gives_the_same_probabilities_and_reads_the_caches_of_others() {
    let home = Home::new();
    let mut plain = serve(&home, Some("plain"));
    let durable = ["--persist", "durable"];
    let cold = MODELS.map(|model| sample(&home, model, &durable));
    plain.terminate();
    let _best = serve(&home, None);
    for (model, cold) in MODELS.into_iter().zip(&cold) {
        let miss = sample(&home, model, &["--cache-policy", "bypass"]);
        let hit = sample(&home, model, &[]);
        assert_eq!((&cold["verdict"], &hit["verdict"]), (&"COLD".into(), &"FULL_DISK".into()));
        for warm in [&miss, &hit] {
            assert_eq!(warm["logprobs"], cold["logprobs"], "{model}");
            assert_eq!(warm["token_ids"], cold["token_ids"], "{model}");
        }
    }
}
