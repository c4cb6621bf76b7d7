//! Rotary positions: pairs of a head's channels turned by an angle that grows with the position.
//!
//! Angles are taken in f64 and their cosines and sines rounded once to f32, so that position
//! 100,000 is as exact as position 1. Tables depend on absolute positions only, never on the total
//! length: a cached key must mean the same whatever follows it.
//! They are made as positions are first used, since a model may claim a context that nobody fills.

use std::sync::OnceLock;

use crate::elementary::{exp_f64, ln_f64, sin_cos_f64};
use crate::isa::{Isa, dispatched};

/// Which channels of a head make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// `(x[2i], x[2i + 1])`, as in the GGUF files of the llama family and in TinyGPT.
    Interleaved,
    /// `(x[i], x[i + D / 2])`, as in NeoX and Hugging Face models.
    HalfSplit,
}

/// Positions whose cosines and sines are made together.
const RUN: usize = 256;

/// Cosines and sines of `positions` positions for a rotated width of `D` channels.
#[derive(Clone, Debug)]
pub struct Rope {
    convention: Convention,
    /// Radians per position, `[D / 2]`.
    frequencies: Vec<f64>,
    /// What cosines and sines are multiplied with.
    factor: f64,
    positions: usize,
    runs: Vec<OnceLock<Run>>,
}

/// Cosines and sines of [`RUN`] consecutive positions: `[RUN][D / 2]` each.
#[derive(Clone, Debug)]
struct Run {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Run {
    // Out of line, so that the callers' instruction sets do not compile it again.
    #[cold]
    #[inline(never)]
    fn new(frequencies: &[f64], factor: f64, first: usize) -> Self {
        let positions = first..first + RUN;
        let angles = positions.flat_map(|p| frequencies.iter().map(move |f| p as f64 * f));
        let (sin, cos) = angles
            .map(sin_cos_f64)
            .map(|(s, c)| ((s * factor) as f32, (c * factor) as f32))
            .unzip();
        Self { cos, sin }
    }
}

impl Rope {
    /// Tables for positions `0..positions`: pair `i` turns by
    /// `position * base^(-2i / D) / factors[i]`; without `factors` nothing is divided.
    ///
    /// # Panics
    /// When `d` is odd or zero, or there is not one factor for each pair.
    pub fn new(
        convention: Convention,
        d: usize,
        base: f64,
        factors: Option<&[f32]>,
        positions: usize,
    ) -> Rope {
        assert!(d > 0 && d.is_multiple_of(2), "pairs of channels: {d}");
        let pairs = d / 2;
        assert!(factors.is_none_or(|f| f.len() == pairs), "one factor for each of {pairs} pairs");
        let frequency = |i: usize| {
            let frequency = exp_f64(-ln_f64(base) * (2 * i) as f64 / d as f64);
            frequency / factors.map_or(1.0, |f| f64::from(f[i]))
        };
        let frequencies = (0..pairs).map(frequency).collect();
        let runs = vec![OnceLock::new(); positions.div_ceil(RUN)];
        Rope { convention, frequencies, factor: 1.0, positions, runs }
    }

    /// The same turns, which also multiply the length of what they turn by `factor`.
    pub fn scaled(self, factor: f32) -> Rope {
        let runs = vec![OnceLock::new(); self.runs.len()];
        Rope { factor: factor.into(), runs, ..self }
    }

    /// Which channels make a pair.
    pub fn convention(&self) -> Convention {
        self.convention
    }

    /// How many positions the tables can hold.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Rotates rows `x[T][H][D]` in place; row `t` is at `positions[t]`. Only the first channels
    /// of a head that the tables cover are turned (all of them, in most models).
    ///
    /// The arithmetic of a pair is `a' = fma(a, cos, -(b sin))`, `b' = fma(b, cos, a sin)`.
    ///
    /// # Panics
    /// When the shapes do not fit, or a position lies beyond the tables.
    pub fn apply(&self, x: &mut [f32], heads: usize, d: usize, positions: &[u32]) {
        assert_eq!(x.len(), positions.len() * heads * d, "[T][H][D] channels");
        let turned = 2 * self.frequencies.len();
        assert!(turned <= d, "tables for {turned} channels, heads of {d}");
        let last = positions.iter().max().map_or(0, |&last| last as usize);
        assert!(
            last < self.positions(),
            "position {last}, tables for {} positions",
            self.positions()
        );
        rotate_on(Isa::best(), self, x, heads, d, positions);
    }

    /// The cosines and the sines of a position.
    #[inline(always)]
    pub fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let (run, row) = (position / RUN, position % RUN);
        let Run { cos, sin } =
            self.runs[run].get_or_init(|| Run::new(&self.frequencies, self.factor, run * RUN));
        let pairs = self.frequencies.len();
        let range = row * pairs..(row + 1) * pairs;
        (&cos[range.clone()], &sin[range])
    }
}

dispatched! { fn rotate_on(rope: &Rope, x: &mut [f32], heads: usize, d: usize, positions: &[u32]) = rotate_rows; }

#[inline(always)]
fn rotate_rows(_isa: Isa, rope: &Rope, x: &mut [f32], heads: usize, d: usize, positions: &[u32]) {
    for (row, &position) in x.chunks_exact_mut(heads * d).zip(positions) {
        let (cos, sin) = rope.row(position as usize);
        for head in row.chunks_exact_mut(d) {
            let head = &mut head[..2 * cos.len()];
            match rope.convention {
                Convention::Interleaved => rotate_interleaved(head, cos, sin),
                Convention::HalfSplit => rotate_halves(head, cos, sin),
            }
        }
    }
}

#[inline(always)]
fn rotate_interleaved(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, &cos), &sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
        *pair = turn(pair[0], pair[1], cos, sin);
    }
}

#[inline(always)]
fn rotate_halves(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((a, b), &cos), &sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        [*a, *b] = turn(*a, *b, cos, sin);
    }
}

/// One pair turned by one angle.
#[inline(always)]
fn turn(a: f32, b: f32, cos: f32, sin: f32) -> [f32; 2] {
    [a.mul_add(cos, -(b * sin)), b.mul_add(cos, a * sin)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{bits, noise};

    const POSITIONS: [u32; 4] = [0, 1, 77, 99_999];

    fn rotated(isa: Isa, rope: &Rope, x: &[f32], heads: usize, d: usize) -> Vec<f32> {
        let mut x = x.to_vec();
        rotate_on(isa, rope, &mut x, heads, d, &POSITIONS);
        x
    }

    /// Channel indices of pair `i`.
    fn pair(convention: Convention, i: usize, d: usize) -> [usize; 2] {
        match convention {
            Convention::Interleaved => [2 * i, 2 * i + 1],
            Convention::HalfSplit => [i, i + d / 2],
        }
    }

    #[test]
    fn pairs_turn_by_position_times_frequency() {
        let factors: Vec<f32> = (0..16).map(|i| 1.0 + i as f32 / 4.0).collect();
        for convention in [Convention::Interleaved, Convention::HalfSplit] {
            for factors in [None, Some(&factors[..])] {
                let (heads, d) = (3, 32);
                let x = noise(1, POSITIONS.len() * heads * d);
                let rope = Rope::new(convention, d, 10_000.0, factors, 100_000);
                let got = rotated(Isa::best(), &rope, &x, heads, d);
                for (row, &position) in POSITIONS.iter().enumerate() {
                    for (head, i) in (0..heads).flat_map(|h| (0..d / 2).map(move |i| (h, i))) {
                        let frequency = 10_000_f64.powf(-2.0 * i as f64 / d as f64)
                            / factors.map_or(1.0, |f| f64::from(f[i]));
                        let (sin, cos) = (f64::from(position) * frequency).sin_cos();
                        let at = |c: usize| (row * heads + head) * d + c;
                        let [a, b] = pair(convention, i, d).map(at);
                        let (x, y) = (f64::from(x[a]), f64::from(x[b]));
                        assert!((f64::from(got[a]) - (x * cos - y * sin)).abs() < 3e-7);
                        assert!((f64::from(got[b]) - (x * sin + y * cos)).abs() < 3e-7);
                    }
                }
            }
        }
    }

    #[test]
    fn instantiations_have_the_same_bits() {
        for convention in [Convention::Interleaved, Convention::HalfSplit] {
            for d in [2, 6, 64, 80] {
                let rope = Rope::new(convention, d, 500_000.0, None, 100_000);
                let x = noise(2, POSITIONS.len() * 2 * d);
                let [plain, best] =
                    [Isa::PLAIN, Isa::best()].map(|isa| bits(&rotated(isa, &rope, &x, 2, d)));
                assert_eq!(plain, best, "{convention:?}, {d} channels");
            }
        }
    }

    #[test]
    fn position_zero_changes_nothing_and_channels_beyond_the_tables_stay() {
        let rope = Rope::new(Convention::HalfSplit, 4, 10_000.0, None, 10);
        let mut x = noise(3, 2 * 6);
        let before = x.clone();
        rope.apply(&mut x, 1, 6, &[0, 9]);
        assert_eq!(x[..6], before[..6]);
        assert_ne!(x[6..10], before[6..10]);
        assert_eq!(x[10..], before[10..]);
        assert_eq!(rope.positions(), 10);
    }

    #[test]
    fn a_factor_multiplies_what_is_turned_and_nothing_else() {
        let plain = Rope::new(Convention::HalfSplit, 8, 10_000.0, None, 100_000);
        let doubled = plain.clone().scaled(2.0);
        let x = noise(5, POSITIONS.len() * 12);
        let [plain, doubled] = [plain, doubled].map(|rope| rotated(Isa::best(), &rope, &x, 1, 12));
        for (i, (plain, doubled)) in plain.iter().zip(doubled).enumerate() {
            let factor = if i % 12 < 8 { 2.0 } else { 1.0 };
            assert_eq!(doubled, factor * plain, "{i}");
        }
    }

    #[test]
    fn a_row_is_the_same_whichever_rows_were_asked_for_before() {
        let rope = Rope::new(Convention::HalfSplit, 64, 10_000.0, None, 1 << 20);
        for position in [99_999, 256, 0, 255, 100_000, 511, 512, 1, (1 << 20) - 1] {
            let angles = rope.frequencies.iter().map(|f| sin_cos_f64(position as f64 * f));
            let (sin, cos): (Vec<f32>, Vec<f32>) =
                angles.map(|(sin, cos)| (sin as f32, cos as f32)).unzip();
            let row = rope.row(position);
            assert_eq!((bits(row.0), bits(row.1)), (bits(&cos), bits(&sin)), "{position}");
        }
    }

    #[test]
    fn a_long_context_takes_memory_only_where_it_is_used() {
        let rope = Rope::new(Convention::Interleaved, 128, 10_000.0, None, 1 << 20);
        let made = || rope.runs.iter().filter(|run| run.get().is_some()).count();
        assert_eq!(made(), 0);
        rope.apply(&mut noise(4, 3 * 128), 1, 128, &[999_999, 3, 4]);
        assert_eq!(made(), 2);
    }

    #[test]
    #[should_panic(expected = "position 10, tables for 10 positions")]
    fn a_position_beyond_the_tables_is_refused() {
        Rope::new(Convention::HalfSplit, 4, 10_000.0, None, 10).apply(&mut [0.0; 4], 1, 4, &[10]);
    }
}
