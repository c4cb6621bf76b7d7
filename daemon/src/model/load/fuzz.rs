//! What parses parts of model files, for fuzzers, which do not get far when they must make the rest.

use super::safetensors;

/// The header of a file of tensors: what it says of them lies inside the file.
pub fn safetensors(bytes: &[u8]) {
    let Ok(tensors) = safetensors::parse(bytes, bytes.len()) else { return };
    let sizes: usize = tensors.values().map(|tensor| tensor.range.len()).sum();
    assert!(sizes <= bytes.len(), "{sizes} bytes of tensors in a file of {}", bytes.len());
    for (name, tensor) in &tensors {
        assert!(tensor.range.end <= bytes.len(), "{name} reaches outside of the file");
    }
}
