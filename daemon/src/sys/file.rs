//! Files that are read through descriptors.

use std::fs::File;

/// Tells the system that all of `file` will be read soon, in order. Returns once it has begun,
/// which on a slow disk takes a while.
pub fn will_need(file: &File) {
    // Advice may be refused without harm.
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::WillNeed);
    #[cfg(target_os = "macos")]
    let _ = rustix::fs::fcntl_rdadvise(file, 0, file.metadata().map_or(0, |file| file.len()));
}
