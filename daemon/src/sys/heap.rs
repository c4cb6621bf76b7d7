//! The allocator's memory.

/// Gives memory that was freed back to the system. Whoever took much of it for a moment, as reading
/// a vocabulary does, would otherwise leave it with the process for good.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: it may be called at any time from any thread, and touches free memory only.
        unsafe {
            malloc_trim(0);
        }
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Resident bytes that no file backs.
    fn anonymous() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<usize>().unwrap() * 1024
    }

    #[test]
    fn memory_that_was_freed_between_pieces_in_use_goes_back() {
        let mut pieces: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 6000]).collect();
        let (full, mut at) = (anonymous(), 0);
        // Every hundredth stays.
        pieces.retain(|_| {
            at += 1;
            at % 100 == 0
        });
        give_back();
        let left = anonymous();
        assert!(left + 80_000_000 < full, "{left} of {full} with {} pieces", pieces.len());
    }
}
