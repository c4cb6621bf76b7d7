//! One file after another from the hub into the cache, however often the connection breaks.

use std::fs::{File, TryLockError};
use std::io::Read;
use std::thread;
use std::time::Duration;

use ureq::Body;
use ureq::http::Response;

use super::cache::{Snapshot, at};
use super::error::PullError;
use super::hub::{Entry, Hub, Listing};
use super::meter::Meter;
use super::part::Part;

/// How often in a row a hub may give nothing before it is given up.
const ATTEMPTS: u32 = 5;

/// How long to wait after the first failure; twice as long after each further one.
const PAUSE: Duration = Duration::from_millis(250);

/// What files come from, and where they go.
#[derive(Debug)]
pub(super) struct Download<'a> {
    pub(super) hub: &'a Hub,
    pub(super) listing: &'a Listing,
    pub(super) snapshot: &'a Snapshot,
    pub(super) meter: &'a Meter,
}

impl Download<'_> {
    /// Makes a file appear in the snapshot. Whatever was interrupted goes on where it stopped.
    pub(super) fn fetch(&self, file: &Entry) -> Result<(), PullError> {
        self.meter.begin(file, self.snapshot.has(file));
        if !self.snapshot.has(file) {
            let lock = self.snapshot.lock(file)?;
            self.take(&lock, file)?;
            // Whoever held the lock may have fetched it.
            if !self.snapshot.has(file) {
                self.complete(file)?;
            }
        }
        self.snapshot.link(file)
    }

    fn take(&self, lock: &File, file: &Entry) -> Result<(), PullError> {
        match lock.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => {
                self.meter.say(&format!("waiting for another process that fetches {}", file.name));
                lock.lock().map_err(at(&self.snapshot.blob(file)))
            }
            Err(TryLockError::Error(error)) => Err(at(&self.snapshot.blob(file))(error)),
        }
    }

    fn complete(&self, file: &Entry) -> Result<(), PullError> {
        let mut part = Part::open(self.snapshot.part(file), file)?;
        let mut failures = 0;
        loop {
            let before = part.length();
            let Err(error) = self.extend(&mut part, file) else {
                if part.publish(&self.snapshot.blob(file))? {
                    return Ok(());
                }
                continue;
            };
            failures = if part.length() > before { 1 } else { failures + 1 };
            if !error.passes() || failures == ATTEMPTS {
                return Err(error);
            }
            thread::sleep(PAUSE * 2_u32.pow(failures - 1));
        }
    }

    /// Asks for what is missing, and takes what comes.
    fn extend(&self, part: &mut Part<'_>, file: &Entry) -> Result<(), PullError> {
        self.meter.stand(part.length());
        if part.is_complete() {
            return Ok(());
        }
        let response = self.hub.open(self.listing, file, part.length())?;
        if starts_at(&response) != Some(part.length()) {
            part.restart()?;
            self.meter.stand(0);
        }
        if response.status().as_u16() == 416 {
            return Err(broken(part, file, "the hub has no such bytes"));
        }
        match whole(&response) {
            Some(found) if found != file.size => {
                Err(PullError::Size { file: file.name.clone(), expected: file.size, found })
            }
            _ => self.copy(response, part, file),
        }
    }

    fn copy(
        &self,
        response: Response<Body>,
        part: &mut Part<'_>,
        file: &Entry,
    ) -> Result<(), PullError> {
        let mut body = response.into_body().into_reader().take(file.size - part.length());
        let mut buffer = vec![0; 1 << 16];
        loop {
            match body.read(&mut buffer) {
                Ok(0) if part.is_complete() => return Ok(()),
                Ok(0) => return Err(broken(part, file, "it ended")),
                Ok(count) => part.append(&buffer[..count])?,
                Err(error) => return Err(broken(part, file, &error.to_string())),
            }
            self.meter.stand(part.length());
        }
    }
}

fn broken(part: &Part<'_>, file: &Entry, reason: &str) -> PullError {
    let (file, size) = (file.name.clone(), file.size);
    PullError::Broken { file, got: part.length(), size, reason: reason.into() }
}

/// Where in the file the bytes of a response begin: `Content-Range: bytes FROM-TO/WHOLE`.
fn starts_at(response: &Response<Body>) -> Option<u64> {
    match response.status().as_u16() {
        206 => range(response)?.strip_prefix("bytes ")?.split('-').next()?.parse().ok(),
        200 => Some(0),
        _ => None,
    }
}

/// How many bytes the file has, according to a response.
fn whole(response: &Response<Body>) -> Option<u64> {
    match response.status().as_u16() {
        206 => range(response)?.rsplit('/').next()?.parse().ok(),
        _ => response.body().content_length(),
    }
}

fn range(response: &Response<Body>) -> Option<&str> {
    response.headers().get("content-range")?.to_str().ok()
}
