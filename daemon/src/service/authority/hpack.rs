//! Walks the fields of an HPACK header block (RFC 7541), without tables.
//!
//! ```text
//!  1xxxxxxx  indexed field                     index
//!  01xxxxxx  literal, added to the table       name index or 0 + name,  value
//!  001xxxxx  table size update                 size
//!  0000xxxx  literal, not added                name index or 0 + name,  value
//!  0001xxxx  literal, never to be added        name index or 0 + name,  value
//!
//!  string:   h | length ...  then its bytes, Huffman-coded when h is set
//! ```
//!
//! HPACK's Huffman code is canonical: codes of one length are consecutive numbers, and a longer
//! code begins where the shorter ones end. So the number of codes per length is all it takes to
//! find where each character begins.

use std::ops::Range;

const NAME: &[u8] = b":authority";
/// [`NAME`] in the Huffman code.
const NAME_HUFFMAN: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// Index of [`NAME`] in the static table.
const NAME_INDEX: usize = 1;

/// Number of Huffman codes by length in bits.
const CODES: [u32; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 4,
];
/// What takes the place of a byte that a host may not hold, in a raw string.
const PLAIN: u8 = b'-';
/// Bytes that grpc-core leaves in an authority or puts there, and that a host may not hold.
const UNFIT: &[u8] = b"%:@[]";
/// The codes of [`UNFIT`], each with the code of the same length that takes its place.
const RECODED: [(Code, Code); 5] = [
    (Code { bits: 6, value: 0x15 }, Code { bits: 6, value: 0x16 }), // % -
    (Code { bits: 7, value: 0x5c }, Code { bits: 7, value: 0x5d }), // : B
    (Code { bits: 13, value: 0x1ffa }, Code { bits: 13, value: 0x1ffd }), // @ ~
    (Code { bits: 13, value: 0x1ffb }, Code { bits: 13, value: 0x1ffd }), // [ ~
    (Code { bits: 13, value: 0x1ffc }, Code { bits: 13, value: 0x1ffd }), // ] ~
];
/// The code that must not occur.
const END_OF_STRING: Code = Code { bits: 30, value: (1 << 30) - 1 };

/// Puts something harmless of the same length for every character of the `:authority` values of a
/// block that a host may not hold.
///
/// Returns whether the whole block was understood; when it was not, its contents are of no use.
pub(super) fn rewrite(block: &mut [u8]) -> bool {
    let mut at = 0;
    while at < block.len() {
        match field(block, at) {
            Some(next) => at = next,
            None => return false,
        }
    }
    true
}

/// Rewrites the field at `at` if it is an authority, and says where the next one begins.
fn field(block: &mut [u8], at: usize) -> Option<usize> {
    let first = *block.get(at)?;
    let index_bits = match first {
        0x80.. => return Some(integer(block, at, 7)?.1),
        0x40.. => 6,
        0x20.. => return Some(integer(block, at, 5)?.1),
        _ => 4,
    };
    let (index, mut next) = integer(block, at, index_bits)?;
    let mut is_authority = index == NAME_INDEX;
    if index == 0 {
        let name = Text::read(block, next)?;
        is_authority = name.is_authority(block);
        next = name.bytes.end;
    }
    let value = Text::read(block, next)?;
    if is_authority {
        value.rewrite(block)?;
    }
    Some(value.bytes.end)
}

/// A string literal of a block.
struct Text {
    huffman: bool,
    bytes: Range<usize>,
}

impl Text {
    fn read(block: &[u8], at: usize) -> Option<Self> {
        let huffman = block.get(at)? & 0x80 != 0;
        let (length, start) = integer(block, at, 7)?;
        let end = start.checked_add(length).filter(|end| *end <= block.len())?;
        Some(Self { huffman, bytes: start..end })
    }

    fn is_authority(&self, block: &[u8]) -> bool {
        let name = if self.huffman { NAME_HUFFMAN } else { NAME };
        block[self.bytes.clone()] == *name
    }

    fn rewrite(&self, block: &mut [u8]) -> Option<()> {
        let bytes = &mut block[self.bytes.clone()];
        if self.huffman {
            return rewrite_huffman(bytes);
        }
        for byte in bytes.iter_mut().filter(|byte| UNFIT.contains(byte)) {
            *byte = PLAIN;
        }
        Some(())
    }
}

/// An integer with a prefix of `bits` bits, and where it ends.
fn integer(block: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let full = (1 << bits) - 1;
    let prefix = usize::from(*block.get(at)?) & full;
    if prefix < full {
        return Some((prefix, at + 1));
    }
    let mut value = prefix;
    // Four more bytes carry 28 bits: more than any length that is held back.
    for (place, next) in (0..4).zip(at + 1..) {
        let byte = usize::from(*block.get(next)?);
        value += (byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some((value, next + 1));
        }
    }
    None
}

fn rewrite_huffman(bytes: &mut [u8]) -> Option<()> {
    let bits = bytes.len() * 8;
    let mut at = 0;
    while let Some(code) = Code::read(bytes, at) {
        if code == END_OF_STRING {
            return None;
        }
        if let Some((_, fit)) = RECODED.iter().find(|(unfit, _)| *unfit == code) {
            fit.write(bytes, at);
        }
        at += code.bits;
    }
    // What is left is padding: less than a byte, and all ones.
    (bits - at < 8 && (at..bits).all(|at| bit(bytes, at) == 1)).then_some(())
}

/// One character in the Huffman code.
#[derive(Clone, Copy, PartialEq)]
struct Code {
    bits: usize,
    value: u32,
}

impl Code {
    /// The code that begins at bit `at`; `None` when the bits end before it does.
    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let (mut value, mut first) = (0, 0);
        for (bits, count) in CODES.into_iter().enumerate().skip(1) {
            if at + bits > bytes.len() * 8 {
                return None;
            }
            value = value << 1 | bit(bytes, at + bits - 1);
            first <<= 1;
            if value < first + count {
                return Some(Self { bits, value });
            }
            first += count;
        }
        None
    }

    /// Puts the code at bit `at`.
    fn write(&self, bytes: &mut [u8], at: usize) {
        for place in 0..self.bits {
            let wanted = self.value >> (self.bits - 1 - place) & 1;
            if bit(bytes, at + place) != wanted {
                bytes[(at + place) / 8] ^= 0x80 >> ((at + place) % 8);
            }
        }
    }
}

fn bit(bytes: &[u8], at: usize) -> u32 {
    u32::from(bytes[at / 8] >> (7 - at % 8) & 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(block: &[u8], expected: &[u8]) {
        let mut got = block.to_vec();
        assert!(rewrite(&mut got), "{block:02x?} is well formed");
        assert_eq!(got, expected);
    }

    fn string(huffman: bool, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).expect("test strings are short");
        [&[if huffman { 0x80 } else { 0 } | length][..], bytes].concat()
    }

    fn field_of(head: u8, strings: &[Vec<u8>]) -> Vec<u8> {
        [&[head][..], &strings.concat()].concat()
    }

    /// `tmp%2Fa.sock` and `tmp-2Fa.sock`, coded by another implementation.
    const CODED: [&[u8]; 2] = [
        &[0x4d, 0x35, 0xaa, 0x2c, 0x23, 0x5d, 0x07, 0x27, 0x5f],
        &[0x4d, 0x35, 0xac, 0x2c, 0x23, 0x5d, 0x07, 0x27, 0x5f],
    ];

    #[test]
    fn a_value_is_rewritten_with_every_kind_of_name_and_of_literal() {
        let names = [vec![], string(false, NAME), string(true, NAME_HUFFMAN)];
        let values = [
            (string(false, b"tmp%2Fa.sock"), string(false, b"tmp-2Fa.sock")),
            (string(true, CODED[0]), string(true, CODED[1])),
        ];
        for name in &names {
            for kind in [0x40, 0x00, 0x10] {
                let head = if name.is_empty() { kind | 1 } else { kind };
                for (before, after) in &values {
                    check(
                        &field_of(head, &[name.clone(), before.clone()]),
                        &field_of(head, &[name.clone(), after.clone()]),
                    );
                }
            }
        }
    }

    #[test]
    fn percent_signs_at_every_bit_position_are_rewritten() {
        let percent = [0x55; 6];
        let minus = [0x59, 0x65, 0x96, 0x59, 0x65, 0x96];
        check(&field_of(0x41, &[string(true, &percent)]), &field_of(0x41, &[string(true, &minus)]));
    }

    #[test]
    fn everything_that_a_path_may_hold_and_a_host_may_not_is_rewritten() {
        let raw = |value: &[u8]| field_of(0x41, &[string(false, value)]);
        check(&raw(b"a%:@[]z"), &raw(b"a-----z"));
        // `a%:@[]z` and `a-B~~~z`, coded by another implementation.
        let before = [0x1a, 0xb7, 0x3f, 0xf5, 0xff, 0xbf, 0xfe, 0x7b];
        let after = [0x1a, 0xd7, 0x7f, 0xfb, 0xff, 0xdf, 0xfe, 0xfb];
        let coded = |value: &[u8]| field_of(0x41, &[string(true, value)]);
        check(&coded(&before), &coded(&after));
    }

    #[test]
    fn other_fields_are_left_alone() {
        let path = field_of(0x04, &[string(false, b"/a%2Fb")]);
        let named = field_of(0x00, &[string(false, b":authoritY"), string(false, b"50%")]);
        let indexed = vec![0x81, 0x82, 0xff, 0x80, 0x01];
        let update = vec![0x3f, 0xe1, 0x1f];
        let block = [update, path, named, indexed].concat();
        check(&block, &block);
    }

    #[test]
    fn a_field_behind_a_long_one_is_found() {
        let long = [&[0x04, 0x7f, 0xa9, 0x46][..], &[b'%'; 127 + 0x29 + (0x46 << 7)]].concat();
        let with =
            |authority: &[u8]| [long.clone(), field_of(0x41, &[string(false, authority)])].concat();
        check(&with(b"a%b"), &with(b"a-b"));
    }

    #[test]
    fn broken_blocks_are_not_understood() {
        let broken: [&[u8]; 7] = [
            &[0x41],
            &[0x41, 0x05, b'a'],
            &[0x40, 0x0a, b':'],
            &[0xff, 0x80, 0x80, 0x80, 0x80, 0x01],
            &[0x41, 0xff, 0xff, 0xff, 0xff, 0x7f],
            &[0x41, 0x81, 0x00],
            &[0x41, 0x84, 0xff, 0xff, 0xff, 0xff],
        ];
        for block in broken {
            assert!(!rewrite(&mut block.to_vec()), "{block:02x?}");
        }
    }

    #[test]
    fn the_code_is_complete() {
        let used: u32 = (0..).zip(CODES).skip(1).map(|(bits, count)| count << (30 - bits)).sum();
        assert_eq!(used, 1 << 30);
        assert_eq!(CODES.iter().sum::<u32>(), 257);
    }

    proptest! {
        #[test]
        fn random_blocks_do_no_harm(block in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut got = block.clone();
            rewrite(&mut got);
            prop_assert_eq!(got.len(), block.len());
        }

        #[test]
        fn rewriting_twice_is_rewriting_once(bytes in prop::collection::vec(any::<u8>(), 0..30)) {
            let mut once = field_of(0x41, &[string(true, &bytes)]);
            if rewrite(&mut once) {
                let mut twice = once.clone();
                prop_assert!(rewrite(&mut twice));
                prop_assert_eq!(once, twice);
            }
        }
    }
}
