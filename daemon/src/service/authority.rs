//! Lets stock grpc-core clients in: rewrites the `:authority` they send over Unix sockets.
//!
//! gRPC libraries built on grpc-core (Python, C++, Ruby, PHP) that connect to `unix:/run/x/t.sock`
//! send the percent-encoded path as `:authority`, here `run%2Fx%2Ft.sock`. `h2` parses that field
//! as a URI authority, in which a host may not contain `%`, and answers RST_STREAM with
//! PROTOCOL_ERROR. There is no hook between the socket and that check, so the bytes are changed on
//! their way in: every `%` in an `:authority` becomes `-`, and so does every `:`, `@`, `[` and `]`,
//! which grpc-core does not encode. Nothing in the daemon reads the field.
//!
//! Why that is sound:
//!
//! - It preserves lengths. A raw literal changes byte for byte, and in the Huffman code of HPACK
//!   (RFC 7541, appendix B) a character is replaced by one whose code is as long: `%` by `-`, `:` by
//!   `B`, the others by `~`. So frame lengths stay true, and both sides' dynamic tables keep the
//!   same sizes.
//! - It never touches a stream it does not understand. A header block is rewritten as a whole or
//!   not at all; whatever is no HTTP/2, or breaks its rules, goes to `h2` as it came.
//! - It holds back at most one header block, and of that at most 64 KiB.
//!
//! What it deliberately does not do: keep the dynamic table. A value given with a *dynamic* index
//! for its name is not recognised as an authority. grpc-core has no need for one, since
//! `:authority` has an index in the static table, and sends the literal name besides.
//!
//! `frames` finds the header blocks in the stream of bytes, `hpack` finds the values in a block.

mod frames;
mod hpack;

#[cfg(test)]
pub(super) use self::frames::samples;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::{Connected, UdsConnectInfo};

pub use frames::Rewriter;

/// How much is read from the socket at a time, in bytes.
const READ_BYTES: usize = 16 << 10;

/// A Unix connection whose inbound `:authority` fields are fit for `h2`.
#[derive(Debug)]
pub struct AuthorityStream<S = UnixStream> {
    inner: S,
    rewriter: Rewriter,
    /// Rewritten bytes; those from `taken` on are still to be delivered.
    ready: Vec<u8>,
    taken: usize,
    scratch: Box<[u8]>,
}

impl<S> AuthorityStream<S> {
    /// Filters what is read from `inner`; what is written goes through unchanged.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            rewriter: Rewriter::default(),
            ready: Vec::with_capacity(READ_BYTES),
            taken: 0,
            scratch: vec![0; READ_BYTES].into(),
        }
    }

    fn deliver(&mut self, buf: &mut ReadBuf<'_>) {
        let left = &self.ready[self.taken..];
        let count = left.len().min(buf.remaining());
        buf.put_slice(&left[..count]);
        self.taken += count;
    }
}

impl<S: AsyncRead + Unpin> AuthorityStream<S> {
    /// Reads once and leaves the outcome in `ready`. `false` is the end of the stream.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut read = ReadBuf::new(&mut self.scratch);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
        self.ready.clear();
        self.taken = 0;
        let open = !read.filled().is_empty();
        match open {
            true => self.rewriter.push(read.filled(), &mut self.ready),
            false => self.rewriter.finish(&mut self.ready),
        }
        Poll::Ready(Ok(open))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AuthorityStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // An empty answer means the end of the stream, so a read that was held back is read on.
        while self.taken == self.ready.len() && buf.remaining() > 0 {
            if !ready!(self.poll_fill(cx))? {
                break;
            }
        }
        self.deliver(buf);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AuthorityStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

impl Connected for AuthorityStream {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.inner.connect_info()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::frames::samples;
    use super::*;

    /// What comes out when the pieces go in, with a pause after each.
    async fn through(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut near, far) = duplex(64);
        let reader = tokio::spawn(async move {
            let mut read = Vec::new();
            AuthorityStream::new(far).read_to_end(&mut read).await.unwrap();
            read
        });
        for piece in pieces {
            near.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        drop(near);
        reader.await.unwrap()
    }

    #[tokio::test]
    async fn a_request_of_grpc_core_arrives_with_a_valid_authority() {
        let (sent, expected) = samples::request();
        for cut in 0..sent.len() {
            let (head, tail) = sent.split_at(cut);
            assert_eq!(through(&[head, tail]).await, expected, "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn a_connection_cut_inside_a_header_block_ends_as_it_was() {
        let (sent, _) = samples::request();
        let cut = &sent[..sent.len() - 3];
        assert_eq!(through(&[cut]).await.len(), cut.len());
    }

    #[tokio::test]
    async fn what_is_written_is_not_changed() {
        let (mut near, far) = duplex(64);
        let mut stream = AuthorityStream::new(far);
        stream.write_all(b"50%").await.unwrap();
        drop(stream);
        let mut read = Vec::new();
        near.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"50%");
    }
}
