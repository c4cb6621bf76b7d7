//! The beginning-of-sequence token has one owner, the daemon's tokenizer, and two of them are told.
#![expect(clippy::unwrap_used, reason = "tests")]

use serde_json::{Value, json};
use tinygpt_tests::process::Home;

/// A model whose prompts begin with the token 507, `<|begin_of_text|>`.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/gguf/llama3rope-Q4_1.gguf");
const BOS: u64 = 507;

fn sample(home: &Home, prompt: &[&str]) -> Value {
    let arguments = ["sample", "--json", "--temperature", "0", "-n", "2", "--echo-ids"];
    home.run(&[&arguments, prompt].concat()).json()
}

/// How many of the ids in front are the token, and whether somebody was warned.
fn begins(report: &Value) -> (usize, bool) {
    let ids = report["prompt_token_ids"].as_array().unwrap();
    let warnings = report["warnings"].as_array().unwrap();
    let said = |words: &Value| words.as_str().unwrap().contains("two beginning-of-sequence");
    (ids.iter().take_while(|id| **id == json!(BOS)).count(), warnings.iter().any(said))
}

#[test]
fn a_prompt_that_brings_its_own_beginning_is_warned_of_the_second() {
    let home = Home::new();
    let _daemon = home.serve(&["--model", MODEL]);
    assert_eq!(begins(&sample(&home, &["--prompt", "hello"])), (1, false));
    let doubled = sample(&home, &["--prompt", "<|begin_of_text|>hello"]);
    assert_eq!(begins(&doubled), (2, true));
    assert_eq!(begins(&sample(&home, &["--prompt", "hello<|begin_of_text|>"])), (1, false));
    let ids = doubled["prompt_token_ids"].as_array().unwrap();
    let ids = ids.iter().map(Value::to_string).collect::<Vec<_>>();
    assert_eq!(begins(&sample(&home, &["--token-ids", &ids.join(",")])), (2, true));
    assert_eq!(begins(&sample(&home, &["--token-ids", &ids[1..].join(",")])), (1, false));
}
