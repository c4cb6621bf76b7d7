//! What systemd gives and wants: sockets it opened for us, and word of how we are.
//!
//! Every function is a no-op when systemd did not start this process, so callers never ask.

use std::io;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;

/// The Unix sockets this process was started with, in the order of its `.socket` unit; non-blocking.
///
/// They belong to systemd: their files are never to be unlinked.
/// Takes `LISTEN_FDS` out of the environment, so it must run before there are other threads, and once.
///
/// # Errors
/// A descriptor that was passed but is no Unix stream socket, by its number.
pub fn inherited_listeners() -> io::Result<Vec<UnixListener>> {
    let mut passed = ListenFd::from_env();
    (0..passed.len())
        .filter_map(|at| passed.take_unix_listener(at).transpose())
        .map(unblock)
        .collect()
}

/// Inherited sockets arrive blocking, which an asynchronous runtime must not wait on.
fn unblock(listener: io::Result<UnixListener>) -> io::Result<UnixListener> {
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Says that requests are answered now.
pub fn ready() {
    tell(NotifyState::Ready);
}

/// Says that the process is about to end.
pub fn stopping() {
    tell(NotifyState::Stopping);
}

/// Says that the engine still beats; see [`watchdog_interval`].
pub fn alive() {
    tell(NotifyState::Watchdog);
}

/// How often [`alive`] is to be called, if the unit has a watchdog: half of what it tolerates.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|tolerated| tolerated / 2)
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(&state)) {
        tracing::warn!(%error, ?state, "systemd cannot be told");
    }
}
