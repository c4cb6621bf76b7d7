//! Adapters of a served model, by name.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;

use tinygpt_client::exit::Exit;
use tinygpt_tests::adapters::Adapter;
use tinygpt_tests::client::Answer;
use tinygpt_tests::directory;
use tinygpt_tests::process::{Home, Started};

/// Long enough to be written to disk.
const PROMPT: &str = "a system prompt that several agents begin with, each with an adapter of its \
                      own, and one of them without any: it is longer than a block of tokens is";

fn serve(home: &Home) -> Started {
    let path = |name: &str| home.path(name).display().to_string();
    let [model, one, two, far] = [
        path("model"),
        format!("one={}", path("one")),
        format!("model/two={}", path("two.lora")),
        format!("builtin/far={}", path("far.lora")),
    ];
    home.serve(&["--model", &model, "--adapter", &one, "--adapter", &two, "--adapter", &far])
}

fn sample<'a>(adapter: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["sample", "--prompt", PROMPT, "-n", "12", "--temperature", "0", "--json"];
    [&fixed[..], &["--echo-ids", "--adapter", adapter], more].concat()
}

/// What was generated, and the verdict.
fn told(answer: Answer) -> (String, String) {
    let answer = answer.json();
    (answer["token_ids"].to_string(), answer["verdict"].as_str().unwrap().to_owned())
}

#[test]
fn requests_with_and_without_adapters_run_at_once_and_each_is_as_if_it_were_alone() {
    let home = Home::new();
    directory::write(&home.path("model")).unwrap();
    Adapter::of_directory(1).write_peft(&home.path("one")).unwrap();
    fs::write(home.path("two.lora"), Adapter::of_directory(2).lora()).unwrap();
    let layers = vec![("blocks.0.attn.q_proj".to_owned(), [192, 192])];
    let far = Adapter { rank: 1, alpha: 1.0, seed: 3, layers };
    fs::write(home.path("far.lora"), far.lora()).unwrap();
    let mut daemon = serve(&home);

    let _ = home.run(&["models", "load", "builtin"]).ok();
    let models = home.run(&["models", "--json"]).json();
    let name = |model: usize, at: usize| models["models"][model]["adapters"][at]["name"].clone();
    assert_eq!([name(0, 0), name(0, 1), name(1, 0)], ["one", "two", "far"]);
    assert_eq!(models["models"][0]["adapters"][0]["rank"], 4);
    let table = home.run(&["models"]).ok().stdout;
    assert!(table.contains("one, two"), "{table}");

    let names = ["", "one", "two"];
    let bypass = &["--cache-policy", "bypass"];
    let alone = names.map(|name| told(home.run(&sample(name, bypass))).0);
    assert!(alone[0] != alone[1] && alone[1] != alone[2] && alone[0] != alone[2], "{alone:?}");
    let together = std::thread::scope(|scope| {
        let home = &home;
        let run =
            |name| scope.spawn(move || told(home.run(&sample(name, &["--persist", "durable"]))));
        names.map(run).map(|thread| thread.join().unwrap())
    });
    for (got, alone) in together.iter().zip(&alone) {
        assert_eq!((&got.0, &*got.1), (alone, "COLD"));
    }
    assert!(daemon.terminate().success());

    let _daemon = serve(&home);
    for (name, alone) in names.into_iter().zip(&alone) {
        let (ids, verdict) = told(home.run(&sample(name, &[])));
        assert_eq!((&ids, &*verdict), (alone, "FULL_DISK"), "{name:?}");
    }
    let explain = ["cache", "explain", "--prompt", PROMPT, "--json", "--adapter", "one"];
    assert_eq!(home.run(&explain).json()["verdict"], "FULL_MEMORY");
    let scored = |name| {
        let score = ["score", "--prompt", "abcdef", "--json", "--adapter", name];
        home.run(&score).json()["logprobs"].to_string()
    };
    assert_ne!(scored("one"), scored(""));
    let warm = ["warm", "--prompt", "fresh", "--json", "--adapter", "two"];
    assert_eq!(home.run(&warm).json()["verdict"], "COLD");
    let stranger = home.run(&["sample", "--prompt", "a", "--adapter", "far"]);
    stranger.failed(Exit::NotFound, "model model has no adapter \"far\"; there are one, two");
    let own =
        home.run(&["sample", "--prompt", "a", "-n", "1", "--model", "builtin", "--adapter", "far"]);
    let _ = own.ok();
}
