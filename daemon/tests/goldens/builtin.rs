//! The built-in model against an independent numpy forward.

use serde_json::Value;
use tinygptd::model::load::BUILTIN;

use crate::files::{floats, ids, json, read};
use crate::runner::{Runner, distance};

const TOLERANCE: f32 = 1e-3;

fn prompts(golden: &Value) -> impl Iterator<Item = (&String, &Value)> {
    golden["prompts"].as_object().unwrap().iter()
}

fn check(model: &[u8], golden: &str) {
    for mut runner in Runner::everywhere(model) {
        for (name, case) in prompts(&json(golden)) {
            let logits = runner.prompt(&ids(&case["ids"]));
            let error = distance(&logits, &floats(&case["logits"]));
            assert!(error <= TOLERANCE, "{name}: {error}");
            if let Some(greedy) = case.get("greedy64") {
                assert_eq!(runner.greedy(logits, 64), ids(greedy), "{name}");
            }
        }
    }
}

#[test]
fn the_built_in_model_computes_and_continues_as_the_reference_does() {
    check(BUILTIN, "builtin/golden.json");
}

#[test]
fn its_int4_file_computes_what_the_dequantised_weights_do() {
    check(&read("builtin/builtin-int4.tinygpt"), "builtin/golden-int4.json");
}
