//! Times of files: nanoseconds since the epoch, never later than now.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now.
pub(super) fn now() -> u64 {
    since_epoch(SystemTime::now())
}

/// A time; one before the epoch or after now is clamped.
pub(super) fn nanoseconds(time: SystemTime) -> u64 {
    since_epoch(time).min(now())
}

fn since_epoch(time: SystemTime) -> u64 {
    let nanoseconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}
