//! Talking to tinygptd: the small library under `tinygpt-client`.
//!
//! A program in Rust that wants the daemon's help needs three things that the generated stubs do
//! not give: the way to the socket ([`connect`]), a daemon behind it when none runs yet ([`start`])
//! or the one that is in its way ([`holder`]), and patience while it loads its model ([`ready`]).
//! The commands themselves are in the binary; what their exit status means is in [`exit`], so that
//! programs which run the binary can name it.
//!
//! ```no_run
//! use tinygpt_client::connect::Connection;
//! use tinygpt_proto::socket::SocketPath;
//! use tinygpt_proto::v1::TokenizeRequest;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let connection = Connection::open(&SocketPath::resolve(None)?).await?;
//! let request = TokenizeRequest { text: "ROMEO:".into(), ..Default::default() };
//! let ids = connection.inference().tokenize(request).await?.into_inner().token_ids;
//! # Ok(())
//! # }
//! ```
//!
//! It deliberately has no types of its own for requests and events: those of `tinygpt_proto` are
//! documented and typed already.

pub mod connect;
pub mod exit;
pub mod holder;
pub mod ready;
pub mod start;
