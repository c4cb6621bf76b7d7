//! House rules, as tests: who may import whom, where async may be, and which licences we ship.
//!
//! The table below is the one in `docs/architecture.md`; changing it is a design decision, not a fix.
//! Test modules are exempt, inside a file and in files of their own: a test may reach for whatever it
//! compares with.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use syn::visit::{self, Visit};
use syn::{Attribute, File, ItemMod, ItemUse, UseTree};

/// A module of the daemon and the paths it may name: its own, these, and what lies under them.
struct Module {
    name: &'static str,
    may_import: &'static [&'static str],
    /// Whether it may speak the wire (`tonic`, `prost`, the stubs) and be asynchronous.
    above: bool,
}

/// What puts the parts together is free.
const FREE: &[&str] = &["config", "exit", "install", "lib", "log", "main", "self_check"];

/// From the wire down to the system.
const MODULES: &[Module] = &[
    Module {
        name: "service",
        may_import: &[
            "text",
            "engine",
            "store",
            "metrics",
            "kv::codec",
            "kv::key",
            "kv::layout::BLOCK",
            "model::found",
            "model::load::Vocabulary",
            "sys",
        ],
        above: true,
    },
    Module {
        name: "text",
        // The vocabulary is plain data that the model file carries and a tokenizer is built from.
        may_import: &[
            "engine::constraint",
            "engine::Constraint",
            "engine::Mask",
            "model::load::Vocabulary",
            "model::load::GgufVocabulary",
            "model::load::HfVocabulary",
        ],
        above: false,
    },
    Module {
        name: "engine",
        may_import: &["model", "store", "kv", "metrics", "sys"],
        above: false,
    },
    Module { name: "model", may_import: &["kv", "sys"], above: false },
    Module { name: "store", may_import: &["kv", "metrics", "sys"], above: false },
    Module { name: "kv", may_import: &["sys"], above: false },
    Module { name: "metrics", may_import: &[], above: false },
    Module { name: "sys", may_import: &[], above: false },
];

/// Crates that only the service may name, but for `tokio::sync`: its channels are how threads meet tasks.
const WIRE: &[&str] = &[
    "tonic",
    "tonic_health",
    "tonic_types",
    "axum",
    "hyper",
    "prost",
    "prost_types",
    "tinygpt_proto",
    "tokio",
];

#[test]
fn modules_import_only_downwards() {
    let breaches = breaches(|module, path| {
        let Some(inner) = path.strip_prefix("crate::") else { return false };
        let listed = module.may_import.iter().any(|allowed| lies_under(inner, allowed));
        !listed && !lies_under(inner, module.name)
    });
    assert!(breaches.is_empty(), "imports against the table:\n{}", breaches.join("\n"));
}

#[test]
fn nothing_below_the_service_knows_the_wire() {
    let breaches = breaches(|module, path| {
        let wire = WIRE.iter().any(|name| lies_under(path, name));
        !module.above && wire && !lies_under(path, "tokio::sync")
    });
    assert!(breaches.is_empty(), "the wire below the service:\n{}", breaches.join("\n"));
}

#[test]
fn nothing_below_the_service_is_asynchronous() {
    let below = MODULES.iter().filter(|module| !module.above);
    let files = below.flat_map(|module| files_of(module.name));
    let asynchronous: Vec<_> = files.filter(|path| Reading::of_file(path).is_async).collect();
    assert!(asynchronous.is_empty(), "async below the service: {asynchronous:?}");
}

/// A change that does not ask whether the directory is still ours may hit another daemon's files.
#[test]
fn only_the_home_of_the_cache_changes_files_in_it() {
    let changes = [
        "fs::create_dir",
        "fs::create_dir_all",
        "fs::hard_link",
        "fs::remove_dir",
        "fs::remove_dir_all",
        "fs::remove_file",
        "fs::rename",
        "fs::write",
        "File::create",
        "OpenOptions::new",
        "directory::make",
    ];
    let changed = |file: &str| {
        let paths = Reading::of_file(&root().join("daemon/src/store").join(file)).paths;
        paths.iter().filter(|path| changes.iter().any(|change| path.ends_with(change))).count()
    };
    assert!(changed("home.rs") >= 5, "the reader sees changes");
    let found = breaches(|module, path| {
        module.name == "store" && changes.iter().any(|change| path.ends_with(change))
    });
    let elsewhere: Vec<_> =
        found.iter().filter(|breach| !breach.contains("store/home.rs")).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:#?}");
}

#[test]
fn the_reader_sees_every_way_to_name_a_path() {
    let source = "
        use crate::{kv::{key::Digest, self}, store as s};
        fn f() -> crate::model::Batch { crate::text::g::<crate::sys::A>() }
        pub(crate) use tonic::Status;
        #[cfg(test)] mod tests { use crate::hidden; async fn t() {} }
    ";
    let reading = Reading::of(&syn::parse_file(source).unwrap());
    let expected = [
        "crate::kv",
        "crate::kv::key::Digest",
        "crate::model::Batch",
        "crate::store",
        "crate::sys::A",
        "crate::text::g",
        "tonic::Status",
    ];
    assert_eq!(reading.paths, expected.map(str::to_owned).into());
    assert!(!reading.is_async, "test modules are exempt");
}

#[test]
fn the_reader_sees_async_functions_and_blocks() {
    for source in ["async fn f() {}", "fn f() { g(async {}) }", "impl A { async fn f() {} }"] {
        assert!(Reading::of(&syn::parse_file(source).unwrap()).is_async, "{source}");
    }
}

#[test]
fn every_module_is_in_the_table_or_free() {
    let entries = fs::read_dir(root().join("daemon/src")).unwrap().map(|entry| entry.unwrap());
    let exist: BTreeSet<_> = entries
        .map(|entry| entry.path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let named = MODULES.iter().map(|module| module.name).chain(FREE.iter().copied());
    assert_eq!(exist, named.map(str::to_owned).collect());
    for module in MODULES {
        assert!(files_of(module.name).len() > 2, "{}", module.name);
    }
}

#[test]
fn every_dependency_has_a_licence_we_allow() {
    let allowed = allowed_licences();
    let offenders: Vec<_> = packages()
        .into_iter()
        .filter(|(_, licence)| !licence.as_deref().is_some_and(|l| is_allowed(l, &allowed)))
        .collect();
    assert!(offenders.is_empty(), "licences not on the list in deny.toml: {offenders:?}");
}

#[test]
fn licence_expressions_are_read_with_their_operators() {
    let allowed = allowed_licences();
    let good = [
        "MIT",
        "MIT/Apache-2.0",
        "LGPL-2.1-or-later OR MIT",
        "MIT AND BSD-3-Clause",
        "Apache-2.0 WITH LLVM-exception",
        "(GPL-3.0-only OR MIT) AND Unicode-3.0",
    ];
    for expression in good {
        assert!(is_allowed(expression, &allowed), "{expression}");
    }
    for expression in ["MPL-2.0", "MIT AND LGPL-3.0-only", "", "Ours", "MIT WITH LLVM-exception"] {
        assert!(!is_allowed(expression, &allowed), "{expression:?}");
    }
}

/// Every path named in a module for which `forbidden` holds, as `file: path`.
fn breaches(forbidden: impl Fn(&Module, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for module in MODULES {
        for file in files_of(module.name) {
            let paths = Reading::of_file(&file).paths;
            let bad = paths.iter().filter(|path| forbidden(module, path));
            found.extend(bad.map(|path| format!("{}: {path}", file.display())));
        }
    }
    found
}

fn lies_under(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// What one source file names and does, outside its test modules.
#[derive(Default)]
struct Reading {
    /// The target of every `use`, and every path in code of more than one segment.
    paths: BTreeSet<String>,
    is_async: bool,
}

impl Reading {
    fn of_file(path: &Path) -> Self {
        let source = fs::read_to_string(path).unwrap();
        Self::of(&syn::parse_file(&source).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    fn of(file: &File) -> Self {
        let mut reading = Self::default();
        reading.visit_file(file);
        reading
    }

    fn add_use(&mut self, prefix: &[String], tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.add_use(&joined(prefix, &path.ident), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.add_use(prefix, item)),
            UseTree::Name(name) => self.add(&joined(prefix, &name.ident)),
            UseTree::Rename(rename) => self.add(&joined(prefix, &rename.ident)),
            UseTree::Glob(_) => self.add(prefix),
        }
    }

    fn add(&mut self, names: &[String]) {
        self.paths.insert(names.join("::"));
    }
}

fn joined(prefix: &[String], name: &syn::Ident) -> Vec<String> {
    let name = Some(name.to_string()).filter(|name| name != "self");
    prefix.iter().cloned().chain(name).collect()
}

impl Visit<'_> for Reading {
    fn visit_item_mod(&mut self, module: &ItemMod) {
        if !module.attrs.iter().any(is_cfg_test) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        self.add_use(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        if path.segments.len() > 1 {
            self.add(&path.segments.iter().map(|s| s.ident.to_string()).collect::<Vec<_>>());
        }
        visit::visit_path(self, path);
    }

    fn visit_signature(&mut self, signature: &syn::Signature) {
        self.is_async |= signature.asyncness.is_some();
        visit::visit_signature(self, signature);
    }

    fn visit_expr_async(&mut self, _: &syn::ExprAsync) {
        self.is_async = true;
    }
}

fn is_cfg_test(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
}

/// The sources of a module but its tests.
fn files_of(module: &str) -> Vec<PathBuf> {
    rust_files(&root().join("daemon/src").join(module))
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let paths = paths.filter(|path| path.file_stem().is_some_and(|name| name != "tests"));
    let (folders, files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    let sources = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    sources.chain(folders.iter().flat_map(|folder| rust_files(folder))).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Name and licence of everything in `Cargo.lock`, for every platform and feature.
fn packages() -> Vec<(String, Option<String>)> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let packages = metadata["packages"].as_array().unwrap();
    packages.iter().map(|p| (text(&p["name"]).unwrap(), text(&p["license"]))).collect()
}

fn allowed_licences() -> BTreeSet<String> {
    let deny: toml::Table = fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap();
    let allow = deny["licenses"]["allow"].as_array().unwrap();
    allow.iter().map(|licence| licence.as_str().unwrap().to_owned()).collect()
}

fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX)
        .is_ok_and(|parsed| parsed.evaluate(|licence| allowed.contains(&licence.to_string())))
}
