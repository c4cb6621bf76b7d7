//! Where golden files lie, and the two numpy containers they come in.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Says that a test cannot run; where nothing may be skipped that is a failure.
pub(crate) fn skip(reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "CI=true allows no skip: {reason}");
    eprintln!("skipped: {reason}");
}

/// The folder of the workspace.
fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A golden file: from the folder that `TINYGPT_GOLDEN` names, from this repository, or made under
/// `target/golden`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let own = ["tests/golden", "target/golden"].map(|folder| workspace().join(folder));
    let named = std::env::var_os("TINYGPT_GOLDEN").map(PathBuf::from);
    let found = named.into_iter().chain(own).map(|folder| folder.join(name));
    let found = found.into_iter().find(|path| path.exists());
    if found.is_none() {
        skip(&format!(
            "golden file {name} is neither in $TINYGPT_GOLDEN nor in tests/golden, and was not made"
        ));
    }
    found
}

/// The bytes of a golden file that this repository holds.
pub(crate) fn read(name: &str) -> Vec<u8> {
    let path = workspace().join("tests/golden").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A golden JSON file that this repository holds.
pub(crate) fn json(name: &str) -> Value {
    serde_json::from_slice(&read(name)).unwrap()
}

/// SmolLM2-135M-Instruct in Q4_1.
pub(crate) fn smollm2() -> Option<Vec<u8>> {
    let usual = workspace().join("target/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    named("TINYGPT_REAL_MODEL", usual)
}

/// Gemma 3 270M in Q4_K_M, beside SmolLM2.
pub(crate) fn gemma3() -> Option<Vec<u8>> {
    const FILE: &str = "gemma-3-270m-q4_k_m.gguf";
    let smollm2 = std::env::var_os("TINYGPT_REAL_MODEL").map(PathBuf::from);
    let beside = smollm2.map(|model| model.with_file_name(FILE));
    let usual = workspace().join("target/models").join(FILE);
    named("TINYGPT_GEMMA_MODEL", beside.filter(|path| path.exists()).unwrap_or(usual))
}

/// A file that `tests/make-gguf-cases.py` makes.
pub(crate) fn gguf_case(name: &str) -> Option<Vec<u8>> {
    let named = std::env::var_os("TINYGPT_GGUF_CASES").map(PathBuf::from);
    let folder = named.unwrap_or_else(|| workspace().join("target/gguf-cases"));
    present(&folder.join(name))
}

/// The file that a variable names, or the one at its usual place.
fn named(variable: &str, usual: PathBuf) -> Option<Vec<u8>> {
    present(&std::env::var_os(variable).map_or(usual, PathBuf::from))
}

/// A large file that not everybody has.
fn present(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path);
    if let Err(error) = &bytes {
        skip(&format!("{}: {error}", path.display()));
    }
    bytes.ok()
}

/// Token ids in a JSON array.
pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Numbers in a JSON array.
pub(crate) fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

/// The f32 elements of an `.npy` file, row-major.
pub(crate) fn npy(bytes: &[u8]) -> Vec<f32> {
    assert_eq!(&bytes[..7], b"\x93NUMPY\x01", "an .npy file of version 1");
    let header = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let (header, data) = bytes[10..].split_at(header);
    let header = std::str::from_utf8(header).unwrap();
    assert!(header.contains("'<f4'") && header.contains("'fortran_order': False"), "{header}");
    data.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

/// The f32 elements of one array in an `.npz` file, found in the archive's directory.
///
/// ```text
/// "PK\1\2" .. method u16 @10 .. sizes, packed and not, u32 @20,24 | name, extra, comment lengths u16 @28,30,32 ..
///          .. local header's offset u32 @42 | name | extra | comment
/// ```
pub(crate) fn npz(bytes: &[u8], array: &str) -> Vec<f32> {
    let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]) as usize;
    let u32_at = |at: usize| u16_at(at) | u16_at(at + 2) << 16;
    let end = bytes.windows(4).rposition(|mark| mark == b"PK\x05\x06").unwrap();
    let mut entry = u32_at(end + 16);
    for _ in 0..u16_at(end + 10) {
        let name = &bytes[entry + 46..][..u16_at(entry + 28)];
        if name == format!("{array}.npy").as_bytes() {
            let local = u32_at(entry + 42);
            let data = local + 30 + u16_at(local + 26) + u16_at(local + 28);
            let packed = &bytes[data..data + u32_at(entry + 20)];
            return match u16_at(entry + 10) {
                0 => npy(packed),
                8 => npy(&miniz_oxide::inflate::decompress_to_vec(packed).unwrap()),
                method => panic!("{array} is packed by method {method}"),
            };
        }
        entry += 46 + u16_at(entry + 28) + u16_at(entry + 30) + u16_at(entry + 32);
    }
    panic!("no array {array}");
}
