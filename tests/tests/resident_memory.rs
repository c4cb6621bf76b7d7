//! A restored prompt is read where it is mapped: its blocks are not copied, neither when they are
//! verified nor when attention reads them. The kernel's own counts say so.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;

use tinygpt_tests::process::Home;
use tinygpt_tests::prompts;
use tinygpt_tests::seeded::Shape;

/// Much KV for little arithmetic.
const SHAPE: Shape = Shape::new(4, 8, 512, 1100);
const TOKENS: usize = 1000;
const PROMPTS: usize = 3;

/// Bytes of all prompts' keys and values in f32.
const KV: usize = PROMPTS * TOKENS * 4 * 2 * 512 * size_of::<f32>();

#[test]
fn restored_blocks_stay_pages_of_their_files() {
    let home = Home::new();
    let file = home.path("wide.tinygpt");
    SHAPE.write(&file).unwrap();
    let arguments = ["--kv-dtype", "f32", "--model", file.to_str().unwrap()];
    let ask = |prompt: usize, persist: &str| {
        let text = format!("{prompt}{}", prompts::long(TOKENS - 1));
        let fixed = ["sample", "-n", "8", "--temperature", "0", "--json", "--persist", persist];
        let answer = home.run(&[&fixed[..], &["--prompt", &text]].concat()).json();
        answer["verdict"].as_str().unwrap().to_owned()
    };
    let mut first = home.serve(&arguments);
    (0..PROMPTS).for_each(|prompt| assert_eq!(ask(prompt, "durable"), "COLD"));
    first.terminate();

    let second = home.serve(&arguments);
    let before = Memory::of(second.pid());
    (0..PROMPTS).for_each(|prompt| assert_eq!(ask(prompt, "no"), "FULL_DISK"));
    let after = Memory::of(second.pid());
    let grown = after.anonymous.saturating_sub(before.anonymous);
    assert!(grown < KV / 4, "{grown} bytes were copied of {KV}");
    let mapped = after.file - before.file;
    assert!(mapped > KV / 10 * 9, "{mapped} bytes of {KV} are mapped");
    let faults = after.faults - before.faults;
    assert!(faults < KV / 4096, "{faults} faults for {} pages", KV / 4096);
}

/// What the kernel counts for a process.
struct Memory {
    /// Resident bytes that no file backs.
    anonymous: usize,
    /// Resident bytes of mapped files.
    file: usize,
    /// Page faults so far.
    faults: usize,
}

impl Memory {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse::<usize>().unwrap() * 1024
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        // The third field is the first behind the name; minor faults are the tenth, major ones
        // the twelfth.
        let field = |n: usize| after_name.split_whitespace().nth(n - 3).unwrap();
        let faults = [10, 12].map(|n| field(n).parse::<usize>().unwrap());
        Self { anonymous: bytes("RssAnon:"), file: bytes("RssFile:"), faults: faults.iter().sum() }
    }
}
