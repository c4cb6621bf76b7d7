//! House rules of the `.proto` files, read from the descriptor set that clients see by reflection.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};
use tinygpt_proto::FILE_DESCRIPTOR_SET;

/// Field numbers within the descriptor messages; a path of them names an element of a file.
mod tag {
    pub(super) const FILE_MESSAGE: i32 = 4;
    pub(super) const FILE_ENUM: i32 = 5;
    pub(super) const FILE_SERVICE: i32 = 6;
    pub(super) const MESSAGE_FIELD: i32 = 2;
    pub(super) const MESSAGE_ONEOF: i32 = 8;
    pub(super) const ENUM_VALUE: i32 = 2;
    pub(super) const SERVICE_METHOD: i32 = 2;
}

/// The files of the protocol itself, without its imports.
fn files() -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let own = set.file.into_iter().filter(|file| file.package() == "tinygpt.v1");
    let own: Vec<_> = own.collect();
    assert!(own.len() >= 6, "the protocol has several files, found {}", own.len());
    own
}

fn messages() -> impl Iterator<Item = DescriptorProto> {
    files().into_iter().flat_map(|file| file.message_type)
}

fn enums() -> impl Iterator<Item = EnumDescriptorProto> {
    files().into_iter().flat_map(|file| file.enum_type)
}

/// Every element of a file with the path that its comment is filed under.
fn elements(file: &FileDescriptorProto) -> Vec<(Vec<i32>, String)> {
    let mut found = Vec::new();
    for (i, message) in (0..).zip(&file.message_type) {
        let path = [tag::FILE_MESSAGE, i];
        found.push((path.to_vec(), message.name().to_owned()));
        let fields =
            (0..).zip(&message.field).map(|(j, field)| (tag::MESSAGE_FIELD, j, field.name()));
        let oneofs = (0..)
            .zip(&message.oneof_decl)
            .map(|(j, oneof)| (tag::MESSAGE_ONEOF, j, oneof.name()))
            .filter(|(.., name)| !name.starts_with('_'));
        for (kind, j, name) in fields.chain(oneofs) {
            found.push(([&path[..], &[kind, j]].concat(), format!("{}.{name}", message.name())));
        }
    }
    for (i, enumeration) in (0..).zip(&file.enum_type) {
        found.push((vec![tag::FILE_ENUM, i], enumeration.name().to_owned()));
        for (j, value) in (0..).zip(&enumeration.value) {
            found.push((vec![tag::FILE_ENUM, i, tag::ENUM_VALUE, j], value.name().to_owned()));
        }
    }
    for (i, service) in (0..).zip(&file.service) {
        found.push((vec![tag::FILE_SERVICE, i], service.name().to_owned()));
        for (j, method) in (0..).zip(&service.method) {
            let name = format!("{}.{}", service.name(), method.name());
            found.push((vec![tag::FILE_SERVICE, i, tag::SERVICE_METHOD, j], name));
        }
    }
    found
}

/// Comments by path.
fn comments(file: &FileDescriptorProto) -> BTreeMap<Vec<i32>, String> {
    let locations = file.source_code_info.as_ref().unwrap().location.iter();
    locations.map(|place| (place.path.clone(), place.leading_comments().to_owned())).collect()
}

fn shouting(camel: &str) -> String {
    let mut name = String::new();
    for letter in camel.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

fn is_snake(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[test]
fn every_element_is_documented() {
    for file in files() {
        let comments = comments(&file);
        let bare = elements(&file)
            .into_iter()
            .filter(|(path, _)| comments.get(path).is_none_or(|text| text.trim().is_empty()));
        assert_eq!(bare.map(|(_, name)| name).collect::<Vec<_>>(), Vec::<String>::new());
    }
}

#[test]
fn an_enum_starts_at_unspecified_and_repeats_its_name() {
    for enumeration in enums() {
        let prefix = shouting(enumeration.name());
        let first = &enumeration.value[0];
        assert_eq!((first.number(), first.name()), (0, &*format!("{prefix}_UNSPECIFIED")));
        for value in &enumeration.value {
            assert!(value.name().starts_with(&format!("{prefix}_")), "{}", value.name());
        }
    }
}

#[test]
fn every_enum_has_labels() {
    let known = include_str!("../src/label.rs");
    for enumeration in enums() {
        let line = format!("    {}: \"{}_\",", enumeration.name(), shouting(enumeration.name()));
        assert!(known.contains(&line), "src/label.rs lacks {line}");
    }
}

#[test]
fn fields_are_snake_case_and_messages_camel_case() {
    for message in messages() {
        assert!(message.name().starts_with(|c: char| c.is_ascii_uppercase()), "{}", message.name());
        assert!(!message.name().contains('_'), "{}", message.name());
        for field in &message.field {
            assert!(is_snake(field.name()), "{}.{}", message.name(), field.name());
        }
    }
}

#[test]
fn an_rpc_has_a_request_and_a_response_of_its_own() {
    let mut taken = BTreeSet::new();
    for service in files().iter().flat_map(|file| &file.service) {
        assert!(service.name().ends_with("Service"), "{}", service.name());
        for method in &service.method {
            for (kind, given) in
                [("Request", method.input_type()), ("Response", method.output_type())]
            {
                let short = format!(".tinygpt.v1.{}{kind}", method.name());
                let long = format!(".tinygpt.v1.{}{}{kind}", service.name(), method.name());
                assert!(given == short || given == long, "{given}");
                assert!(taken.insert(given.to_owned()), "{given} is used twice");
            }
        }
    }
}

#[test]
fn every_service_of_the_protocol_is_there() {
    let files = files();
    let found: BTreeMap<_, _> = files
        .iter()
        .flat_map(|file| &file.service)
        .map(|service| {
            (service.name(), service.method.iter().map(|m| m.name()).collect::<Vec<_>>())
        })
        .collect();
    let expected = BTreeMap::from([
        (
            "InferenceService",
            vec![
                "Sample",
                "Chat",
                "Warm",
                "Score",
                "Embed",
                "Tokenize",
                "Detokenize",
                "RenderChat",
            ],
        ),
        (
            "CacheService",
            vec![
                "List", "Get", "Explain", "Pin", "Unpin", "Remove", "Verify", "Gc", "Export",
                "Import", "Stats",
            ],
        ),
        ("ModelService", vec!["List", "Get", "Find", "Load", "Unload"]),
        ("AdminService", vec!["Status", "Watch", "Drain", "SetLogLevel"]),
    ]);
    assert_eq!(found, expected);
}
