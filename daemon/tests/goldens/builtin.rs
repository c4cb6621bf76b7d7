//! The built-in model against an independent numpy forward.

use serde_json::Value;
use tinygptd::model::load::BUILTIN;

use crate::files::{floats, ids, json, read};
use crate::runner::{Runner, distance};

const TOLERANCE: f32 = 1e-3;

fn prompts(golden: &Value) -> impl Iterator<Item = (&String, &Value)> {
    golden["prompts"].as_object().unwrap().iter()
}

#[test]
fn the_built_in_model_computes_and_continues_as_the_reference_does() {
    let mut runner = Runner::new(BUILTIN);
    for (name, case) in prompts(&json("builtin/golden.json")) {
        let logits = runner.prompt(&ids(&case["ids"]));
        let error = distance(&logits, &floats(&case["logits"]));
        assert!(error <= TOLERANCE, "{name}: {error}");
        assert_eq!(runner.greedy(logits, 64), ids(&case["greedy64"]), "{name}");
    }
}

#[test]
fn its_int4_file_computes_what_the_dequantised_weights_do() {
    let mut runner = Runner::new(&read("builtin/builtin-int4.tinygpt"));
    for (name, case) in prompts(&json("builtin/golden-int4.json")) {
        let logits = runner.prompt(&ids(&case["ids"]));
        let error = distance(&logits, &floats(&case["logits"]));
        assert!(error <= TOLERANCE, "{name}: {error}");
    }
}
