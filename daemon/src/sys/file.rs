//! Files that are read through descriptors.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file to read. Never waits: a pipe under the name of a file would keep whoever
/// opens it until somebody writes.
///
/// # Errors
/// When it cannot be opened, or is a directory, a pipe or a device.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let flags = i32::try_from(flags).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// Tells the system that all of `file` will be read soon, in order. Returns once it has begun,
/// which on a slow disk takes a while.
pub fn will_need(file: &File) {
    // Advice may be refused without harm.
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::WillNeed);
    #[cfg(target_os = "macos")]
    let _ = rustix::fs::fcntl_rdadvise(file, 0, file.metadata().map_or(0, |file| file.len()));
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nobody_waits_for_a_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let (file, pipe) = (dir.path().join("file"), dir.path().join("pipe"));
        std::fs::write(&file, "words").unwrap();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(open(&file).is_ok());
        for odd in [pipe.as_path(), dir.path(), Path::new("/dev/zero")] {
            let refused = open(odd).unwrap_err().to_string();
            assert!(refused.contains("not a regular file"), "{odd:?}: {refused}");
        }
    }
}
