//! Which instruction sets a kernel is instantiated for, and the one seam that picks at run time.
//!
//! A kernel is a small `#[inline(always)]` function in plain Rust, and `dispatched!` stamps out
//! a function of the same arguments that runs either its plain instantiation or one compiled with
//! more instruction sets. Loops over tiles, strips and blocks around the kernels are compiled once
//! and hand the [`Isa`] down. A hand-written kernel matches on its kind instead; it must equal the
//! plain one bit for bit.
//!
//! Two things keep the instantiations fast. A kernel is a function of its own, because only there
//! does the compiler keep sixteen lanes in whole registers reliably. And inside a kernel everything
//! that multiplies is an `#[inline(always)]` function and not a closure: a closure may be compiled
//! apart, without the instruction sets of its caller, and then calls the library for each
//! multiply-add.

use std::sync::OnceLock;

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
    /// The same with AVX-512 and its 8-bit dot products.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// aarch64 with 8-bit dot products, for which alone it differs from the plain one.
    #[cfg(target_arch = "aarch64")]
    Dot,
    /// The same with those of unsigned codes and signed activations, from the extension for 8-bit
    /// matrix products.
    #[cfg(target_arch = "aarch64")]
    I8mm,
}

impl Isa {
    /// The target's baseline.
    pub const PLAIN: Isa = Isa(Kind::Plain);

    /// The fastest instantiation that this machine can run and that has the plain one's bits here;
    /// of those with the name in `TINYGPT_ISA`, where that is set.
    #[inline]
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let named = std::env::var("TINYGPT_ISA").ok();
            let fits = |isa: &Isa| named.as_ref().is_none_or(|name| name == isa.name());
            let mut fitting = Isa::all().into_iter().rev().filter(fits);
            fitting.find(|&isa| crate::fast::agrees(isa)).unwrap_or(Isa::PLAIN)
        })
    }

    /// Every instantiation that this machine can run, the fastest last.
    pub fn all() -> Vec<Isa> {
        let mut all = vec![Isa::PLAIN];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            all.push(Isa(Kind::Avx2));
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
            {
                all.push(Isa(Kind::Vnni));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            all.push(Isa(Kind::Dot));
            if std::arch::is_aarch64_feature_detected!("i8mm") {
                all.push(Isa(Kind::I8mm));
            }
        }
        all
    }

    /// Up to how many rows products take codes of 4 bits as they are kept: for more it pays to take
    /// them apart once.
    pub(crate) fn nibble_rows(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => 8,
            #[cfg(target_arch = "x86_64")]
            Kind::Vnni => 4,
            _ => 0,
        }
    }

    /// How many tiles of weights rows pass over at once, as many as registers allow.
    pub(crate) fn tiles_at_once(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Vnni => 2,
            _ => 1,
        }
    }

    /// Whether registers hold twelve times sixteen sums and what is added to them.
    #[inline(always)]
    pub(crate) fn is_roomy(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Vnni => true,
            _ => false,
        }
    }

    /// The name shown in logs and in the status report.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Plain => "plain",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Vnni => "avx512vnni",
            #[cfg(target_arch = "aarch64")]
            Kind::Dot => "neon-dotprod",
            #[cfg(target_arch = "aarch64")]
            Kind::I8mm => "neon-i8mm",
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
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Kind::Vnni => {
                    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                    #[inline(never)]
                    fn avx512 $(<$($generics)*>)? ($($arg: $ty),*) $(-> $ret)? {
                        let isa = $crate::isa::Isa($crate::isa::Kind::Vnni);
                        $body $(::<$($generic),*>)? (isa, $($arg),*)
                    }
                    // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
                    #[expect(unsafe_code, reason = "calls an instantiation for detected features")]
                    unsafe { avx512 $(::<$($generic),*>)? ($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Kind::Avx2 => {
                    #[target_feature(enable = "avx2,fma,f16c")]
                    #[inline(never)]
                    fn avx2 $(<$($generics)*>)? ($($arg: $ty),*) $(-> $ret)? {
                        let isa = $crate::isa::Isa($crate::isa::Kind::Avx2);
                        $body $(::<$($generic),*>)? (isa, $($arg),*)
                    }
                    // SAFETY: an `Isa` of this kind only comes from `all`, which has looked.
                    #[expect(unsafe_code, reason = "calls an instantiation for detected features")]
                    unsafe { avx2 $(::<$($generic),*>)? ($($arg),*) }
                }
                _ => $body $(::<$($generic),*>)? ($crate::isa::Isa::PLAIN, $($arg),*),
            }
        }
    };
}
pub(crate) use dispatched;
