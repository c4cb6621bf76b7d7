//! What parses the files of a cache directory, for fuzzers, to which every checksum is right.

use super::coding::Decoder;
use super::record::Head;
use super::segment::Header;
use super::{fields, pins};
use crate::kv::layout::BLOCK;

/// The head of a segment: what it says of its parts lies inside the file.
pub fn segment(bytes: &[u8]) {
    let Some(length) = word(bytes, 24) else { return };
    let Ok(header) = Header::decode(bytes, length) else { return };
    for block in &header.blocks {
        for part in &block.parts {
            assert!(part.offset() >= header.data_start(), "a part inside of the header");
            assert!(part.range().end as u64 <= length, "a part outside of the file");
        }
    }
}

/// The head of a record.
pub fn record(bytes: &[u8]) {
    let Some(length) = word(bytes, 16) else { return };
    let Ok(head) = Head::decode(bytes, length) else { return };
    assert!(head.tail.len() < BLOCK && head.file_len() == Some(length), "a length that lies");
}

/// A file of digests.
pub fn digests(bytes: &[u8]) {
    if let Ok((fingerprint, fields)) = fields::decode(bytes) {
        assert_eq!(fields.fingerprint(), fingerprint);
    }
}

/// A file of pins.
pub fn pins(bytes: &[u8]) {
    if let Ok(leases) = pins::decode(bytes) {
        assert!(
            leases.iter().all(|lease| lease.end.tail.len() < BLOCK),
            "a tail that fills a block"
        );
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Decoder::new(bytes.get(at..)?).u64().ok()
}
