//! How the client fails: with the documented code, and with words that name the thing and the
//! number.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use tinygpt_client::exit::Exit;
use tinygpt_tests::client::finish;
use tinygpt_tests::process::Home;
use tinygpt_tests::prompts::long;

#[test]
fn without_a_daemon_the_systems_words_and_what_to_do_are_told() {
    let home = Home::new();
    let socket = home.socket().display().to_string();
    for command in [&["status"][..], &["models"], &["sample", "--prompt", "x"], &["cache", "ls"]] {
        let answer = home.run(command);
        answer.failed(Exit::NoDaemon, &format!("no daemon answers at {socket}"));
        answer.failed(Exit::NoDaemon, "No such file or directory (os error 2)");
        answer.failed(Exit::NoDaemon, &format!("tinygptd --socket {socket}"));
    }
    drop(UnixListener::bind(home.socket()).unwrap());
    home.run(&["status"]).failed(Exit::NoDaemon, "Connection refused");
}

#[test]
fn a_command_line_that_makes_no_sense_is_refused_before_any_connection() {
    let home = Home::new();
    let long_path = home.path(&"s".repeat(200)).display().to_string();
    let too_long = format!("is {} bytes long, this system allows 107", long_path.len());
    let cases = [
        (&["sample", "--frobnicate"][..], "--frobnicate"),
        (&["sample", "--prompt", "x", "--token-ids", "1"], "--token-ids"),
        (&["sample", "--token-ids", "1,x"], "x"),
        (&["sample", "--prompt", "x", "--timeout", "soon"], "soon"),
        (&["status", "--timeout", "18446744073709551615s"], "more than 365 days"),
        (&["sample", "--prompt", "x", "--cache-policy", "never"], "never"),
        (&["sample", "--prompt", "x", "--persist", "durable", "--no-persist"], "--no-persist"),
        (&["sample", "--prompt-file", "/no/such/file"], "/no/such/file: No such file"),
        (&["sample", "--batch", "b.jsonl", "--json-stream"], "--json-stream"),
        (&["cache", "rm"], "--all"),
        (&["--socket", &long_path, "status"], &too_long),
    ];
    for (arguments, words) in cases {
        home.run(arguments).failed(Exit::Usage, words);
    }
    for flag in ["-n", "--top-k", "--seed", "--stop-id", "--logprobs", "--token-ids", "--jobs"] {
        let words = "invalid value '-1' for";
        home.run(&["sample", "--batch", "-", flag, "-1"]).failed(Exit::Usage, words);
    }
    for flag in [
        "--temperature",
        "--top-p",
        "--min-p",
        "--repeat-penalty",
        "--presence-penalty",
        "--frequency-penalty",
    ] {
        for (number, name) in [("nan", "NaN"), ("inf", "inf"), ("-inf", "-inf"), ("1e39", "inf")] {
            let words = format!("{name} is not a finite number");
            let flag = format!("{flag}={number}");
            home.run(&["sample", "--batch", "-", &flag]).failed(Exit::Usage, &words);
        }
    }
    home.pipe(&["sample"], b"abc\xff").failed(Exit::Usage, "stdin is not UTF-8 at byte 3");
}

#[test]
fn a_context_that_is_limited_is_told_and_holds() {
    let home = Home::new();
    let _daemon = home.serve(&["--context", "100"]);
    let refused = home.run(&["sample", "-n", "1", "--prompt", &long(200)]);
    refused.failed(Exit::Refused, "200 tokens, context is 100");
    let models = home.run(&["models", "--json"]).json();
    assert_eq!(models["models"][0]["context"], 100);
    let _ = home.run(&["sample", "-n", "1", "--prompt", "x"]).ok();
}

#[test]
fn what_the_daemon_refuses_it_refuses_with_the_numbers_and_stays_alive() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let too_long = long(2_000);
    let cases = [
        (&["sample", "--prompt", &too_long][..], Exit::Refused, "2,000 tokens, context is 1,024"),
        (&["sample", "--prompt", ""], Exit::Refused, "0 tokens"),
        (&["sample", "--prompt", "x", "--temperature", "-1"], Exit::Refused, "temperature is -1"),
        (&["sample", "--prompt", "x", "--top-p", "1.5"], Exit::Refused, "top_p is 1.5"),
        (&["sample", "--prompt", "x", "--min-p", "-0.1"], Exit::Refused, "min_p is -0.1"),
        (
            &["sample", "--prompt", "x", "--repeat-penalty", "0"],
            Exit::Refused,
            "repetition_penalty is 0",
        ),
        (&["sample", "--prompt", "x", "--kv-dtype", "f12"], Exit::Refused, "f12"),
        (&["sample", "--token-ids", "1,256"], Exit::Refused, "token id 256"),
        (&["sample", "--prompt", "x", "--model", "gpt-9"], Exit::NotFound, "gpt-9"),
        (&["warm", "--prompt", "x", "--cache-policy", "bypass"], Exit::Refused, "cache_policy"),
        (&["detokenize", "--token-ids", "999"], Exit::Refused, "token id 999"),
        (&["cache", "show", "abcdef"], Exit::NotFound, "abcdef"),
        (&["cache", "show", "xyz"], Exit::Refused, "xyz"),
        (&["cache", "rm", "abcdef"], Exit::NotFound, "abcdef"),
    ];
    for (arguments, exit, words) in cases {
        home.run(arguments).failed(exit, words);
    }
    let _ = home.run(&["sample", "-n", "1", "--prompt", "x"]).ok();
}

#[test]
fn a_request_that_is_too_large_is_refused_with_both_numbers() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let most = 64 << 20;
    home.pipe(&["sample"], &vec![b'x'; most + 1])
        .failed(Exit::Usage, "stdin has more than 67,108,864 bytes");
    for command in ["sample", "warm", "score", "tokenize"] {
        let answer = home.pipe(&[command], &vec![b'x'; most]);
        answer.failed(Exit::Refused, "the request has 67,1");
        answer.failed(Exit::Refused, "bytes, a message may have 67,108,864");
    }
}

#[test]
fn a_deadline_that_passes_has_its_own_code() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let answer = home.run(&["sample", "-n", "1000", "--timeout", "0.1", "--prompt", "x"]);
    assert_eq!(answer.code, i32::from(Exit::Deadline.code()), "{}", answer.stderr);
    assert!(answer.stderr.contains("deadline passed after"), "{}", answer.stderr);
}

#[test]
fn a_daemon_that_dies_in_the_middle_is_reported() {
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    let mut command = home.client();
    command.args(["sample", "-n", "1000", "--prompt", "x"]);
    let mut client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    client.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    daemon.kill();
    let output = client.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(Exit::Unavailable.code().into()), "{words}");
    assert!(words.contains("connection to the daemon broke"), "{words}");
}

#[test]
fn a_full_disk_under_stderr_loses_remarks_and_under_stdout_is_a_failure() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let (full, null) = ("/dev/full", "/dev/null");
    let end = |arguments: &str, stdout, stderr| {
        let open = |path| File::options().write(true).open(path).unwrap();
        let mut command = home.client();
        command.args(arguments.split(' ')).stdout(open(stdout)).stderr(open(stderr));
        command.status().unwrap().code().unwrap()
    };
    let failed = i32::from(Exit::Failed.code());
    for arguments in ["sample -n 4 --prompt x", "warm --prompt x", "score --prompt xyz", "status"] {
        assert_eq!(end(arguments, null, full), 0, "{arguments}");
        assert_eq!(end(arguments, full, null), failed, "{arguments}");
        assert_eq!(end(arguments, full, full), failed, "{arguments}");
    }
    assert_eq!(end("cache show abcdef", null, full), i32::from(Exit::NotFound.code()));
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_client_quietly() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    for arguments in
        ["sample -n 1000 --prompt x", "status", "sample -n 1000 --json-stream --prompt x"]
    {
        let mut command = home.client();
        command.args(arguments.split(' '));
        let mut client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(client.stdout.take());
        let output = client.wait_with_output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*words), (Some(0), ""), "{arguments}");
    }
}

#[test]
fn a_model_file_that_is_none_is_named_by_the_daemon_that_was_to_be_started() {
    let home = Home::new();
    fs::write(home.path("m.gguf"), "GGUF").unwrap();
    let installed = tinygpt_tests::client::Installed::in_home(&home);
    let config = home.path("t.toml");
    fs::write(&config, format!("model = [\"{}\"]", home.path("m.gguf").display())).unwrap();
    let answer = finish(
        installed.client().env("TINYGPT_CONFIG", &config).args(["sample", "--prompt", "x"]),
        b"",
    );
    answer.failed(Exit::NoDaemon, "ended at once (exit status: 69)");
    answer.failed(Exit::NoDaemon, "m.gguf");
}
