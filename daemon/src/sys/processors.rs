//! How many threads are worth computing with.

use std::io;
use std::num::NonZeroUsize;

/// One for each processor that this process may use; on a Mac for each performance core, since the
/// slowest thread of a region of work holds up all others.
///
/// # Errors
/// When the system does not tell.
pub fn compute_threads() -> io::Result<NonZeroUsize> {
    let usable = std::thread::available_parallelism()?;
    Ok(performance_cores().map_or(usable, |cores| cores.min(usable)))
}

#[cfg(not(target_os = "macos"))]
fn performance_cores() -> Option<NonZeroUsize> {
    None
}

/// `hw.perflevel0.physicalcpu`, which machines with one kind of core may lack.
#[cfg(target_os = "macos")]
fn performance_cores() -> Option<NonZeroUsize> {
    use std::ffi::{c_char, c_int, c_void};
    unsafe extern "C" {
        fn sysctlbyname(
            name: *const c_char,
            old: *mut c_void,
            old_len: *mut usize,
            new: *mut c_void,
            new_len: usize,
        ) -> c_int;
    }
    let (mut cores, mut len): (c_int, usize) = (0, size_of::<c_int>());
    let old = (&raw mut cores).cast();
    // SAFETY: the name ends with a zero, `old` has room for `len` bytes, and nothing is set.
    let failed = unsafe {
        sysctlbyname(c"hw.perflevel0.physicalcpu".as_ptr(), old, &mut len, std::ptr::null_mut(), 0)
    };
    NonZeroUsize::new(usize::try_from(cores).ok()?).filter(|_| failed == 0)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn there_is_never_more_than_a_thread_for_each_usable_processor() {
        assert!(compute_threads().unwrap() <= std::thread::available_parallelism().unwrap());
    }
}
