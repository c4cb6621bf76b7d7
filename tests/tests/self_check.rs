//! `tinygptd --self-check` compares cached prompts with computed ones, bit for bit.

use tinygpt_tests::process::{Home, ended};
use tinygpt_tests::prompts;

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
fn without_a_cache_there_is_nothing_to_check() {
    let home = Home::new();
    let (code, said) = ended(home.daemon().args(["--self-check", "--no-persist"]));
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("nothing is persisted"), "{said}");
}
