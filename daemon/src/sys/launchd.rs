//! What launchd gives: sockets it opened for us. It wants to hear nothing, so the other functions do nothing.
//!
//! Type-checked by `make check-macos`, never run where this was written.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// The key under `Sockets` in `com.tinygpt.daemon.plist`.
const SOCKET_NAME: &str = "Listener";

/// The Unix sockets of this process's property list; non-blocking. None when launchd did not start it.
///
/// They belong to launchd: their files are never to be unlinked.
/// launchd hands them out once per process.
///
/// # Errors
/// What `launch_activate_socket` said, other than that there is nothing to hand out.
pub fn inherited_listeners() -> io::Result<Vec<UnixListener>> {
    match raunch::activate_socket(SOCKET_NAME) {
        Ok(descriptors) => descriptors.into_iter().map(listener).collect(),
        Err(raunch::Error::NotManaged | raunch::Error::NotInPlist) => Ok(Vec::new()),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Inherited sockets arrive blocking, which an asynchronous runtime must not wait on.
fn listener(descriptor: RawFd) -> io::Result<UnixListener> {
    // SAFETY: launchd has just given this open descriptor to us, and to nobody else.
    let listener = UnixListener::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// launchd takes a process that accepts for ready.
pub fn ready() {}

/// launchd sees the process end.
pub fn stopping() {}

/// launchd has no watchdog.
pub fn alive() {}

/// Never: launchd has no watchdog.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    None
}
