#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use super::place::Place;
use super::*;
use crate::model::load::BUILTIN;

/// A folder that was named.
struct Bench(tempfile::TempDir);

impl Bench {
    /// One with these files, each with its contents.
    fn new(files: &[(&str, &[u8])]) -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        for (name, contents) in files {
            let path = bench.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        bench
    }

    /// One with these files, which nobody reads.
    fn of(files: &[&str]) -> Self {
        Self::new(&files.iter().map(|name| (*name, &b""[..])).collect::<Vec<_>>())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn place(&self) -> Place {
        Place { kind: Kind::Configured, path: self.0.path().to_owned() }
    }

    /// Names of what is found, with the reasons that names gave.
    fn found(&self) -> Vec<(String, String)> {
        names(Search::default().place(&self.place()))
    }

    fn names(&self) -> Vec<String> {
        self.found().into_iter().map(|(name, _)| name).collect()
    }
}

fn names(found: Vec<Candidate>) -> Vec<(String, String)> {
    let words = |unfit: Option<Unfit>| unfit.map(|unfit| unfit.to_string()).unwrap_or_default();
    found.into_iter().map(|found| (found.name, words(found.unfit))).collect()
}

fn check(files: &[&str], expected: &[(&str, &str)]) {
    let expected = expected.iter().map(|(name, why)| ((*name).to_owned(), (*why).to_owned()));
    assert_eq!(Bench::of(files).found(), expected.collect::<Vec<_>>());
}

#[test]
fn files_and_directories_are_called_by_their_paths() {
    check(
        &[
            "a.gguf",
            "README.md",
            ".hidden/x.gguf",
            "me/b/b-Q4_0.gguf",
            "me/b/config.json",
            "me/c-0.1B/config.json",
            "me/c-0.1B/model.safetensors",
            "me/c-0.1B/onnx/d.tinygpt",
        ],
        &[
            ("a.gguf", ""),
            ("me/b/b-Q4_0.gguf", ""),
            ("me/c-0.1B", ""),
            ("me/c-0.1B/onnx/d.tinygpt", ""),
        ],
    );
}

#[test]
fn a_place_that_is_a_model_is_called_by_its_own_name() {
    let bench = Bench::of(&["config.json", "model.safetensors"]);
    assert_eq!(bench.names(), [last(bench.0.path())]);
}

#[test]
fn adapters_and_what_is_being_fetched_are_listed_with_the_reason() {
    let (adapter, begun) = ("an adapter, not a model of its own", "its download is not complete");
    check(
        &["a.lora", "b/adapter_config.json", "b/adapter_model.safetensors", "c.gguf.part"],
        &[("a.lora", adapter), ("c.gguf.part", begun), ("b", adapter)],
    );
}

#[test]
fn a_model_in_parts_is_one_with_the_bytes_of_all() {
    let bench = Bench::new(&[
        ("a-00001-of-00002.gguf", b"123"),
        ("a-00002-of-00002.gguf", b"4567"),
        ("b-00001-of-00001.gguf", b"8"),
    ]);
    let found = Search::default().place(&bench.place());
    let sizes: Vec<_> = found.iter().map(|found| (&*found.name, found.bytes())).collect();
    assert_eq!(sizes, [("a-00001-of-00002.gguf", 7), ("b-00001-of-00001.gguf", 1)]);
}

#[test]
fn a_repository_has_its_name_and_other_commits_have_theirs() {
    let bench = Bench::new(&[
        ("models--o--n/refs/main", b"2222222222\n"),
        ("models--o--n/snapshots/1111111111/config.json", b""),
        ("models--o--n/snapshots/2222222222/config.json", b""),
        ("models--o--n/snapshots/2222222222/model.safetensors", b""),
        ("models--o--files/snapshots/3333333333/a-Q4_0.gguf", b""),
        ("models--o--files/snapshots/3333333333/sub/b.gguf", b""),
        ("models--gpt2/snapshots/4444444444/config.json", b""),
        ("models--o--begun/blobs/abc.incomplete", b""),
        ("models--o--begun/snapshots/5/README.md", b""),
        ("datasets--o--d/snapshots/6/README.md", b""),
    ]);
    let expected = [
        ("gpt2", ""),
        ("o/begun", "its download is not complete"),
        ("o/files:a-Q4_0.gguf", ""),
        ("o/files:sub/b.gguf", ""),
        ("o/n", ""),
        ("o/n@1111111", ""),
    ];
    assert_eq!(bench.found(), expected.map(|(name, why)| (name.to_owned(), why.to_owned())));
}

#[test]
fn a_tag_of_ollama_is_the_blob_that_its_manifest_names() {
    let layer = |kind: &str, digest: &str| {
        let kind = format!("application/vnd.ollama.image.{kind}");
        format!(r#"{{"mediaType": "{kind}", "digest": "{digest}", "size": 1}}"#)
    };
    let manifest = |layers: &[String]| format!(r#"{{"layers": [{}]}}"#, layers.join(","));
    let model = layer("model", "sha256:0a");
    let manifests = [
        ("registry.ollama.ai/library/tiny/latest", manifest(std::slice::from_ref(&model))),
        ("registry.ollama.ai/me/tuned/1", manifest(&[layer("adapter", "sha256:0b"), model])),
        ("registry.ollama.ai/me/other/1", manifest(&[layer("tensor", "sha256:0a")])),
        ("hf.co/me/away/q4", manifest(&[layer("model", "sha256:../../x")])),
        ("hf.co/me/broken/q4", "{".to_owned()),
    ];
    let bench = Bench::new(&[("blobs/sha256-0a", BUILTIN)]);
    for (tag, text) in manifests {
        let path = bench.path("manifests").join(tag);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let found = bench.found();
    let (names, reasons): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let expected = ["hf.co/me/away:q4", "hf.co/me/broken:q4", "tiny:latest", "me/other:1"];
    assert_eq!(names, [&expected[..], &["me/tuned:1"]].concat());
    assert!(reasons[0].contains("\"sha256:../../x\" is no digest"), "{reasons:?}");
    assert!(reasons[1].starts_with("not a manifest of Ollama: EOF"), "{reasons:?}");
    assert_eq!(reasons[2], "");
    assert!(reasons[3].contains("no GGUF file") && reasons[4].contains("adapter"), "{reasons:?}");
    let places = Places::new(vec![bench.0.path().to_owned()]);
    assert_eq!(places.find("tiny:latest"), Some(bench.path("blobs/sha256-0a")));
    assert_eq!(places.find("me/tuned:1"), None, "it could not be served");
}

#[test]
fn a_folder_is_visited_once_wherever_links_lead_and_places_overlap() {
    let bench = Bench::of(&["a/x.gguf", "b/y.gguf"]);
    symlink(bench.0.path(), bench.path("b/up")).unwrap();
    symlink(bench.path("a"), bench.path("b/twin")).unwrap();
    symlink("itself", bench.path("itself")).unwrap();
    assert_eq!(bench.names(), ["a/x.gguf", "b/y.gguf"]);
    let inner = Place { path: bench.path("b"), ..bench.place() };
    let mut search = Search::default();
    assert_eq!(names(search.place(&inner)).len(), 2, "y and, by a link, x");
    assert_eq!(names(search.place(&bench.place())).len(), 0);
}

#[test]
fn what_cannot_be_looked_at_is_listed_with_the_systems_words() {
    let bench = Bench::of(&[]);
    symlink("nowhere", bench.path("a.gguf")).unwrap();
    symlink("b.gguf", bench.path("b.gguf")).unwrap();
    assert!(Command::new("mkfifo").arg(bench.path("c.gguf")).status().unwrap().success());
    fs::create_dir(bench.path("d.gguf")).unwrap();
    let mut found = Search::default().place(&bench.place());
    let words: Vec<_> =
        found.iter_mut().map(|found| found.outline().unwrap_err().to_string()).collect();
    let expected = ["No such file", "symbolic links", "not a regular file"];
    assert_eq!(words.len(), expected.len(), "{words:?}");
    for (words, expected) in words.iter().zip(expected) {
        assert!(words.contains(expected), "{words}");
    }
    let gone = Place { path: bench.path("gone"), ..bench.place() };
    let named = names(Search::default().place(&gone));
    assert!(named[0].0 == "gone" && named[0].1.contains("No such file"), "{named:?}");
    let usual = Place { kind: Kind::Ollama, ..gone };
    assert_eq!(names(Search::default().place(&usual)), []);
}

#[test]
fn a_folder_that_may_not_be_read_is_listed_with_the_systems_words() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::of(&["closed/x.gguf", "open/y.gguf"]);
    fs::set_permissions(bench.path("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    #[cfg(target_os = "linux")]
    obey_permissions();
    let found = bench.found();
    assert!(found[0].0 == "closed" && found[0].1.contains("Permission denied"), "{found:?}");
    assert_eq!(found[1].0, "open/y.gguf");
}

/// Root may read everything, until this thread lays that right down.
#[cfg(target_os = "linux")]
fn obey_permissions() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).unwrap();
    sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    set_capabilities(None, sets).unwrap();
}

#[test]
fn a_search_ends_in_folders_that_are_too_deep_or_too_many() {
    let deep = format!("{}x.gguf", "d/".repeat(DEEPEST + 1));
    let found = Bench::of(&["a.gguf", &deep]).found();
    assert!(found[1].1.contains("below 16 others"), "{found:?}");
    let bench = Bench::of(&["a.gguf", "b/c.gguf", "b/d.gguf", "b/e.gguf", "f/g.gguf"]);
    let mut search = Search::default();
    search.most = 5;
    let found = names(search.place(&bench.place()));
    let many = |(_, why): &&(String, String)| why.contains("the first 100000 files and folders");
    assert_eq!(found.iter().filter(many).count(), 1, "{found:?}");
    assert!(found.len() == 4 && !found.iter().any(|(name, _)| name == "f/g.gguf"), "{found:?}");
    let next = Bench::of(&["h.gguf"]);
    assert_eq!(names(search.place(&next.place())).len(), 1, "it takes nothing from the next place");
}

#[test]
fn a_place_that_is_slow_to_read_ends_its_search_and_no_other() {
    let bench = Bench::of(&["a.gguf", "b/c.gguf"]);
    let mut search = Search::default();
    search.longest = Duration::ZERO;
    let found = names(search.place(&bench.place()));
    assert!(found.len() == 1 && found[0].1.contains("longer than 2 s"), "{found:?}");
    search.longest = Duration::from_secs(60);
    let next = Bench::of(&["h.gguf"]);
    assert_eq!(names(search.place(&next.place())).len(), 1, "it takes no time from the next place");
}

#[cfg(target_os = "linux")]
#[test]
fn a_link_to_the_systems_own_folders_does_not_hold_a_search_up() {
    let bench = Bench::of(&["a.gguf"]);
    symlink("/proc", bench.path("processes")).unwrap();
    let started = std::time::Instant::now();
    let found = bench.names();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(found[0], "a.gguf");
}

#[test]
fn an_outline_has_the_numbers_of_the_model() {
    let bench = Bench::new(&[("a.tinygpt", BUILTIN), ("b.gguf", b"GGUF"), ("c.gguf", b"words")]);
    let mut found = Search::default().place(&bench.place());
    let outlines: Vec<_> = found.iter_mut().map(Candidate::outline).collect();
    let builtin = outlines[0].as_ref().unwrap();
    assert_eq!(builtin.parameters, 2_915_328);
    let (architecture, quantisation) = ("gpt".into(), "fp16".into());
    let glimpse = Glimpse { format: "tinygpt", architecture, quantisation, context: 1024 };
    assert_eq!(builtin.glimpse, glimpse);
    let words = outlines[1].as_ref().unwrap_err().to_string();
    assert!(words.starts_with("the file ends inside the version"), "{words}");
    let words = outlines[2].as_ref().unwrap_err().to_string();
    assert!(words.contains("it begins with \"word\""), "{words}");
    let glimpses = found.iter().map(Candidate::glimpse);
    assert_eq!(glimpses.collect::<Vec<_>>(), [glimpse, Glimpse::default(), Glimpse::default()]);
}
