//! What is measured, and what it is called.
//!
//! Whoever does something adds to a number that it owns a reference to; whoever wants to know reads
//! it, at any time, without asking anybody. A measurement is a few relaxed additions: it takes no
//! lock and no memory, so the engine measures every step.
//!
//! [`table`] has every name once: the words of `Status` and `Watch` and the families of a
//! Prometheus [`page`] are made from it. [`Number`] and [`Histogram`] are what is added to,
//! [`Meter`] is one engine's.
//!
//! Numbers that are read together need not be of one moment.

pub mod table;

mod histogram;
mod meter;
mod number;
pub mod page;

pub use self::histogram::{Counts, Histogram, Unit};
pub use self::meter::{Meter, Reading, Tagged};
pub use self::number::Number;
