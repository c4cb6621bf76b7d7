//! Huge pages: memory that is read whole, over and over, costs a processor more to find than to read
//! when it lies in pages of 4 KiB.
//!
//! Linux gives them to anonymous memory that asks for them, unless its owner has said never; other
//! systems are not asked. Whether they come is up to the system: nothing here is an error.

use std::ops::Range;

/// What they are on the processors that we know: they begin at a multiple of it.
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;

#[cfg(target_os = "linux")]
pub use linux::{advise, exchange, may_hold};

/// Whether the system gives huge pages, and has memory for `bytes` of them beside what it holds.
#[cfg(not(target_os = "linux"))]
pub fn may_hold(_: usize) -> bool {
    false
}

/// Asks for huge pages for anonymous memory.
#[cfg(not(target_os = "linux"))]
pub fn advise(_: &memmap2::MmapMut) {}

/// Exchanges pages of `mapped` for huge ones with the same bytes, from byte `from` on. Where to go
/// on; `None` when nothing is left to exchange, or the system does not do it.
#[cfg(not(target_os = "linux"))]
pub fn exchange(_: &[u8], _: usize) -> Option<usize> {
    None
}

/// The parts of `0..len` that begin and end where a huge page may, of memory at `address`; the first
/// at or behind `from`, of `most` bytes.
#[cfg(target_os = "linux")]
fn piece(address: usize, len: usize, from: usize, most: usize) -> Option<Range<usize>> {
    let start = (address + from).next_multiple_of(HUGE) - address;
    let end = ((address + len) / HUGE * HUGE).checked_sub(address)?.min(start + most);
    (start < end).then_some(start..end)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::c_void;
    use std::fs;
    use std::path::Path;
    use std::ptr::null_mut;

    use memmap2::{Advice, MmapMut};
    use rustix::mm;

    use super::{HUGE, piece};

    /// How much is exchanged at a time: a few milliseconds.
    const PIECE: usize = 8 * HUGE;

    /// Whether the system gives huge pages, and has memory for `bytes` of them beside what it holds.
    pub fn may_hold(bytes: usize) -> bool {
        let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        enabled.is_ok_and(|words| !words.contains("[never]"))
            && available().is_some_and(|available| available / 2 >= bytes)
    }

    /// Bytes that the system could give without taking them from anybody, and may.
    fn available() -> Option<usize> {
        let known = fs::read_to_string("/proc/meminfo").ok()?;
        let line = known.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kilobytes: usize = line.split_whitespace().next()?.parse().ok()?;
        Some((kilobytes * 1024).min(left_to_group().unwrap_or(usize::MAX)))
    }

    /// Bytes that this process's control group may still take; `None` when it has no limit. What its
    /// files take in memory counts as taken, though it could be dropped.
    fn left_to_group() -> Option<usize> {
        let known = fs::read_to_string("/proc/self/cgroup").ok()?;
        let group = known.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let folder = Path::new("/sys/fs/cgroup").join(group);
        let bytes = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<usize>().ok();
        Some(bytes("memory.max")?.saturating_sub(bytes("memory.current")?))
    }

    /// Asks for huge pages for anonymous memory.
    pub fn advise(memory: &MmapMut) {
        // Without them it is as good as it was.
        let _ = memory.advise(Advice::HugePage);
    }

    /// Exchanges pages of `mapped` for huge ones with the same bytes, from byte `from` on. Where to
    /// go on; `None` when nothing is left to exchange, or the system does not do it.
    ///
    /// `mapped` is a private or read-only mapping, whole. Nobody should read it meanwhile: the system
    /// lets readers wait, but not if it fails half way.
    pub fn exchange(mapped: &[u8], from: usize) -> Option<usize> {
        let address = mapped.as_ptr() as usize;
        let piece = piece(address, mapped.len(), from, PIECE)?;
        let staged = Staging::copy(&mapped[piece.clone()])?;
        staged.move_to(&mapped[piece.clone()])?;
        Some(piece.end)
    }

    /// Anonymous memory that is to take another's place.
    struct Staging {
        mapping: *mut c_void,
        mapped: usize,
        len: usize,
    }

    impl Staging {
        /// Huge pages with these bytes.
        fn copy(bytes: &[u8]) -> Option<Self> {
            let (len, mapped) = (bytes.len(), bytes.len() + HUGE);
            let (access, flags) =
                (mm::ProtFlags::READ | mm::ProtFlags::WRITE, mm::MapFlags::PRIVATE);
            // SAFETY: new memory, where the system has room for it.
            let mapping = unsafe { mm::mmap_anonymous(null_mut(), mapped, access, flags).ok()? };
            let staging = Self { mapping, mapped, len };
            let start = staging.start();
            // SAFETY: `start` begins `len` bytes of this mapping that nobody else knows of, and
            // `bytes` are others.
            unsafe {
                mm::madvise(start, len, mm::Advice::LinuxHugepage).ok()?;
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.cast::<u8>(), len);
                mm::mprotect(start, len, mm::MprotectFlags::READ).ok()?;
            }
            Some(staging)
        }

        /// The first place of the mapping where a huge page may begin.
        fn start(&self) -> *mut c_void {
            let address = self.mapping as usize;
            self.mapping.wrapping_byte_add(address.next_multiple_of(HUGE) - address)
        }

        /// Moves the pages to where the same bytes are mapped now. `None` when the system refuses.
        fn move_to(self, place: &[u8]) -> Option<()> {
            let target = place.as_ptr().cast_mut().cast::<c_void>();
            let flags = mm::MremapFlags::MAYMOVE;
            // SAFETY: `place` is read-only and keeps its bytes, address and length; who unmaps it
            // unmaps what has taken its place.
            let moved =
                unsafe { mm::mremap_fixed(self.start(), self.len, self.len, flags, target) };
            let Err(error) = moved else { return Some(()) };
            // SAFETY: it asks whether something is mapped there, and writes nothing.
            let there = unsafe { mm::msync(target, HUGE, mm::MsyncFlags::ASYNC) }.is_ok();
            if !there {
                // The system has no memory for the few bytes that it keeps of a mapping, and the
                // weights are gone with theirs.
                tracing::error!(%error, "the system lost packed weights");
                std::process::abort();
            }
            None
        }
    }

    impl Drop for Staging {
        fn drop(&mut self) {
            // SAFETY: nothing refers to this mapping, and what was moved away lies elsewhere: of a
            // range with a hole the system unmaps the rest.
            let _ = unsafe { mm::munmap(self.mapping, self.mapped) };
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::sys::mmap::Map;

    #[test]
    fn pieces_begin_and_end_where_huge_pages_do() {
        let all = |address, len| {
            let mut pieces = Vec::new();
            let mut from = 0;
            while let Some(next) = piece(address, len, from, 4 * HUGE) {
                from = next.end;
                pieces.push((next.start, next.end));
            }
            pieces
        };
        assert!(all(0, HUGE - 1).is_empty());
        assert_eq!(all(5 * HUGE, 5 * HUGE), [(0, 4 * HUGE), (4 * HUGE, 5 * HUGE)]);
        assert_eq!(all(HUGE - 4096, 3 * HUGE), [(4096, 4096 + 2 * HUGE)]);
        assert!(all(HUGE + 4096, HUGE + 4096).is_empty());
        assert_eq!(all(HUGE + 4096, 2 * HUGE - 4096), [(HUGE - 4096, 2 * HUGE - 4096)]);
    }

    /// Kilobytes in huge pages of the mapping that holds `address`.
    fn huge(address: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let Some((start, end)) = words[0].split_once('-') {
                let bound = |hex| usize::from_str_radix(hex, 16).unwrap_or(0);
                inside = (bound(start)..bound(end)).contains(&address);
            }
            if inside && words[0] == "AnonHugePages:" {
                return words[1].parse().unwrap();
            }
        }
        0
    }

    #[test]
    fn a_mapped_file_whose_pages_were_exchanged_has_its_bytes_and_goes_with_its_map() {
        let len = 9 * HUGE + 12_345;
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 4096) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let map = Map::open(&file, len).unwrap();
        let (mut from, mut moved) = (0, 0);
        while let Some(next) = exchange(&map, from) {
            moved += 1;
            from = next;
        }
        assert!(*map == *bytes);
        assert!(moved >= 2, "{moved}");
        let address = map.as_ptr() as usize + from - 1;
        if may_hold(len) {
            assert!(huge(address) > 0, "the system gives huge pages, and not for these");
        }
        drop(map);
        assert_eq!(huge(address), 0);
        assert!(!std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split_once(' ').unwrap().0;
            let bound = |hex| usize::from_str_radix(hex, 16).unwrap();
            (bound(start)..bound(end)).contains(&address)
        }));
    }
}
