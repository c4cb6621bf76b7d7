//! A store in a temporary directory, and prompts whose right bytes anyone can tell from their keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::kv::block::Block;
use crate::kv::codec::Codec;
use crate::kv::key::{BlockKey, Digest, End, Fields, chain};
use crate::kv::layout::{BLOCK, LayerShape, Layout, Window};
use crate::kv::record::Record;
use crate::kv::samples;
use crate::store::open::open_tuned;
use crate::store::shared::Tuning;
use crate::store::{
    Durability, Family, OpenError, Restore, Restored, Save, Settings, StoreHandle, StoreThreads,
};
use crate::sys::lock::LockError;

/// Bytes of a part in these tests.
pub(super) const PART: usize = 128;

/// An open store and its directory.
pub(super) struct Kit {
    pub(super) handle: StoreHandle,
    pub(super) family: Arc<Family>,
    pub(super) settings: Settings,
    pub(super) tuning: Tuning,
    threads: Option<StoreThreads>,
    _dir: TempDir,
}

impl Kit {
    pub(super) fn new() -> Self {
        Self::with(|_, _| {})
    }

    /// In memory where the system has a place for that: for tests with very many files.
    pub(super) fn in_memory() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self::in_dir(dir.unwrap(), |_, _| {})
    }

    pub(super) fn with(change: impl Fn(&mut Settings, &mut Tuning)) -> Self {
        Self::in_dir(tempfile::tempdir().unwrap(), change)
    }

    fn in_dir(dir: TempDir, change: impl Fn(&mut Settings, &mut Tuning)) -> Self {
        let mut settings = settings(&dir.path().join("cache"));
        let mut tuning = Tuning::default();
        change(&mut settings, &mut tuning);
        let (handle, threads) = open_tuned(settings.clone(), tuning.clone()).unwrap();
        let (family, threads) = (family("a"), Some(threads));
        Self { handle, family, settings, tuning, threads, _dir: dir }
    }

    /// Ends the process, as far as the store can tell.
    pub(super) fn close(&mut self) {
        self.threads = None;
    }

    pub(super) fn reopen(&mut self) {
        self.close();
        let (handle, threads) = take_over(&self.settings, &self.tuning);
        (self.handle, self.threads) = (handle, Some(threads));
    }

    /// Saves a prompt with a record, and waits until it is written.
    pub(super) fn save(&self, tokens: &[u32]) {
        self.save_with(tokens, |_| {});
    }

    pub(super) fn save_with(&self, tokens: &[u32], change: impl Fn(&mut Save)) {
        let mut save = save(&self.family, tokens);
        change(&mut save);
        self.handle.save(save);
        self.handle.flush();
    }

    /// Saves durably and says whether that succeeded.
    pub(super) fn save_durably(&self, tokens: &[u32]) -> bool {
        let (reply, answer) = mpsc::channel();
        let mut save = save(&self.family, tokens);
        save.durability = Durability::Durable(Box::new(move |synced| reply.send(synced).unwrap()));
        self.handle.save(save);
        answer.recv().unwrap()
    }

    pub(super) fn restore(&self, tokens: &[u32]) -> Restored {
        self.restore_from(tokens, 0)
    }

    /// Restores, and checks that whatever is found is right.
    pub(super) fn restore_from(&self, tokens: &[u32], from: usize) -> Restored {
        restore(&self.handle, &self.family, tokens, from)
    }

    /// How many blocks of a prompt are found, and whether its record is.
    pub(super) fn found(&self, tokens: &[u32]) -> (usize, bool) {
        let restored = self.restore(tokens);
        let key = end(&self.family, tokens).key(&self.family.fingerprint);
        let whole = restored.record.filter(|record| record.key == key);
        (restored.blocks.len(), whole.is_some())
    }

    pub(super) fn may_have(&self, tokens: &[u32], from: usize) -> bool {
        let asked = asked(&self.family, tokens, from);
        let key = record(&self.family, tokens, false).key;
        self.handle.may_have(&asked, key)
    }

    /// Waits for what another thread is about to do.
    pub(super) fn wait_until(&self, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done(self) {
            assert!(Instant::now() < deadline, "it never came about");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Paths of all files below the version's directory.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        files(&self.settings.dir.join("v1"))
    }

    pub(super) fn bytes_on_disk(&self) -> u64 {
        self.files().iter().map(|path| path.metadata().unwrap().len()).sum()
    }

    pub(super) fn files_with(&self, extension: &str) -> Vec<PathBuf> {
        let mut files = self.files();
        files.retain(|path| path.extension().is_some_and(|found| found == extension));
        files
    }
}

/// Opens a store that was just closed. The lock may live on for a moment in a child that another
/// test is about to turn into its own process.
pub(super) fn take_over(settings: &Settings, tuning: &Tuning) -> (StoreHandle, StoreThreads) {
    let mut attempts = 0;
    loop {
        match open_tuned(settings.clone(), tuning.clone()) {
            Err(OpenError::Lock(LockError::Held { .. })) if attempts < 1000 => attempts += 1,
            opened => return opened.unwrap(),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn settings(dir: &Path) -> Settings {
    Settings {
        dir: dir.to_owned(),
        disk_budget: 1 << 30,
        free_floor: 0,
        daily_writes: None,
        mappings: 4096,
        minimum_tokens: 64,
        socket: "/run/test.sock".into(),
    }
}

/// A family whose identity is always the same.
pub(super) fn family(weights: &str) -> Arc<Family> {
    let fields = Fields {
        weights: Digest::of("weights", weights.as_bytes()),
        identity: Digest::of("identity", b"me"),
        ..Fields::default()
    };
    family_of(fields)
}

pub(super) fn family_of(fields: Fields) -> Arc<Family> {
    let shape = LayerShape { kv_heads: 1, k_dim: 1, v_dim: 1 };
    let layout = Arc::new(Layout::new(Codec::F16, &[(shape, Window::Full)]));
    assert_eq!(layout.parts(), [PART]);
    Arc::new(Family { fingerprint: fields.fingerprint(), fields, layout, width: 3 })
}

/// Token ids that no other seed has.
pub(super) fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| seed * 100_000 + i).collect()
}

/// The one right content of a block.
pub(super) fn right_bytes(key: &BlockKey, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&key.0).finalize_xof().fill(&mut bytes);
    bytes
}

pub(super) fn blocks(family: &Family, tokens: &[u32]) -> Vec<Arc<Block>> {
    samples::blocks(&family.fingerprint, tokens, |key| vec![right_bytes(key, PART)])
}

pub(super) fn end(family: &Family, tokens: &[u32]) -> End {
    End::of(&family.fingerprint, tokens)
}

pub(super) fn record(family: &Family, tokens: &[u32], complete: bool) -> Record {
    let end = end(family, tokens);
    let key = BlockKey(end.key(&family.fingerprint).0);
    let rows = right_bytes(&key, end.tail.len() * PART / BLOCK);
    let hidden = complete.then(|| vec![1.5, -0.25, f32::MIN_POSITIVE]);
    samples::record(&family.fingerprint, tokens, rows, hidden)
}

pub(super) fn save(family: &Arc<Family>, tokens: &[u32]) -> Save {
    Save {
        family: Arc::clone(family),
        blocks: blocks(family, tokens),
        record: Some(Arc::new(record(family, tokens, true))),
        replace: false,
        durability: Durability::Behind,
        published: Box::new(|_| {}),
    }
}

pub(super) fn asked(family: &Arc<Family>, tokens: &[u32], from: usize) -> Restore {
    let keys = chain(&family.fingerprint, tokens).into();
    Restore { family: Arc::clone(family), tokens: tokens.into(), keys, from }
}

pub(super) fn restore(
    handle: &StoreHandle,
    family: &Arc<Family>,
    tokens: &[u32],
    from: usize,
) -> Restored {
    let (reply, answer) = mpsc::channel();
    let reply = Box::new(move |restored| reply.send(restored).unwrap());
    handle.restore(asked(family, tokens, from), reply);
    let restored = answer.recv_timeout(Duration::from_secs(60)).unwrap();
    check(family, tokens, from, &restored);
    restored
}

/// Whatever a loader hands out must be exactly what was asked for.
pub(super) fn check(family: &Family, tokens: &[u32], from: usize, restored: &Restored) {
    let keys = chain(&family.fingerprint, tokens);
    for (block, at) in restored.blocks.iter().zip(from..) {
        assert_eq!(block.key, keys[at]);
        assert_eq!(block.tokens, tokens[at * BLOCK..(at + 1) * BLOCK]);
        check_bytes(block);
    }
    let at = from + restored.blocks.len();
    let parent = if at == 0 { BlockKey::root(&family.fingerprint) } else { keys[at - 1] };
    if let Some(partial) = &restored.partial {
        assert_eq!((partial.parent, partial.tokens[0]), (parent, tokens[at * BLOCK]));
        check_bytes(partial);
    }
    if let Some(found) = &restored.record {
        let whole = [&tokens[..at * BLOCK], &found.tail].concat();
        let mut right = record(family, &whole, found.hidden.is_some());
        right.text = found.text;
        assert_eq!(**found, right);
    }
}

pub(super) fn check_bytes(block: &Block) {
    for part in &block.parts {
        let bytes = part.bytes();
        assert_eq!(bytes.as_ptr().addr() % 64, 0);
        assert!(bytes == right_bytes(&block.key, bytes.len()), "wrong bytes in {:?}", block.key);
    }
}

pub(super) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}
