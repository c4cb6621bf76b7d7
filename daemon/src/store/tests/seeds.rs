//! What the fuzzer of stored heads begins with is whole.

use std::fs;
use std::path::Path;

use crate::store::coding::Decoder;
use crate::store::fields;
use crate::store::record::Head;
use crate::store::segment::Header;

/// The seeds, each behind the byte that tells its kind.
fn seeds() -> impl Iterator<Item = (u8, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/store");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| {
        let bytes = fs::read(path).unwrap();
        (bytes[0], bytes[1..].to_vec())
    })
}

/// The length of the file that a head is of.
fn length(head: &[u8], at: usize) -> u64 {
    Decoder::new(&head[at..]).u64().unwrap()
}

#[test]
fn heads_that_fuzzing_begins_with_are_read() {
    let mut read = [0; 3];
    for (kind, head) in seeds() {
        match kind {
            0 => assert!(Header::decode(&head, length(&head, 24)).unwrap().blocks.len() > 1),
            1 => assert!(!Head::decode(&head, length(&head, 16)).unwrap().tail.is_empty()),
            _ => {
                let (fingerprint, fields) = fields::decode(&head).unwrap();
                assert_eq!(fields.fingerprint(), fingerprint);
            }
        }
        read[usize::from(kind)] += 1;
    }
    assert!(read.iter().all(|&seeds| seeds > 0), "{read:?}");
}
