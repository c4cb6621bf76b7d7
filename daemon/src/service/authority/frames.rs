//! Walks HTTP/2 frames in a stream of bytes cut anywhere, and rewrites the header blocks.
//!
//! ```text
//!  frame:    length 24 | type 8 | flags 8 | stream 32 | payload ...
//!  HEADERS:  [pad length 8]  [priority 40]  fragment ...  [padding]
//!  CONTINUATION:                            fragment ...
//! ```
//!
//! A header block is the fragments of one HEADERS frame and of the CONTINUATION frames behind it,
//! up to the one that says END_HEADERS. Nothing else may come between them.

use std::mem;
use std::ops::Range;

use super::hpack;

/// Most bytes of frames that are held back for one header block. gRPC implementations refuse
/// metadata beyond 8 KiB or so by default.
pub(super) const MAX_HELD: usize = 64 << 10;

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEAD_BYTES: usize = 9;
const PRIORITY_BYTES: usize = 5;

const TYPE_HEADERS: u8 = 1;
const TYPE_CONTINUATION: u8 = 9;

const FLAG_END_HEADERS: u8 = 0x04;
const FLAG_PADDED: u8 = 0x08;
const FLAG_PRIORITY: u8 = 0x20;

/// Rewrites one direction of one connection.
///
/// Bytes go in by [`push`](Self::push) in pieces of any size, and come out in the same order and
/// number, at the latest by [`finish`](Self::finish).
#[derive(Debug, Default)]
pub struct Rewriter {
    phase: Phase,
    /// The header block that is being collected.
    block: Option<Block>,
}

/// Where in the stream the next byte lies.
#[derive(Debug)]
enum Phase {
    /// In the connection preface, of which this many bytes have come.
    Preface(usize),
    /// In the head of a frame, of which these bytes have come.
    Head(Vec<u8>),
    /// In a payload, of which this many bytes are still to come.
    Payload(usize),
    /// In something that is no HTTP/2, or breaks its rules: nothing is looked at any more.
    Blind,
}

/// A header block in the making.
#[derive(Debug)]
struct Block {
    stream: [u8; 4],
    /// Whole frames, as they came.
    held: Vec<u8>,
    /// Where in `held` the fragments lie.
    fragments: Vec<Range<usize>>,
    /// Start of the last frame in `held`.
    last: usize,
}

impl Default for Phase {
    fn default() -> Self {
        Self::Preface(0)
    }
}

impl Rewriter {
    /// Takes the next bytes of the stream and appends to `out` those that can go on.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let taken = self.step(bytes, out);
            bytes = &bytes[taken..];
        }
    }

    /// Takes the end of the stream: what was held back goes on as it is.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if let Some(block) = self.block.take() {
            out.extend(block.held);
        }
        if let Phase::Head(head) = mem::replace(&mut self.phase, Phase::Blind) {
            out.extend(head);
        }
    }

    /// Takes at least one byte of `bytes`, as far as the phase lasts, and says how many.
    fn step(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        match &mut self.phase {
            Phase::Preface(seen) => {
                let taken = bytes.len().min(PREFACE.len() - *seen);
                let matches = bytes[..taken] == PREFACE[*seen..*seen + taken];
                *seen += taken;
                if !matches {
                    self.phase = Phase::Blind;
                } else if *seen == PREFACE.len() {
                    self.phase = Phase::Head(Vec::new());
                }
                out.extend(&bytes[..taken]);
                taken
            }
            Phase::Head(head) => {
                let taken = bytes.len().min(HEAD_BYTES - head.len());
                head.extend(&bytes[..taken]);
                if head.len() == HEAD_BYTES {
                    let head = mem::take(head);
                    self.begin_frame(&head, out);
                }
                taken
            }
            Phase::Payload(left) => {
                let taken = bytes.len().min(*left);
                *left -= taken;
                let ended = *left == 0;
                self.sink(out).extend(&bytes[..taken]);
                if ended {
                    self.end_frame(out);
                }
                taken
            }
            Phase::Blind => {
                out.extend(bytes);
                bytes.len()
            }
        }
    }

    /// Where bytes of the current frame go.
    fn sink<'a>(&'a mut self, out: &'a mut Vec<u8>) -> &'a mut Vec<u8> {
        match &mut self.block {
            Some(block) => &mut block.held,
            None => out,
        }
    }

    fn begin_frame(&mut self, head: &[u8], out: &mut Vec<u8>) {
        let length = payload_length(head);
        let (kind, stream) = (head[3], [head[5], head[6], head[7], head[8]]);
        let lawful = match &mut self.block {
            Some(block) => kind == TYPE_CONTINUATION && block.accept(stream, length),
            None if kind == TYPE_HEADERS => {
                self.block = Some(Block::new(stream));
                length <= MAX_HELD
            }
            None => true,
        };
        self.sink(out).extend(head);
        match (lawful, length) {
            (false, _) => self.give_up(out),
            (true, 0) => self.end_frame(out),
            (true, _) => self.phase = Phase::Payload(length),
        }
    }

    fn end_frame(&mut self, out: &mut Vec<u8>) {
        self.phase = Phase::Head(Vec::new());
        let Some(block) = &mut self.block else { return };
        match block.end_frame() {
            None => self.give_up(out),
            Some(false) => {}
            Some(true) => {
                block.rewrite();
                out.append(&mut block.held);
                self.block = None;
            }
        }
    }

    fn give_up(&mut self, out: &mut Vec<u8>) {
        self.finish(out);
        self.phase = Phase::Blind;
    }
}

impl Block {
    fn new(stream: [u8; 4]) -> Self {
        Self { stream, held: Vec::new(), fragments: Vec::new(), last: 0 }
    }

    /// Whether a CONTINUATION for `stream` with `length` bytes of payload may go on this block.
    fn accept(&mut self, stream: [u8; 4], length: usize) -> bool {
        self.last = self.held.len();
        self.stream == stream && self.held.len() + HEAD_BYTES + length <= MAX_HELD
    }

    /// Notes the fragment of the last frame, and says whether the block is complete.
    /// `None` when the frame's padding or priority do not fit it.
    fn end_frame(&mut self) -> Option<bool> {
        let frame = &self.held[self.last..];
        let fragment = fragment(frame)?;
        self.fragments.push(self.last + fragment.start..self.last + fragment.end);
        Some(frame[4] & FLAG_END_HEADERS != 0)
    }

    fn rewrite(&mut self) {
        let mut joined = Vec::with_capacity(self.held.len());
        for fragment in &self.fragments {
            joined.extend(&self.held[fragment.clone()]);
        }
        if !hpack::rewrite(&mut joined) {
            return;
        }
        let mut rest = &joined[..];
        for fragment in &self.fragments {
            let (piece, behind) = rest.split_at(fragment.len());
            self.held[fragment.clone()].copy_from_slice(piece);
            rest = behind;
        }
    }
}

fn payload_length(head: &[u8]) -> usize {
    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])
}

/// Where in a whole HEADERS or CONTINUATION frame its fragment lies.
fn fragment(frame: &[u8]) -> Option<Range<usize>> {
    let (kind, flags) = (frame[3], frame[4]);
    let (mut start, mut end) = (HEAD_BYTES, frame.len());
    if kind == TYPE_HEADERS && flags & FLAG_PADDED != 0 {
        end = end.checked_sub(usize::from(*frame.get(start)?))?;
        start += 1;
    }
    if kind == TYPE_HEADERS && flags & FLAG_PRIORITY != 0 {
        start += PRIORITY_BYTES;
    }
    (start <= end).then_some(start..end)
}

/// Streams for the tests of this folder.
#[cfg(test)]
pub(in crate::service) mod samples {
    use super::*;

    pub(crate) fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("test frames are small").to_be_bytes();
        // Settings belong to no stream.
        let stream = u8::from(kind != 4);
        let head = [length[1], length[2], length[3], kind, flags, 0, 0, 0, stream];
        [&head, payload].concat()
    }

    /// A block as grpcio sends it: `:authority` as a literal name with a literal value.
    pub(crate) fn block(authority: &str) -> Vec<u8> {
        let length = u8::try_from(authority.len()).expect("test names are short");
        [&[0x83, 0x86, 0x40, 10][..], b":authority", &[length], authority.as_bytes()].concat()
    }

    /// The beginning of a connection of grpcio, and what it should become.
    pub(crate) fn request() -> (Vec<u8>, Vec<u8>) {
        let stream = |authority| connection(&block(authority), b"50%");
        (stream("tmp%2Fa.sock"), stream("tmp-2Fa.sock"))
    }

    /// A connection with one request of these headers and this body.
    pub(crate) fn connection(headers: &[u8], body: &[u8]) -> Vec<u8> {
        let headers = frame(TYPE_HEADERS, FLAG_END_HEADERS, headers);
        [PREFACE, &frame(4, 0, &[])[..], &headers, &frame(0, 1, body)].concat()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::samples::{block, frame, request};
    use super::*;

    fn through<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
        let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
        for piece in pieces {
            rewriter.push(piece, &mut out);
        }
        rewriter.finish(&mut out);
        out
    }

    fn check(frames: &[Vec<u8>], expected: &[Vec<u8>]) {
        let sent = [&PREFACE[..], &frames.concat()].concat();
        let expected = [&PREFACE[..], &expected.concat()].concat();
        assert_eq!(through([&sent[..]]), expected);
        assert_eq!(through(sent.chunks(1)), expected);
    }

    fn untouched(frames: &[Vec<u8>]) {
        check(frames, frames);
    }

    const END: u8 = FLAG_END_HEADERS;

    #[test]
    fn the_authority_of_a_headers_frame_is_rewritten() {
        check(&[frame(1, END, &block("a%2Fb"))], &[frame(1, END, &block("a-2Fb"))]);
    }

    #[test]
    fn every_request_of_a_connection_is_rewritten() {
        let (one, two) = (frame(1, END, &block("a%2Fb")), frame(1, END, &block("a-2Fb")));
        check(
            &[one.clone(), frame(0, 1, b"a%2Fb"), one],
            &[two.clone(), frame(0, 1, b"a%2Fb"), two],
        );
    }

    #[test]
    fn padding_and_priority_are_skipped() {
        let wrap = |block: Vec<u8>| {
            let payload = [&[3, b'%', b'%', b'%', b'%', b'%'][..], &block, b"%%%"].concat();
            vec![frame(1, END | FLAG_PADDED | FLAG_PRIORITY, &payload)]
        };
        check(&wrap(block("a%2Fb")), &wrap(block("a-2Fb")));
    }

    #[test]
    fn a_block_over_continuations_is_rewritten_wherever_it_is_cut() {
        let split = |block: &[u8], cut: usize| {
            let (head, tail) = block.split_at(cut);
            vec![frame(1, 0, head), frame(9, 0, &[]), frame(9, END, tail)]
        };
        let (before, after) = (block("a%2Fb"), block("a-2Fb"));
        for cut in 0..=before.len() {
            check(&split(&before, cut), &split(&after, cut));
        }
    }

    #[test]
    fn a_frame_between_continuations_ends_the_rewriting() {
        let block = block("a%2Fb");
        untouched(&[frame(1, 0, &block[..4]), frame(6, 0, &[0; 8]), frame(9, END, &block[4..])]);
    }

    #[test]
    fn a_continuation_of_another_stream_ends_the_rewriting() {
        let block = block("a%2Fb");
        let mut other = frame(9, END, &block[4..]);
        other[8] = 3;
        untouched(&[frame(1, 0, &block[..4]), other]);
    }

    #[test]
    fn padding_longer_than_its_frame_ends_the_rewriting() {
        untouched(&[frame(1, END | FLAG_PADDED, &[9, 0x82]), frame(1, END, &block("a%2Fb"))]);
    }

    #[test]
    fn a_block_beyond_the_limit_is_not_held_back() {
        let (mut rewriter, mut out) = (Rewriter::default(), PREFACE.to_vec());
        rewriter.push(PREFACE, &mut Vec::new());
        let mut sent = out.clone();
        for kind in [1, 9, 9, 9, 9, 9] {
            let piece = frame(kind, 0, &[b'%'; 16 << 10]);
            rewriter.push(&piece, &mut out);
            sent.extend(piece);
            assert!(sent.len() - out.len() <= MAX_HELD);
        }
        assert_eq!(out, sent);
    }

    #[test]
    fn a_stream_that_is_no_http2_is_not_looked_at() {
        let sent = b"GET /%2F HTTP/1.1\r\nhost: a%2Fb\r\n\r\n";
        assert_eq!(through([&sent[..]]), sent);
    }

    fn pieces<'a>(mut bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        for cut in cuts {
            let (head, tail) = bytes.split_at(cut % (bytes.len() + 1));
            pieces.push(head);
            bytes = tail;
        }
        pieces.push(bytes);
        pieces
    }

    /// Frames that are mostly lawful, so that random ones reach the inner states.
    fn any_frames() -> impl Strategy<Value = Vec<u8>> {
        let kind = prop_oneof![Just(1_u8), Just(9), any::<u8>()];
        let flags = prop_oneof![Just(END), Just(0), any::<u8>()];
        let payload = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            Just(block("a%2Fb")),
            Just(block("a%2Fb")[..7].to_vec()),
        ];
        let one =
            (kind, flags, payload).prop_map(|(kind, flags, payload)| frame(kind, flags, &payload));
        prop::collection::vec(one, 0..8)
            .prop_map(|frames| [&PREFACE[..], &frames.concat()].concat())
    }

    proptest! {
        #[test]
        fn cutting_the_stream_changes_nothing(cuts in prop::collection::vec(any::<usize>(), 0..20)) {
            let (sent, expected) = request();
            prop_assert_eq!(through(pieces(&sent, &cuts)), expected);
        }

        #[test]
        fn random_frames_keep_their_length_however_they_are_cut(
            sent in any_frames(),
            cuts in prop::collection::vec(any::<usize>(), 0..20),
        ) {
            let whole = through([&sent[..]]);
            prop_assert_eq!(whole.len(), sent.len());
            prop_assert_eq!(through(pieces(&sent, &cuts)), whole);
        }

        #[test]
        fn random_bytes_behind_the_preface_keep_their_length(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let sent = [&PREFACE[..], &bytes].concat();
            prop_assert_eq!(through(sent.chunks(7)).len(), sent.len());
        }

        #[test]
        fn random_bytes_pass(sent in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(through(sent.chunks(3)), sent);
        }

        #[test]
        fn other_fields_stay(value in "[a-z%]{0,40}", path in "[a-z%]{0,40}") {
            let length = u8::try_from(path.len()).expect("the pattern is short");
            let path = [&[0x04, length][..], path.as_bytes()].concat();
            let with = |authority: &str| [&path[..], &block(authority)].concat();
            check(
                &[frame(1, END, &with(&value))],
                &[frame(1, END, &with(&value.replace('%', "-")))],
            );
        }
    }
}
