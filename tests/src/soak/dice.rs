//! Random numbers that a seed repeats.

/// SplitMix64: <https://prng.di.unimi.it/splitmix64.c>.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Those of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Others, for somebody with a number.
    #[must_use]
    pub fn child(&mut self, number: u64) -> Self {
        Self(self.throw() ^ number)
    }

    /// 64 bits.
    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number below this.
    pub fn below(&mut self, end: usize) -> usize {
        (self.throw() % end.max(1) as u64) as usize
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        &among[self.below(among.len())]
    }

    /// Whether something happens that happens in so many of 100 cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A number in `[0, 1)`.
    pub fn fraction(&mut self) -> f64 {
        (self.throw() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
