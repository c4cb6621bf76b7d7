//! The filter of inbound bytes: it keeps lengths, and how a stream is cut changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tinygptd::service::authority::Rewriter;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn through<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
    pieces.into_iter().for_each(|piece| rewriter.push(piece, &mut out));
    rewriter.finish(&mut out);
    out
}

fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let sent = [PREFACE, bytes].concat();
    let whole = through([&sent[..]]);
    assert_eq!(whole.len(), sent.len());
    assert_eq!(through(sent.chunks(usize::from(*size).max(1))), whole);
});
