//! When a request came, and when its client gives up: the `grpc-timeout` that gRPC clients send.
//!
//! tonic reads the header too, but applies it to the time until an answer *begins*; a generation
//! goes on after that, so its deadline travels to the engine.

use std::time::{Duration, Instant};

use tonic::metadata::MetadataMap;

/// The moments of a request that its metadata tell.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// When it came.
    pub received: Instant,
    /// When the client gives up.
    pub deadline: Option<Instant>,
}

impl Clock {
    /// The moments of a request that nobody waits for.
    pub fn endless() -> Self {
        Self { received: Instant::now(), deadline: None }
    }

    /// Reads the moments of a request that has just come.
    pub fn start(metadata: &MetadataMap) -> Self {
        let received = Instant::now();
        Self { received, deadline: deadline(metadata, received) }
    }
}

/// When a request that came at `received` is given up by its client.
fn deadline(metadata: &MetadataMap, received: Instant) -> Option<Instant> {
    let timeout = timeout(metadata.get("grpc-timeout")?.to_str().ok()?)?;
    received.checked_add(timeout)
}

/// One to eight digits and a unit, as the gRPC specification has it.
fn timeout(value: &str) -> Option<Duration> {
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_the_specification_is_read() {
        let seconds = ["1H", "60M", "3600S", "3600000m", "99999999u", "99999999n"]
            .map(|value| timeout(value).map(|timeout| timeout.as_secs()));
        assert_eq!(seconds, [Some(3600), Some(3600), Some(3600), Some(3600), Some(99), Some(0)]);
    }

    #[test]
    fn what_is_no_timeout_is_no_deadline() {
        for value in ["", "S", "1", "1s", "123456789S", "-1S", "+1S", "1é"] {
            assert_eq!(timeout(value), None, "{value:?}");
        }
    }
}
