//! Huge pages: memory that is read whole, over and over, costs a processor more to find than to read
//! when it lies in pages of 4 KiB.
//!
//! Linux gives them to anonymous memory that asks for them, unless its owner has said never; other
//! systems are not asked. Whether they come is up to the system: nothing here is an error.

/// What they are on the processors that we know: they begin at a multiple of it.
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;

#[cfg(target_os = "linux")]
pub use linux::{advise, exchange, may_hold};

/// Whether the system gives huge pages, and has twice `bytes` to spare for them.
#[cfg(not(target_os = "linux"))]
pub fn may_hold(_: usize) -> bool {
    false
}

/// Asks for huge pages for anonymous memory.
#[cfg(not(target_os = "linux"))]
pub fn advise(_: &memmap2::MmapMut) {}

/// Exchanges at most `most` bytes of pages of `map` for huge ones with the same bytes, from byte
/// `from` on. Where to go on; `None` when nothing is left to exchange, or the system does not do it.
#[cfg(not(target_os = "linux"))]
pub fn exchange(_: &memmap2::Mmap, _: usize, _: usize) -> Option<usize> {
    None
}

/// The part of `0..len` that begins and ends where a huge page may, of memory at `address`; the first
/// at or behind `from`, of at most `most` bytes or one huge page.
#[cfg(target_os = "linux")]
fn part(address: usize, len: usize, from: usize, most: usize) -> Option<std::ops::Range<usize>> {
    let start = (address + from).next_multiple_of(HUGE) - address;
    let most = (most / HUGE * HUGE).max(HUGE);
    let end = ((address + len) / HUGE * HUGE).checked_sub(address)?.min(start + most);
    (start < end).then_some(start..end)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::c_void;
    use std::fs;
    use std::mem::forget;
    use std::path::Path;
    use std::ptr::null_mut;

    use memmap2::{Advice, Mmap, MmapMut};
    use rustix::mm;

    use super::{HUGE, part};

    /// Whether the system gives huge pages, and has twice `bytes` to spare for them.
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
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let left = groups.lines().filter_map(left_to_group).min();
        Some((kilobytes * 1024).min(left.unwrap_or(usize::MAX)))
    }

    /// Bytes that a control group of this process may still take, as `/proc/self/cgroup` names it;
    /// `None` when it has no limit. What its files take in memory counts as taken, though it could be
    /// dropped.
    fn left_to_group(line: &str) -> Option<usize> {
        let (folder, group, limit, taken) = match line.strip_prefix("0::/") {
            Some(group) => ("/sys/fs/cgroup", group, "memory.max", "memory.current"),
            None => {
                let (_, group) = line.split_once(":memory:/")?;
                let folder = "/sys/fs/cgroup/memory";
                (folder, group, "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
        };
        let folder = Path::new(folder).join(group);
        let bytes = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<usize>().ok();
        Some(bytes(limit)?.saturating_sub(bytes(taken)?))
    }

    /// Asks for huge pages for anonymous memory.
    pub fn advise(memory: &MmapMut) {
        // Without them it is as good as it was.
        let _ = memory.advise(Advice::HugePage);
    }

    /// Exchanges at most `most` bytes of pages of `map` for huge ones with the same bytes, from byte
    /// `from` on. Where to go on; `None` when nothing is left to exchange, or the system does not do
    /// it.
    pub fn exchange(map: &Mmap, from: usize, most: usize) -> Option<usize> {
        let part = part(map.as_ptr() as usize, map.len(), from, most)?;
        let staged = Staging::copy(&map[part.clone()])?;
        staged.move_to(&map[part.clone()])?;
        Some(part.end)
    }

    /// Anonymous memory that is to take another's place: whole huge pages.
    struct Staging {
        start: *mut c_void,
        len: usize,
    }

    impl Staging {
        /// Huge pages with these bytes.
        fn copy(bytes: &[u8]) -> Option<Self> {
            let staging = Self::map(bytes.len())?;
            let Self { start, len } = staging;
            // SAFETY: these are `len` bytes that nobody else knows of, and `bytes` are others.
            unsafe {
                mm::madvise(start, len, mm::Advice::LinuxHugepage).ok()?;
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.cast::<u8>(), len);
                mm::mprotect(start, len, mm::MprotectFlags::READ).ok()?;
            }
            Some(staging)
        }

        /// `len` bytes that begin where a huge page may.
        fn map(len: usize) -> Option<Self> {
            let (access, flags) =
                (mm::ProtFlags::READ | mm::ProtFlags::WRITE, mm::MapFlags::PRIVATE);
            // SAFETY: new memory, where the system has room for it.
            let wide = unsafe { mm::mmap_anonymous(null_mut(), len + HUGE, access, flags).ok()? };
            let before = (wide as usize).next_multiple_of(HUGE) - wide as usize;
            let start = wide.wrapping_byte_add(before);
            for (edge, bytes) in [(wide, before), (start.wrapping_byte_add(len), HUGE - before)] {
                if bytes > 0 {
                    // SAFETY: the edges of the mapping, which nobody knows of. One that stays is
                    // never touched.
                    let _ = unsafe { mm::munmap(edge, bytes) };
                }
            }
            Some(Self { start, len })
        }

        fn bytes(&self) -> &[u8] {
            // SAFETY: they are mapped for as long as this lives, and not written any more.
            unsafe { std::slice::from_raw_parts(self.start.cast::<u8>(), self.len) }
        }

        /// Moves the pages to where the same bytes are mapped now. `None` when the system refuses.
        fn move_to(self, place: &[u8]) -> Option<()> {
            let target = place.as_ptr().cast_mut().cast::<c_void>();
            let flags = mm::MremapFlags::MAYMOVE;
            // SAFETY: `place` is read-only and keeps its address, its length and its bytes, so it
            // does not matter that there are references to it: what they refer to is never
            // different. Who unmaps it unmaps what has taken its place.
            let moved = unsafe { mm::mremap_fixed(self.start, self.len, self.len, flags, target) };
            let Err(error) = moved else {
                // Nothing is mapped here any more, or what somebody else has mapped since.
                forget(self);
                return Some(());
            };
            // SAFETY: it asks whether something is mapped there, and writes nothing.
            let there = unsafe { mm::msync(target, self.len, mm::MsyncFlags::ASYNC) }.is_ok();
            if !there || place != self.bytes() {
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
            // SAFETY: nothing else refers to this mapping, which was not moved away.
            let _ = unsafe { mm::munmap(self.start, self.len) };
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
    fn parts_begin_and_end_where_huge_pages_do() {
        let all = |address, len| {
            let mut parts = Vec::new();
            let mut from = 0;
            while let Some(next) = part(address, len, from, 4 * HUGE) {
                from = next.end;
                parts.push((next.start, next.end));
            }
            parts
        };
        assert!(all(0, HUGE - 1).is_empty());
        assert_eq!(all(5 * HUGE, 5 * HUGE), [(0, 4 * HUGE), (4 * HUGE, 5 * HUGE)]);
        assert_eq!(all(HUGE - 4096, 3 * HUGE), [(4096, 4096 + 2 * HUGE)]);
        assert!(all(HUGE + 4096, HUGE + 4096).is_empty());
        assert_eq!(all(HUGE + 4096, 2 * HUGE - 4096), [(HUGE - 4096, 2 * HUGE - 4096)]);
    }

    #[test]
    fn a_mapped_file_whose_pages_were_exchanged_has_its_bytes() {
        let len = 10 * HUGE + 12_345;
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 4096) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let map = Map::open(&file, len).unwrap();
        let (mut from, mut times) = (0, 0);
        while let Some(next) = map.exchange(from, 8 * HUGE) {
            times += 1;
            from = next;
        }
        assert!(*map == *bytes);
        assert!(times >= 2, "{times}");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split_once(' ').unwrap().0;
            let bound = |hex| usize::from_str_radix(hex, 16).unwrap();
            (bound(start)..bound(end)).contains(&(map.as_ptr() as usize + from - 1))
        });
        let line = line.unwrap();
        assert!(line.contains(" r--p ") && !line.contains('/'), "no file backs it: {line}");
    }
}
