//! Headers that are right, and every lie that one can tell.

use super::*;

/// A file with this header and so many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let size = (header.len() as u64).to_le_bytes();
    [&size[..], header.as_bytes(), &vec![0; data]].concat()
}

fn read(header: &str, data: usize) -> Result<BTreeMap<String, Tensor>, LoadError> {
    let file = file(header, data);
    parse(&file, file.len())
}

#[test]
fn tensors_lie_where_the_header_says_in_any_order() {
    let header = concat!(
        r#"{"b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [4, 16]}, "#,
        r#""__metadata__": {"format": "pt"}, "#,
        r#""a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "#,
        r#""none": {"dtype": "F16", "shape": [0, 7], "data_offsets": [16, 16]}}   "#,
    );
    let tensors = read(header, 16).expect("a file");
    let data = 8 + header.len();
    let tensor = |dtype, shape: &[u64], range: Range<usize>| {
        let range = data + range.start..data + range.end;
        Tensor { dtype, shape: shape.into(), range }
    };
    assert_eq!(tensors["a"], tensor(Dtype::F32, &[], 0..4));
    assert_eq!(tensors["b"], tensor(Dtype::BF16, &[2, 3], 4..16));
    assert_eq!(tensors["none"], tensor(Dtype::F16, &[0, 7], 16..16));
    assert_eq!(tensors.len(), 3);
}

fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}"#)
}

fn lie(entries: &[String], data: usize) -> LoadError {
    read(&format!("{{{}}}", entries.join(", ")), data).expect_err("a lie")
}

#[test]
fn every_lie_about_a_tensor_has_an_error_of_its_own_with_its_numbers() {
    let a = entry("a", "F32", "[2]", "[0, 8]");
    let tensor = || "a".to_owned();
    let cases = [
        (
            vec![entry("a", "F32", "[2]", "[4, 12]")],
            8,
            LoadError::TensorData { tensor: tensor(), begin: 4, end: 12, have: 8 },
        ),
        (
            vec![entry("a", "F32", "[2]", "[8, 0]")],
            8,
            LoadError::TensorData { tensor: tensor(), begin: 8, end: 0, have: 8 },
        ),
        (
            vec![entry("a", "F32", "[3]", "[0, 8]")],
            8,
            LoadError::ByteCount {
                tensor: tensor(),
                dtype: "F32",
                shape: vec![3],
                need: 12,
                found: 8,
            },
        ),
        (
            vec![entry("a", "F7", "[2]", "[0, 8]")],
            8,
            LoadError::ElementType { tensor: tensor(), found: "F7".into() },
        ),
        (
            vec![entry("a", "F32", "[4294967296, 4294967296]", "[0, 8]")],
            8,
            LoadError::Overflow { tensor: tensor(), dims: vec![1 << 32, 1 << 32] },
        ),
        (
            vec![a.clone(), entry("b", "F32", "[2]", "[4, 12]")],
            12,
            LoadError::Overlap { first: "a".into(), second: "b".into() },
        ),
        (
            vec![a.clone(), entry("b", "F32", "[1]", "[12, 16]")],
            16,
            LoadError::Hole { begin: 8, end: 12 },
        ),
        (vec![a.clone()], 20, LoadError::Hole { begin: 8, end: 20 }),
        (vec![], 1, LoadError::Hole { begin: 0, end: 1 }),
        (vec![a.clone(), a.clone()], 8, LoadError::Duplicate { what: "tensor", name: tensor() }),
    ];
    for (entries, data, expected) in cases {
        assert_eq!(lie(&entries, data), expected, "{entries:?}");
    }
}

#[test]
fn a_header_that_is_longer_than_its_file_is_not_looked_for() {
    for size in [9, u64::MAX, 1 << 40] {
        let bytes = [&size.to_le_bytes()[..], b"{}"].concat();
        let expected = LoadError::Truncated { what: "the JSON header", need: size, at: 8, left: 2 };
        assert_eq!(parse(&bytes, bytes.len()).expect_err("a lie"), expected);
    }
    for length in 0..8 {
        let error = parse(&[0; 8][..length], length).expect_err("a lie");
        assert!(matches!(error, LoadError::Truncated { need: 8, at: 0, .. }), "{error}");
    }
}

#[test]
fn a_header_that_is_not_what_it_should_be_is_refused_with_the_place() {
    for header in [
        "",
        "[]",
        "{",
        "{} {}",
        r#"{"a": 1}"#,
        r#"{"a": {"dtype": "F32", "shape": [1]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 99999999999999999999]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "more": 1}}"#,
    ] {
        let error = read(header, 4).expect_err(header);
        assert!(matches!(error, LoadError::Header { .. }), "{header}: {error}");
    }
    let deep = format!("{{\"__metadata__\": {}", "[".repeat(100_000));
    assert!(matches!(read(&deep, 0), Err(LoadError::Header { .. })));
}

#[test]
fn any_change_of_a_byte_of_the_header_is_an_error_or_another_name() {
    let header = format!("{{{}}}", entry("weight", "BF16", "[2, 2]", "[0, 8]"));
    let whole = file(&header, 8);
    for at in 0..whole.len() - 8 {
        for change in 1..=255 {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            if let Ok(tensors) = parse(&bytes, bytes.len()) {
                let ranges = tensors.values().map(|tensor| tensor.range.clone());
                assert!(ranges.into_iter().all(|range| range.end <= bytes.len()));
            }
        }
    }
}
