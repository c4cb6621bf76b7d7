//! Which instruction sets a kernel is instantiated for, and the one seam that picks at run time.
//!
//! A kernel is an `#[inline(always)]` function in plain Rust. [`dispatched!`] stamps out a function
//! of the same arguments that runs either the plain instantiation or one compiled with more
//! instruction sets. A hand-written kernel joins by adding a variant here and an arm there; it must
//! match the plain one bit for bit.

/// An instantiation of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// The target's baseline; on aarch64 that already has NEON with fused multiply-add.
    Plain,
    /// x86-64 with AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// The fastest instantiation that this machine can run.
    #[inline]
    pub fn best() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Isa::Avx2;
        }
        Isa::Plain
    }

    /// The name shown in logs and in the status report.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Plain => "plain",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
        }
    }
}

/// `fn name(isa, args..) -> R = body;` runs the inlinable `body` as instantiated for `isa`.
///
/// Passing an `Isa` other than `Plain` that did not come from [`Isa::best`] on this machine is
/// caught by an assertion, so the functions stamped out are safe.
macro_rules! dispatched {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path;) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            match isa {
                $crate::isa::Isa::Plain => $body($($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => {
                    #[target_feature(enable = "avx2,fma,f16c")]
                    fn avx2($($arg: $ty),*) $(-> $ret)? {
                        $body($($arg),*)
                    }
                    assert!(isa == $crate::isa::Isa::best(), "this machine lacks AVX2");
                    // SAFETY: `best` has just said that the machine has the instruction sets.
                    #[expect(unsafe_code, reason = "calls an instantiation for detected features")]
                    unsafe { avx2($($arg),*) }
                }
            }
        }
    };
}
pub(crate) use dispatched;
