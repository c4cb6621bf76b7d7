//! Segments: a run of consecutive blocks of one chain in one immutable file.
//!
//! ```text
//!      0   8  magic "tgkv-seg"
//!      8   4  format version, 1
//!     12   4  n: number of blocks, 1..=4096
//!     16   4  p: parts of a block, 1..=16
//!     20   4  zero
//!     24   8  length of the file
//!     32   8  start of the data: the next multiple of 16384 after the header
//!     40  32  fingerprint
//!     72  32  digest of the layout
//!    104      n times: key 32, parent 32, 32 token ids of 4,
//!             then p times: offset 8, length 8, blake3 of the bytes 32
//!         32  blake3 of everything before
//!             zeros up to the start of the data
//!   data      part 0 of every block, part 1 of every block, ..; each starts at a multiple of 64
//!             bytes, with zeros between, and the file ends at one
//! ```
//!
//! There is one way to write a given run: every offset follows from the lengths. The decoder lays
//! the parts out again and compares, so a header cannot point anywhere else, and checks each key
//! against its parent and its tokens, so a header cannot be put together from pieces of others.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::coding::{Decoder, Encoder, SUM, checksum, expect_count, expect_kind, summed};
use super::damage::{Damage, Fault};
use super::name::{Name, VERSION};
use crate::kv::block::Block;
use crate::kv::key::{BlockKey, BlockTokens, Digest, Fingerprint};
use crate::kv::layout::Layout;

/// Most blocks in one segment.
pub(super) const MOST_BLOCKS: u32 = 4096;

const MAGIC: [u8; 8] = *b"tgkv-seg";
const MOST_PARTS: u32 = 16;
/// The largest page size of the systems that map segments (Apple's).
const DATA_ALIGN: u64 = 16 * 1024;
const PART_ALIGN: u64 = 64;
const PREFIX: usize = 104;

/// What a segment says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) fingerprint: Fingerprint,
    pub(super) layout: Digest,
    /// At least one.
    pub(super) blocks: Vec<BlockEntry>,
    pub(super) file_len: u64,
}

/// What a segment says about one of its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockEntry {
    pub(super) key: BlockKey,
    pub(super) parent: BlockKey,
    pub(super) tokens: BlockTokens,
    pub(super) parts: Vec<Extent>,
}

/// Where a part lies and what it must hash to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    offset: u64,
    length: u64,
    sum: [u8; 32],
}

impl Extent {
    pub(super) fn range(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.length) as usize
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    fn length(&self) -> u64 {
        self.length
    }
}

impl Header {
    /// Describes a file of `blocks`, which follow one another.
    pub(super) fn of(fingerprint: Fingerprint, layout: Digest, blocks: &[&Block]) -> Self {
        let mut blocks: Vec<_> = blocks.iter().map(|block| BlockEntry::of(block)).collect();
        let start = data_start(blocks.len(), blocks[0].parts.len());
        let file_len = place(&mut blocks, start).expect("parts in memory are not 2^64 bytes long");
        Self { fingerprint, layout, blocks, file_len }
    }

    /// The name that the file must have.
    pub(super) fn name(&self) -> Name {
        let (parent, first) = (self.blocks[0].parent.short(), self.blocks[0].key.short());
        Name::Segment { parent, first, blocks: self.blocks.len() as u32 }
    }

    /// Where the data starts.
    pub(super) fn data_start(&self) -> u64 {
        data_start(self.blocks.len(), self.blocks[0].parts.len())
    }

    /// Everything before the data.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.bytes(&MAGIC).u32(VERSION);
        to.u32(self.blocks.len() as u32).u32(self.blocks[0].parts.len() as u32).u32(0);
        to.u64(self.file_len).u64(self.data_start());
        to.bytes(&self.fingerprint.0).bytes(&self.layout.0);
        self.blocks.iter().for_each(|block| block.encode(&mut to));
        to.sum().pad(self.data_start() as usize).finish()
    }

    /// Reads everything before the data and believes none of it unchecked.
    pub(super) fn read(file: &File) -> Result<Self, Fault> {
        let found = file.metadata()?.len();
        let needed = data_start(1, 1);
        if found < needed {
            return Err(Damage::Short { found, needed }.into());
        }
        let mut prefix = [0; PREFIX];
        file.read_exact_at(&mut prefix, 0)?;
        // The counts are bounded and the length is there: only now is memory asked for.
        let Prefix { blocks, parts, .. } = Prefix::decode(&prefix, found)?;
        let mut bytes = vec![0; header_len(blocks, parts)];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(Self::decode(&bytes, found)?)
    }

    /// The inverse of [`Self::encode`], but for the padding; `bytes` hold the whole header at
    /// least, and `found` is the length of the file.
    pub(super) fn decode(bytes: &[u8], found: u64) -> Result<Self, Damage> {
        let prefix = Prefix::decode(bytes, found)?;
        let covered = summed(bytes, header_len(prefix.blocks, prefix.parts))?;
        let mut from = Decoder::new(&covered[PREFIX..]);
        let blocks = (0..prefix.blocks).map(|_| BlockEntry::decode(&mut from, prefix.parts));
        let header = Self {
            fingerprint: prefix.fingerprint,
            layout: prefix.layout,
            blocks: blocks.collect::<Result<_, _>>()?,
            file_len: found,
        };
        header.check_places()?;
        header.check_chain()?;
        Ok(header)
    }

    /// Looks for bytes between the header and the data, of a file that `read` or `decode` accepted.
    pub(super) fn check_padding(&self, file: &[u8]) -> Result<(), Damage> {
        let end = header_len(self.blocks.len(), self.blocks[0].parts.len());
        expect_zeros(&file[end..self.data_start() as usize], self.data_start())
    }

    /// Compares the bytes of a part, of a file that `read` or `decode` accepted, with its checksum.
    pub(super) fn check_part(&self, file: &[u8], block: usize, part: usize) -> Result<(), Damage> {
        let extent = &self.blocks[block].parts[part];
        let range = extent.range();
        let end = range.end.next_multiple_of(PART_ALIGN as usize);
        expect_zeros(&file[range.end..end], end as u64)?;
        if checksum(&file[range]) != extent.sum {
            return Err(Damage::PartSum { block, part });
        }
        Ok(())
    }

    /// Refuses bytes that are arranged in another way than `layout` has them.
    pub(super) fn expect_layout(&self, layout: &Layout) -> Result<(), Damage> {
        let sizes = layout.parts().iter().map(|bytes| *bytes as u64);
        let fits = |block: &BlockEntry| block.parts.iter().map(Extent::length).eq(sizes.clone());
        let same = self.layout == layout.digest() && self.blocks.iter().all(fits);
        if same { Ok(()) } else { Err(Damage::Layout) }
    }

    fn check_places(&self) -> Result<(), Damage> {
        let mut placed = self.blocks.clone();
        let said = place(&mut placed, self.data_start()).ok_or(Damage::Field("part length"))?;
        let offsets = |blocks: &[BlockEntry]| -> Vec<Vec<u64>> {
            blocks
                .iter()
                .map(|block| block.parts.iter().map(|part| part.offset).collect())
                .collect()
        };
        for (block, (ours, theirs)) in
            offsets(&placed).iter().zip(offsets(&self.blocks)).enumerate()
        {
            if let Some(part) = ours.iter().zip(&theirs).position(|(a, b)| a != b) {
                return Err(Damage::Place { block, part });
            }
        }
        if said != self.file_len {
            return Err(Damage::Length { found: self.file_len, said });
        }
        Ok(())
    }

    fn check_chain(&self) -> Result<(), Damage> {
        for (i, block) in self.blocks.iter().enumerate() {
            if block.parent.child(&self.fingerprint, &block.tokens) != block.key {
                return Err(Damage::Key(i));
            }
            if i > 0 && block.parent != self.blocks[i - 1].key {
                return Err(Damage::Chain(i));
            }
        }
        Ok(())
    }
}

impl BlockEntry {
    fn of(block: &Block) -> Self {
        let extent =
            |bytes: &[u8]| Extent { offset: 0, length: bytes.len() as u64, sum: checksum(bytes) };
        Self {
            key: block.key,
            parent: block.parent,
            tokens: block.tokens,
            parts: block.parts.iter().map(|part| extent(part.bytes())).collect(),
        }
    }

    fn encode(&self, to: &mut Encoder) {
        to.bytes(&self.key.0).bytes(&self.parent.0).u32s(&self.tokens);
        for part in &self.parts {
            to.u64(part.offset).u64(part.length).bytes(&part.sum);
        }
    }

    fn decode(from: &mut Decoder<'_>, parts: usize) -> Result<Self, Damage> {
        let (key, parent) = (BlockKey(from.array()?), BlockKey(from.array()?));
        let tokens = from.u32s()?;
        let mut extent =
            |_| Ok(Extent { offset: from.u64()?, length: from.u64()?, sum: from.array()? });
        let parts = (0..parts).map(&mut extent).collect::<Result<_, Damage>>()?;
        Ok(Self { key, parent, tokens, parts })
    }
}

/// The part of the header that has a fixed size.
struct Prefix {
    blocks: usize,
    parts: usize,
    fingerprint: Fingerprint,
    layout: Digest,
}

impl Prefix {
    fn decode(bytes: &[u8], found: u64) -> Result<Self, Damage> {
        let mut from = Decoder::new(bytes);
        expect_kind(&mut from, MAGIC, VERSION)?;
        let blocks = expect_count("blocks", from.u32()?, MOST_BLOCKS)?;
        let parts = expect_count("parts", from.u32()?, MOST_PARTS)?;
        let (zero, said, start) = (from.u32()?, from.u64()?, from.u64()?);
        if zero != 0 {
            return Err(Damage::Field("reserved"));
        }
        if said != found {
            return Err(Damage::Length { found, said });
        }
        if start != data_start(blocks, parts) {
            return Err(Damage::Field("start of the data"));
        }
        if found < start {
            return Err(Damage::Short { found, needed: start });
        }
        let (fingerprint, layout) = (Fingerprint(from.array()?), Digest(from.array()?));
        Ok(Self { blocks, parts, fingerprint, layout })
    }
}

fn header_len(blocks: usize, parts: usize) -> usize {
    PREFIX + blocks * (32 + 32 + 32 * 4 + parts * (8 + 8 + 32)) + SUM
}

fn data_start(blocks: usize, parts: usize) -> u64 {
    (header_len(blocks, parts) as u64).next_multiple_of(DATA_ALIGN)
}

/// Gives every part its offset, class by class, and returns the length of the file; `None` when a
/// length is beyond all files.
fn place(blocks: &mut [BlockEntry], start: u64) -> Option<u64> {
    let mut end = start;
    for part in 0..blocks[0].parts.len() {
        for block in &mut *blocks {
            let extent = &mut block.parts[part];
            extent.offset = end;
            end = end.checked_add(extent.length)?.checked_next_multiple_of(PART_ALIGN)?;
        }
    }
    Some(end)
}

fn expect_zeros(bytes: &[u8], end: u64) -> Result<(), Damage> {
    let zero = bytes.iter().all(|byte| *byte == 0);
    zero.then_some(()).ok_or(Damage::Padding(end))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kv::samples;

    const FINGERPRINT: Fingerprint = Fingerprint([7; 32]);

    /// Three blocks of two parts, of lengths that need padding.
    fn blocks() -> Vec<Arc<Block>> {
        let tokens: Vec<u32> = (0..96).collect();
        samples::blocks(&FINGERPRINT, &tokens, |key| vec![vec![key.0[0]; 100], vec![key.0[1]; 65]])
    }

    fn header() -> Header {
        let blocks = blocks();
        let blocks: Vec<_> = blocks.iter().map(|block| &**block).collect();
        Header::of(FINGERPRINT, Digest([9; 32]), &blocks)
    }

    fn file() -> Vec<u8> {
        let header = header();
        let mut file = header.encode();
        file.resize(header.file_len as usize, 0);
        for (block, entry) in blocks().iter().zip(&header.blocks) {
            for (part, extent) in block.parts.iter().zip(&entry.parts) {
                file[extent.range()].copy_from_slice(part.bytes());
            }
        }
        file
    }

    /// Everything that a loader checks.
    fn check(file: &[u8]) -> Result<Header, Damage> {
        let header = Header::decode(file, file.len() as u64)?;
        header.check_padding(file)?;
        for block in 0..header.blocks.len() {
            (0..2).try_for_each(|part| header.check_part(file, block, part))?;
        }
        Ok(header)
    }

    /// Changes the header and makes its checksum right again.
    fn forged(change: impl Fn(&mut Vec<u8>)) -> Result<Header, Damage> {
        let mut bytes = file();
        change(&mut bytes);
        let end = header_len(3, 2) - SUM;
        let sum = checksum(&bytes[..end]);
        bytes[end..end + SUM].copy_from_slice(&sum);
        check(&bytes)
    }

    #[test]
    fn a_header_reads_back_as_what_was_written() {
        assert_eq!(check(&file()), Ok(header()));
    }

    #[test]
    fn data_starts_at_a_page_and_parts_at_cache_lines_class_by_class() {
        let header = header();
        let offsets = |part: usize| header.blocks.iter().map(move |block| block.parts[part].offset);
        assert_eq!(header.data_start() % DATA_ALIGN, 0);
        let all: Vec<u64> = offsets(0).chain(offsets(1)).collect();
        assert_eq!(all[0], header.data_start());
        assert!(all.is_sorted() && all.iter().all(|offset| offset % 64 == 0));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut file = file();
        for bit in 0..file.len() * 8 {
            file[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&file).is_err(), "bit {bit}");
            file[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn every_other_length_is_noticed() {
        let mut longer = file();
        longer.push(0);
        let right = longer.len() - 1;
        for len in (0..=longer.len()).filter(|len| *len != right) {
            assert!(Header::decode(&longer[..len], len as u64).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_header_with_a_right_checksum_must_also_make_sense() {
        let block = |index: usize| PREFIX + index * (192 + 2 * 48);
        let put = |at: usize, value: u64| {
            move |bytes: &mut Vec<u8>| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes())
        };
        assert_eq!(forged(|bytes| bytes[8] = 2), Err(Damage::Version { found: 2, known: 1 }));
        assert_eq!(forged(|bytes| bytes[20] = 1), Err(Damage::Field("reserved")));
        assert_eq!(forged(put(32, 0)), Err(Damage::Field("start of the data")));
        assert_eq!(forged(|bytes| bytes[block(1) + 64] ^= 1), Err(Damage::Key(1)));
        let first_place = block(0) + 192;
        assert_eq!(forged(put(first_place, 0)), Err(Damage::Place { block: 0, part: 0 }));
        let huge = forged(put(first_place + 8, u64::MAX));
        assert_eq!(huge, Err(Damage::Field("part length")));
        assert!(matches!(forged(put(block(2) + 192 + 48 + 8, 200)), Err(Damage::Length { .. })));
    }

    #[test]
    fn counts_are_refused_before_memory_is_asked_for() {
        let count = |at: usize, value: u32| {
            let mut bytes = file();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            Header::decode(&bytes, bytes.len() as u64)
        };
        for value in [0, MOST_BLOCKS + 1, u32::MAX] {
            assert!(matches!(count(12, value), Err(Damage::Count { what: "blocks", .. })));
        }
        for value in [0, MOST_PARTS + 1, u32::MAX] {
            assert!(matches!(count(16, value), Err(Damage::Count { what: "parts", .. })));
        }
        assert_eq!(count(12, MOST_BLOCKS), Err(Damage::Field("start of the data")));
    }

    #[test]
    fn blocks_of_other_chains_cannot_be_put_together() {
        let swap = |bytes: &mut Vec<u8>| {
            let size = 192 + 2 * 48;
            let (a, b) = bytes[PREFIX..PREFIX + 3 * size].split_at_mut(2 * size);
            // Key, parent and tokens; the places stay.
            a[..192].swap_with_slice(&mut b[..192]);
        };
        assert_eq!(forged(swap), Err(Damage::Chain(1)));
    }
}
