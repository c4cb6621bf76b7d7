//! A daemon that computes on a device, as its users see it. The device is candle's processor: what
//! would run on a GPU, where there is none.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tinygpt_tests::process::{Home, ended, until};
use tinygpt_tests::prompts::long;

const ON_DEVICE: [&str; 2] = ["--device", "candle-cpu"];

fn greedy(home: &Home, prompt: &str, more: &[&str]) -> Value {
    let arguments = ["sample", "--json", "--temperature", "0", "-n", "24", "--prompt", prompt];
    home.run(&[&arguments, more].concat()).json()
}

fn counters(home: &Home) -> Value {
    home.run(&["status", "--json"]).json()["counters"].take()
}

#[test]
fn the_built_in_model_continues_as_it_was_trained_to() {
    let golden = include_str!("../golden/builtin/golden.json");
    let golden: Value = serde_json::from_str(golden).unwrap();
    let home = Home::new();
    let _daemon = home.serve(&ON_DEVICE);
    for (name, case) in golden["prompts"].as_object().unwrap() {
        let ids: Vec<_> = case["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
        let arguments = ["sample", "--json", "--temperature", "0", "-n", "64", "--echo-ids"];
        let report = home.run(&[&arguments[..], &["--token-ids", &ids.join(",")]].concat()).json();
        assert_eq!(report["token_ids"], case["greedy64"], "{name}");
    }
    let model = &home.run(&["status", "--json"]).json()["models"][0];
    assert_eq!(model["numerics"], "candle-cpu-1");
}

#[test]
fn a_prompt_is_cold_then_warm_and_uploaded_once_after_a_restart() {
    let (home, prompt) = (Home::new(), long(900));
    let mut daemon = home.serve(&ON_DEVICE);
    let cold = greedy(&home, &prompt, &["--persist", "durable"]);
    assert_eq!(cold["verdict"], "COLD");
    let warm = greedy(&home, &prompt, &[]);
    assert_eq!(warm["verdict"], "FULL_MEMORY");
    // 900 tokens are 28 blocks and 4 rows; the rows of 23 new tokens were computed twice.
    assert_eq!(counters(&home)["device_rows_uploaded"], 4);
    assert_eq!(counters(&home)["device_rows_downloaded"], 900 + 23 + 23);
    daemon.kill();
    let _next = home.serve(&ON_DEVICE);
    let disk = greedy(&home, &prompt, &[]);
    assert_eq!(disk["verdict"], "FULL_DISK");
    assert_eq!(counters(&home)["device_rows_uploaded"], 900);
    let again = greedy(&home, &prompt, &[]);
    assert_eq!(counters(&home)["device_rows_uploaded"], 904);
    for report in [&warm, &disk, &again] {
        assert_eq!(report["token_ids"], cold["token_ids"]);
    }
}

/// A client that has been started and not waited for.
fn started(home: &Home, arguments: &[&str]) -> Child {
    let mut command = home.client();
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn four_clients_with_one_prompt_cost_one_prefill_and_read_one_text() {
    let (home, prompt) = (Home::new(), long(900));
    let _daemon = home.serve(&ON_DEVICE);
    let arguments = ["sample", "--temperature", "0", "-n", "24", "--prompt", &prompt];
    let clients: Vec<_> = (0..4).map(|_| started(&home, &arguments)).collect();
    let texts: Vec<_> =
        clients.into_iter().map(|client| client.wait_with_output().unwrap().stdout).collect();
    assert!(texts.iter().all(|text| *text == texts[0] && !text.is_empty()));
    assert_eq!(counters(&home)["device_rows_downloaded"], 900 + 4 * 23);
}

#[test]
fn a_client_that_is_killed_cancels_and_its_prompt_stays() {
    let (home, prompt) = (Home::new(), long(200));
    let _daemon = home.serve(&ON_DEVICE);
    let mut client = started(&home, &["sample", "-n", "800", "--prompt", &prompt]);
    until("generating", || counters(&home)["device_rows_downloaded"].as_u64() > Some(210));
    kill_process(Pid::from_child(&client), Signal::KILL).unwrap();
    client.wait().unwrap();
    until("cancelled", || counters(&home)["requests_cancelled"] == 1);
    assert_eq!(greedy(&home, &prompt, &[])["verdict"], "FULL_MEMORY");
}

#[test]
fn a_self_check_that_could_only_fail_is_refused() {
    let home = Home::new();
    let (code, said) = ended(home.daemon().args(ON_DEVICE).arg("--self-check"));
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("--device cpu"), "{said}");
}

#[test]
fn a_device_that_is_not_there_ends_with_64_and_its_name() {
    let home = Home::new();
    for device in ["cuda", "cuda:7", "metal", "tpu"] {
        let (code, said) = ended(home.daemon().args(["--device", device]));
        assert_eq!(code, 64, "{said}");
        assert!(said.contains(device), "{said}");
    }
}
