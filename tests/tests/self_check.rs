//! `tinygptd --self-check` compares cached prompts with computed ones, bit for bit.
#![expect(clippy::unwrap_used, reason = "tests")]

use tinygpt_tests::process::{Home, ended};
use tinygpt_tests::prompts;
use tinygpt_tests::seeded::Shape;

#[test]
fn cached_prompts_are_found_equal_to_computed_ones() {
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    for bytes in [64, 100, 900] {
        let prompt = prompts::long(bytes);
        let arguments = ["sample", "--persist", "durable", "-n", "1", "--json", "--prompt"];
        let _ = home.run(&[&arguments[..], &[&prompt]].concat()).ok();
    }
    daemon.terminate();
    let (code, said) = ended(home.daemon().arg("--self-check"));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("checked=3 different=0"), "{said}");
}

#[test]
fn a_model_with_many_prompts_hides_no_other() {
    let home = Home::new();
    let file = home.path("other.tinygpt");
    Shape::new(1, 1, 32, 128).write(&file).unwrap();
    let model = file.display().to_string();
    let mut daemon = home.serve(&["--model", &model]);
    let warm = |model: &str, prompt: &str| {
        let arguments = ["warm", "--persist", "durable", "--model", model, "--prompt", prompt];
        let _ = home.run(&arguments).ok();
    };
    warm("other", &prompts::long(64));
    for bytes in 64..81 {
        warm("builtin", &prompts::long(bytes));
    }
    daemon.terminate();
    let (code, said) = ended(home.daemon().args(["--self-check", "--model", &model]));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("checked=17 different=0"), "16 of one and 1 of the other: {said}");
}

#[test]
fn without_a_cache_there_is_nothing_to_check() {
    let home = Home::new();
    let (code, said) = ended(home.daemon().args(["--self-check", "--no-persist"]));
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("nothing is persisted"), "{said}");
}
