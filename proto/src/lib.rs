//! The wire protocol of tinygptd, and the little that both of its ends must agree on.
//!
//! The messages and services of the protobuf package `tinygpt.v1` are in [`v1`], generated when the
//! crate is built; the `.proto` files under `proto/` are their documentation and the contract that
//! clients in other languages compile for themselves.
//! [`FILE_DESCRIPTOR_SET`] is the same contract in binary form, for server reflection.
//!
//! Beside it live four things that would otherwise be decided twice: how large a message may be,
//! in which header a daemon tells its version, how an enum value is written in JSON and in tables
//! ([`Label`]), and which socket daemon and client meet on when nobody names one ([`socket`]).
//!
//! The crate holds no behaviour of either end.

mod label;
pub mod socket;

pub use label::Label;

/// The messages, clients and servers of the protobuf package `tinygpt.v1`.
#[allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("tinygpt.v1");
}

/// Every `.proto` file of the protocol and of its imports, comments included, as an encoded
/// `google.protobuf.FileDescriptorSet`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));

/// The largest message either end accepts or sends, in bytes.
///
/// tonic's own default of 4 MiB is too small for long prompts as token ids and for
/// log-probabilities; set this on both the generated client and the generated server.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The response header in which a daemon tells its version with every answer, so that a client of
/// another version can say so.
pub const VERSION_HEADER: &str = "tinygpt-version";
