//! Opening a cache directory: one owner, one readdir, three threads.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::Settings;
use super::handle::{Job, Loader, StoreHandle, serve};
use super::name::LOCK;
use super::publish::make_dir;
use super::shared::{Shared, Tuning};
use super::writer::{self, Order};
use crate::sys::lock::{Holder, LockError, LockFile};

/// Loader threads: one may wait for a slow disk while the other serves.
const LOADERS: usize = 2;

/// Why a cache directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not there and cannot be made.
    #[error("cannot create the cache directory {}: {source}", dir.display())]
    Create {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something else has its name.
    #[error("the cache directory {} is not a directory", dir.display())]
    NotADirectory {
        /// The path.
        dir: PathBuf,
    },
    /// It belongs to somebody else.
    #[error("the cache directory {} belongs to user {owner}, this is user {user}", dir.display())]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// Its owner.
        owner: u32,
        /// This process's user.
        user: u32,
    },
    /// Another daemon uses it.
    #[error("the cache directory {} is used by {}", dir.display(), name(holder.as_ref()))]
    Held {
        /// The directory.
        dir: PathBuf,
        /// Who, as far as the lock file tells.
        holder: Option<Holder>,
    },
    /// It cannot be used.
    #[error("cannot use the cache directory {}: {doing}: {source}", dir.display())]
    Unusable {
        /// The directory.
        dir: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn name(holder: Option<&Holder>) -> String {
    holder.map_or_else(|| "another process".to_owned(), Holder::to_string)
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
    let unusable = |doing| {
        let dir = dir.clone();
        move |source| OpenError::Unusable { dir, doing, source }
    };
    own(&dir)?;
    let lock = lock(&dir, &settings.socket)?;
    let shared = Arc::new(Shared::new(settings, tuning));
    make_dir(shared.root()).map_err(unusable("creating the version's directory"))?;
    shared.enter_names().map_err(unusable("listing it"))?;
    start(&shared, lock).map_err(unusable("starting threads"))
}

/// Makes the directory ours alone.
fn own(dir: &Path) -> Result<(), OpenError> {
    let create = |source| OpenError::Create { dir: dir.to_owned(), source };
    make_dir(dir).map_err(create)?;
    let metadata = fs::metadata(dir).map_err(create)?;
    if !metadata.is_dir() {
        return Err(OpenError::NotADirectory { dir: dir.to_owned() });
    }
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        return Err(OpenError::Foreign { dir: dir.to_owned(), owner, user });
    }
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(create)?;
    }
    Ok(())
}

fn lock(dir: &Path, socket: &Path) -> Result<LockFile, OpenError> {
    let dir = dir.to_owned();
    LockFile::acquire(&dir.join(LOCK), socket).map_err(|error| match error {
        LockError::Held { holder, .. } => OpenError::Held { dir, holder },
        LockError::Io { source, .. } => OpenError::Unusable { dir, doing: "locking it", source },
    })
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
