//! Which instruction sets a kernel is instantiated for, and the one seam that picks at run time.
//!
//! A kernel is a small `#[inline(always)]` function in plain Rust, and `dispatched!` stamps out
//! a function of the same arguments that runs either its plain instantiation or one compiled with
//! more instruction sets. Loops over tiles, strips and blocks around the kernels are compiled once
//! and hand the [`Isa`] down. A hand-written kernel joins by adding a variant here and an arm to
//! the macro; it must match the plain one bit for bit.
//!
//! Two things keep the instantiations fast. A kernel is a function of its own, because only there
//! does the compiler keep sixteen lanes in whole registers reliably. And inside a kernel everything
//! that multiplies is an `#[inline(always)]` function and not a closure: a closure may be compiled
//! apart, without the instruction sets of its caller, and then calls the library for each
//! multiply-add.

/// An instantiation of the kernels that this machine can run: holding one is the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(pub(crate) Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The target's baseline; on aarch64 that already has NEON with fused multiply-add.
    Plain,
    /// x86-64 with AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// The target's baseline.
    pub const PLAIN: Isa = Isa(Kind::Plain);

    /// The fastest instantiation that this machine can run.
    #[inline]
    pub fn best() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Isa(Kind::Avx2);
        }
        Isa::PLAIN
    }

    /// The name shown in logs and in the status report.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Plain => "plain",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
        }
    }
}

/// `fn name(args..) -> R = body;` makes `name(isa, args..)`, which runs the inlinable
/// `body(isa, args..)` as instantiated for `isa`; inside, the isa is a constant.
///
/// A generic kernel lists its parameters twice: `fn name[E: Narrow, const R: usize][E, R](..)`.
macro_rules! dispatched {
    (
        $vis:vis fn $name:ident $([$($generics:tt)*][$($generic:ident),*])?
        ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident;
    ) => {
        $vis fn $name $(<$($generics)*>)? (isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            match isa.0 {
                $crate::isa::Kind::Plain => $body $(::<$($generic),*>)? (isa, $($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Kind::Avx2 => {
                    #[target_feature(enable = "avx2,fma,f16c")]
                    #[inline(never)]
                    fn avx2 $(<$($generics)*>)? ($($arg: $ty),*) $(-> $ret)? {
                        let isa = $crate::isa::Isa($crate::isa::Kind::Avx2);
                        $body $(::<$($generic),*>)? (isa, $($arg),*)
                    }
                    // SAFETY: an `Isa` of this kind only comes from `best`, which has looked.
                    #[expect(unsafe_code, reason = "calls an instantiation for detected features")]
                    unsafe { avx2 $(::<$($generic),*>)? ($($arg),*) }
                }
            }
        }
    };
}
pub(crate) use dispatched;
