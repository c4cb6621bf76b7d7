//! What files hashed to, kept between launches in one small file.
//!
//! ```text
//!      0   8  magic "tgkv-ids"
//!      8   4  format version, 1
//!     12   4  n: number of files, at most 512, the latest first
//!     16      n times:
//!              8  device
//!              8  inode
//!              8  size
//!             16  time of modification: seconds, nanoseconds
//!             16  time of change: seconds, nanoseconds
//!             32  blake3 of the contents
//!         32  blake3 of everything before
//! ```
//!
//! A memory that cannot be read is no memory: files are hashed again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::stamp::Stamp;
use crate::kv::key::Digest;

const MAGIC: [u8; 8] = *b"tgkv-ids";
const VERSION: u32 = 1;
const HEAD: usize = 16;
const ENTRY: usize = 88;
const SUM: usize = 32;

/// Most files that are remembered; a large model has dozens.
const MOST: usize = 512;

/// The identities of model files, remembered in a directory.
#[derive(Debug, Clone)]
pub struct Identities {
    dir: PathBuf,
}

impl Identities {
    /// What is remembered in `dir`, a directory that is ours alone.
    pub fn in_dir(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// What the file with this stamp hashed to, if that is known.
    pub fn recall(&self, stamp: &Stamp) -> Option<Digest> {
        self.read().into_iter().find_map(|(known, digest)| (known == *stamp).then_some(digest))
    }

    /// Remembers what a file hashed to, in the place of what it hashed to before.
    ///
    /// The caller has taken the stamp before the file was read and again afterwards, and found it
    /// the same and [telling](Stamp::is_telling) from the beginning.
    ///
    /// # Errors
    /// When the directory cannot be written; what was remembered still is.
    pub fn remember(&self, stamp: Stamp, digest: Digest) -> io::Result<()> {
        // Engines that load at the same time take turns.
        let turn = File::open(&self.dir)?;
        turn.lock()?;
        let mut entries = self.read();
        entries.retain(|(known, _)| (known.device, known.inode) != (stamp.device, stamp.inode));
        entries.insert(0, (stamp, digest));
        entries.truncate(MOST);
        let temporary = self.dir.join("models.tgid.tmp");
        let written = write(&temporary, &encode(&entries));
        written.and_then(|()| fs::rename(&temporary, self.path())).inspect_err(|_| {
            // It is in nobody's way, and the next start removes it.
            let _ = fs::remove_file(&temporary);
        })
    }

    fn path(&self) -> PathBuf {
        self.dir.join("models.tgid")
    }

    fn read(&self) -> Vec<(Stamp, Digest)> {
        fs::read(self.path()).ok().and_then(|bytes| decode(&bytes)).unwrap_or_default()
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

fn encode(entries: &[(Stamp, Digest)]) -> Vec<u8> {
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &count.to_le_bytes()].concat();
    for (stamp, digest) in entries {
        let sizes = [stamp.device, stamp.inode, stamp.size];
        let times = [stamp.modified, stamp.changed];
        bytes.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        bytes.extend(times.as_flattened().iter().flat_map(|time| time.to_le_bytes()));
        bytes.extend(digest.0);
    }
    let sum = blake3::hash(&bytes);
    bytes.extend(sum.as_bytes());
    bytes
}

/// The inverse of [`encode`]; `None` for anything that it did not write.
fn decode(bytes: &[u8]) -> Option<Vec<(Stamp, Digest)>> {
    let (covered, sum) = bytes.split_last_chunk::<SUM>()?;
    let (head, entries) = covered.split_first_chunk::<HEAD>()?;
    let count = entries.len() / ENTRY;
    let expected = [&MAGIC[..], &VERSION.to_le_bytes(), &u32::try_from(count).ok()?.to_le_bytes()];
    let (entries, rest) = entries.as_chunks::<ENTRY>();
    let whole = *head == *expected.concat() && rest.is_empty() && count <= MOST;
    (whole && blake3::hash(covered) == *sum).then(|| entries.iter().map(entry).collect())
}

fn entry(bytes: &[u8; ENTRY]) -> (Stamp, Digest) {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[8 * at..][..8]);
        word
    };
    let size = |at| u64::from_le_bytes(word(at));
    let time = |at| [at, at + 1].map(|at| i64::from_le_bytes(word(at)));
    let mut digest = [0; 32];
    digest.copy_from_slice(&bytes[56..]);
    let (device, inode) = (size(0), size(1));
    (Stamp { device, inode, size: size(2), modified: time(3), changed: time(5) }, Digest(digest))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn stamp(inode: u64) -> Stamp {
        Stamp { device: 1, inode, size: 3, modified: [-4, 5], changed: [6, 7] }
    }

    fn digest(seed: u64) -> Digest {
        Digest::of("test", &seed.to_le_bytes())
    }

    /// A directory whose memory holds the files `1..=n`.
    fn remembering(n: u64) -> (tempfile::TempDir, Identities) {
        let dir = tempfile::tempdir().unwrap();
        let memory = Identities::in_dir(dir.path());
        for inode in 1..=n {
            memory.remember(stamp(inode), digest(inode)).unwrap();
        }
        (dir, memory)
    }

    #[test]
    fn what_was_remembered_is_recalled_by_another_process() {
        let (dir, _) = remembering(3);
        let later = Identities::in_dir(dir.path());
        assert_eq!([1, 2, 3, 4].map(|inode| later.recall(&stamp(inode))), {
            [Some(digest(1)), Some(digest(2)), Some(digest(3)), None]
        });
    }

    #[test]
    fn any_difference_in_the_stamp_is_another_file() {
        let (_dir, memory) = remembering(1);
        let changes: [fn(&mut Stamp); 7] = [
            |stamp| stamp.device += 1,
            |stamp| stamp.inode += 1,
            |stamp| stamp.size += 1,
            |stamp| stamp.modified[0] += 1,
            |stamp| stamp.modified[1] += 1,
            |stamp| stamp.changed[0] += 1,
            |stamp| stamp.changed[1] += 1,
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut other = stamp(1);
            change(&mut other);
            assert_eq!(memory.recall(&other), None, "change {at}");
        }
    }

    #[test]
    fn a_changed_file_takes_its_old_place_and_the_oldest_are_forgotten() {
        let (dir, memory) = remembering(MOST as u64);
        let changed = Stamp { size: 4, ..stamp(1) };
        memory.remember(changed, digest(99)).unwrap();
        assert_eq!((memory.recall(&changed), memory.recall(&stamp(1))), (Some(digest(99)), None));
        assert_eq!(memory.recall(&stamp(2)), Some(digest(2)));
        memory.remember(stamp(1000), digest(0)).unwrap();
        assert_eq!(memory.recall(&stamp(2)), None);
        let names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(names, ["models.tgid"]);
    }

    #[test]
    fn a_damaged_memory_is_none_and_is_replaced() {
        let (_dir, memory) = remembering(2);
        let whole = fs::read(memory.path()).unwrap();
        let bits = (0..whole.len() * 8).map(|bit| {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        });
        let cuts = (0..whole.len()).map(|length| whole[..length].to_vec());
        let longer = [whole.clone(), vec![0]].concat();
        for bytes in bits.chain(cuts).chain([longer]) {
            assert_eq!(decode(&bytes), None);
        }
        fs::write(memory.path(), b"not a memory").unwrap();
        assert_eq!(memory.recall(&stamp(1)), None);
        memory.remember(stamp(5), digest(5)).unwrap();
        assert_eq!(memory.recall(&stamp(5)), Some(digest(5)));
    }

    #[test]
    fn engines_that_load_at_the_same_time_all_remember() {
        let (_dir, memory) = remembering(0);
        std::thread::scope(|scope| {
            for inode in 1..=8 {
                let memory = &memory;
                scope.spawn(move || memory.remember(stamp(inode), digest(inode)).unwrap());
            }
        });
        assert!((1..=8).all(|inode| memory.recall(&stamp(inode)) == Some(digest(inode))));
    }

    #[test]
    fn a_directory_that_is_gone_is_an_error_and_nothing_more() {
        let (dir, memory) = remembering(1);
        drop(dir);
        assert!(memory.remember(stamp(1), digest(1)).is_err());
        assert_eq!(memory.recall(&stamp(1)), None);
    }
}
