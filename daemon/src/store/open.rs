//! Opening a cache directory: one owner, one readdir, three threads.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::Settings;
use super::handle::StoreHandle;
use super::loader::{Job, Loader, serve};
use super::name::LOCK;
use super::shared::{Shared, Tuning};
use super::writer::{self, Order};
use crate::sys::directory::{self, DirectoryError};
use crate::sys::lock::{LockError, LockFile};

/// Loader threads: one may wait for a slow disk while the other serves.
const LOADERS: usize = 2;

/// Why a cache directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It, or the one of this version in it, is not, and cannot be made, this user's alone.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Another daemon uses it, or nobody can tell.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A directory cannot be listed.
    #[error("cannot list the cache directory {}: {error}", path.display())]
    List {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The system refused a thread.
    #[error("cannot start threads for the cache directory {}: {error}", dir.display())]
    Threads {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// The threads of a store and its lock. Dropping it writes what is queued, within a bound, stops
/// the threads and lets go of the directory; handles that outlive it find nothing and save nothing.
#[derive(Debug)]
pub struct StoreThreads {
    shared: Arc<Shared>,
    orders: Sender<Order>,
    loaders: Arc<[Loader]>,
    threads: Vec<JoinHandle<()>>,
    _lock: LockFile,
}

/// Opens a cache directory, creating it if its parent exists.
///
/// # Errors
/// When the directory cannot be used, or another process uses it.
pub fn open(settings: Settings) -> Result<(StoreHandle, StoreThreads), OpenError> {
    open_tuned(settings, Tuning::default())
}

pub(super) fn open_tuned(
    settings: Settings,
    tuning: Tuning,
) -> Result<(StoreHandle, StoreThreads), OpenError> {
    let dir = settings.dir.clone();
    directory::own(&dir)?;
    let lock = LockFile::acquire(&dir.join(LOCK), &settings.socket)?;
    let shared = Arc::new(Shared::new(settings, tuning, lock.id()));
    directory::own(shared.root())?;
    shared.enter_names()?;
    start(&shared, lock).map_err(|error| OpenError::Threads { dir, error })
}

fn start(shared: &Arc<Shared>, lock: LockFile) -> io::Result<(StoreHandle, StoreThreads)> {
    let mut threads = Vec::new();
    let (orders, queue) = mpsc::channel();
    let own = Arc::clone(shared);
    threads.push(spawn("store-writer".to_owned(), move || writer::run(&own, &queue))?);
    let mut loaders = Vec::new();
    for number in 0..LOADERS {
        let (jobs, queue) = mpsc::channel();
        let loader = Loader { jobs, waiting: Arc::new(AtomicUsize::new(0)) };
        let (own, itself) = (Arc::clone(shared), loader.clone());
        let serve = move || serve(&own, &itself, &queue);
        threads.push(spawn(format!("store-loader-{number}"), serve)?);
        loaders.push(loader);
    }
    // The last loader reads headers in the background; the first is preferred for prompts.
    loaders[LOADERS - 1].send(Job::Survey);
    let loaders: Arc<[Loader]> = loaders.into();
    let handle = StoreHandle::new(Arc::clone(shared), orders.clone(), Arc::clone(&loaders));
    let shared = Arc::clone(shared);
    Ok((handle, StoreThreads { shared, orders, loaders, threads, _lock: lock }))
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(work)
}

impl Drop for StoreThreads {
    fn drop(&mut self) {
        self.shared.closing.get_or_init(|| Instant::now() + self.shared.tuning.closing);
        // A thread that is gone needs no word.
        let _ = self.orders.send(Order::Close);
        self.loaders.iter().for_each(|loader| loader.send(Job::Close));
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store had panicked");
            }
        }
    }
}
