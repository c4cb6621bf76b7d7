//! A daemon that serves a Hugging Face directory: what it says of it, what it remembers, and how
//! it says what is wrong.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;

use serde_json::{Value, json};
use tinygpt_tests::directory::{self, SHARDS, config};
use tinygpt_tests::process::{Home, Started, ended};

/// A home with a directory whose name has a dot.
fn home() -> Home {
    let home = Home::new();
    directory::write(&home.path("tiny-0.1B")).unwrap();
    home
}

fn serve(home: &Home) -> Started {
    home.serve(&["--model", home.path("tiny-0.1B").to_str().unwrap()])
}

fn write(home: &Home, file: &str, contents: &Value) {
    fs::write(home.path("tiny-0.1B").join(file), contents.to_string()).unwrap();
}

/// What the model says, and where its prompt came from.
fn answer(home: &Home) -> (Value, String) {
    let prompt = "Shall I compare thee to a summer's day? Thou art more lovely and more temperate.";
    let fixed = ["sample", "-n", "8", "--temperature", "0", "--json", "--persist", "durable"];
    let answer = home.run(&[&fixed[..], &["--prompt", prompt]].concat()).json();
    (answer["token_ids"].clone(), answer["verdict"].to_string())
}

#[test]
fn a_directory_is_served_cold_warm_after_a_restart_and_after_a_change() {
    let home = home();
    let mut daemon = serve(&home);
    let models = home.run(&["models", "--json"]).json();
    let model = &models["models"][0];
    assert_eq!((&model["name"], &model["architecture"]), (&json!("tiny-0.1B"), &json!("llama")));
    let (said, cold) = answer(&home);
    let (again, warm) = answer(&home);
    assert_eq!(again, said);
    assert_ne!(warm, cold);
    daemon.terminate();
    let _daemon = serve(&home);
    let (again, restarted) = answer(&home);
    assert_eq!(again, said);
    assert!(restarted != cold && restarted != warm, "{cold} {warm} {restarted}");
    let mut other = config();
    other["rope_theta"] = json!(100.0);
    write(&home, "config.json", &other);
    let (_, changed) = answer(&home);
    assert_eq!(changed, cold);
}

#[test]
fn what_is_wrong_with_a_directory_is_said_with_the_file_and_the_key() {
    let home = home();
    let refused = || {
        let mut daemon = home.daemon();
        ended(daemon.arg("--model").arg(home.path("tiny-0.1B")))
    };
    let mut scaled = config();
    scaled["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0});
    write(&home, "config.json", &scaled);
    let (code, said) = refused();
    assert_eq!(code, 69, "{said}");
    let yarn = "config.json: key \\\"rope_scaling.rope_type\\\" is not supported";
    assert!(said.contains(yarn) || said.contains(&yarn.replace('\\', "")), "{said}");
    write(&home, "config.json", &config());
    fs::remove_file(home.path("tiny-0.1B").join(SHARDS[1])).unwrap();
    let (code, said) = refused();
    assert_eq!(code, 69, "{said}");
    assert!(said.contains(&format!("the directory has no {}", SHARDS[1])), "{said}");
}
