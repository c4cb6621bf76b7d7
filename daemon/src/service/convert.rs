//! Between the wire's messages and the domain's values.
//!
//! [`request`] reads what clients send and is the only place that finds fault with it: behind it
//! every number is in range and every name stands for something.
//! [`reply`] writes what clients get.

pub mod reply;
pub mod request;
