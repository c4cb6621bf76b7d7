//! What the file system says of a file, as far as it tells two states of the file apart.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How old a file must be before its times tell it from what it may become: no file system's
/// clock is coarser.
const TELLING: Duration = Duration::from_secs(2);

/// Tells two states of one file apart without reading it.
///
/// The time of change is the system's own: whoever sets the time of modification back moves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) size: u64,
    /// Seconds and nanoseconds since the epoch, as is `changed`.
    pub(super) modified: [i64; 2],
    pub(super) changed: [i64; 2],
}

impl Stamp {
    /// The stamp in `metadata`.
    pub fn new(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: [metadata.mtime(), metadata.mtime_nsec()],
            changed: [metadata.ctime(), metadata.ctime_nsec()],
        }
    }

    /// The stamp of the file at `path` now.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::new(&std::fs::metadata(path)?))
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How long ago the file last changed. A time in the future is no reason to wait for it.
    pub fn age(&self) -> Duration {
        age(self.changed).unwrap_or(Duration::MAX)
    }

    /// Whether any change from now on will show in the stamp. A file that changed just now may
    /// change again within one tick of its file system's clock; one from the future, at any time.
    pub fn is_telling(&self) -> bool {
        let old = |time| age(time).is_some_and(|age| age >= TELLING);
        old(self.modified) && old(self.changed)
    }
}

/// `None` for a time in the future.
fn age([seconds, nanos]: [i64; 2]) -> Option<Duration> {
    let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let nanos = Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
    SystemTime::now().duration_since(UNIX_EPOCH + seconds + nanos).ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn ago(seconds: i64) -> [i64; 2] {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        [i64::try_from(now.as_secs()).unwrap() - seconds, 0]
    }

    fn stamp(modified: [i64; 2], changed: [i64; 2]) -> Stamp {
        Stamp { device: 1, inode: 2, size: 3, modified, changed }
    }

    #[test]
    fn a_stamp_tells_once_neither_time_is_young_nor_to_come() {
        assert!(stamp(ago(100), ago(3)).is_telling());
        for (modified, changed) in [(1, 100), (100, 1), (-60, 100), (100, -60), (0, 0)] {
            assert!(!stamp(ago(modified), ago(changed)).is_telling(), "{modified} {changed}");
        }
    }

    #[test]
    fn a_time_to_come_is_not_waited_for() {
        assert_eq!(stamp(ago(0), ago(-60)).age(), Duration::MAX);
        assert!(stamp(ago(0), ago(60)).age() >= Duration::from_secs(60));
    }
}
