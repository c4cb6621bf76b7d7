//! Prints the rates of the product and of attention on this machine, in GFLOP/s (two operations
//! per multiply-add; masked scores are not counted).
//!
//! `cargo run --release -p tinygpt-kernels --example rates [-- THREADS [FORMAT]]`

#![expect(clippy::print_stdout, reason = "a report is what it is for")]

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use tinygpt_kernels::convert::narrow_f16;
use tinygpt_kernels::sample::uniform;
use tinygpt_kernels::{
    Block, Code, Element, Format, Isa, Matrix, Output, Pool, Quantized, Sequence, Shape, Table,
    attend, linear, linear_fast,
};

fn main() {
    let threads = std::env::args().nth(1).and_then(|arg| arg.parse().ok());
    let pool = Pool::new(threads.unwrap_or(NonZeroUsize::MIN));
    println!("{} threads, {}", pool.threads(), Isa::best().name());
    println!("peak f32 FMA, one thread: {:.1}", peak());
    let only = std::env::args().nth(2);
    for (n, k) in [(576, 576), (1536, 576), (576, 1536)] {
        let formats = formats(n, k).into_iter();
        let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
        formats.filter(|(name, _)| wanted(name)).for_each(|(name, w)| products(&pool, name, &w));
    }
    if only.is_some() {
        return;
    }
    for (first, rows) in [(0, 512), (1023, 1)] {
        for element in [Element::F32, Element::F16, Element::BF16] {
            attention(&pool, element, first, [rows], None);
        }
    }
    attention(&pool, Element::F16, 1024, [1; 8], None);
    for (first, rows) in [(4_096, 512), (8_191, 1)] {
        attention(&pool, Element::F16, first, [rows], Some(512));
    }
}

/// What one core can do: independent chains of multiply-adds in registers.
fn peak() -> f64 {
    #[inline(always)]
    fn chains(a: f32, b: f32) -> f32 {
        let mut sums = [[0.5_f32; 8]; 12];
        for _ in 0..10_000 {
            for sum in &mut sums {
                for x in sum {
                    *x = x.mul_add(a, b);
                }
            }
        }
        sums.as_flattened().iter().sum()
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn fast(a: f32, b: f32) -> f32 {
        chains(a, b)
    }
    let run = |a, b| {
        #[cfg(target_arch = "x86_64")]
        if Isa::best() != Isa::PLAIN {
            // SAFETY: the kernels' AVX2 instantiation needs AVX2 and FMA too.
            #[expect(unsafe_code, reason = "calls an instantiation for detected features")]
            return unsafe { fast(a, b) };
        }
        chains(a, b)
    };
    rate(2.0 * 10_000.0 * 96.0, || {
        std::hint::black_box(run(std::hint::black_box(0.5), std::hint::black_box(0.25)));
    })
}

/// The same shape in every format.
fn formats(n: usize, k: usize) -> Vec<(&'static str, Matrix)> {
    let weights = noise(1, n * k);
    let mut narrow = vec![0; n * k];
    narrow_f16(&weights, &mut narrow);
    // As in most files, scales are f16.
    let scale: Vec<f32> =
        noise(2, n * k / 32).iter().map(|x| (x * 256.0).round() / 256.0).collect();
    let affine = |bits: u8, zero: u8| {
        let size = (1 << bits) as f32;
        let q = weights.iter().map(|x| ((x + 0.5) * size) as i16 - i16::from(zero));
        let q: Vec<i8> = q.map(|q| q as i8).collect();
        let min = (zero == 0).then_some(&scale[..]);
        Matrix::from_affine(n, k, (Code { bits, zero }, 32), &q, &scale, min)
    };
    let coded = |format| {
        let codes: Vec<u8> = weights.iter().map(|x| ((x + 0.5) * 16.0) as u8).collect();
        Matrix::from_codes(n, k, format, &codes, &scale, None)
    };
    vec![
        ("f32", Matrix::from_f32(n, k, &weights)),
        ("f16", Matrix::from_f16(n, k, &narrow)),
        ("2 bits", affine(2, 0)),
        ("4 bits", affine(4, 0)),
        ("5 bits", affine(5, 0)),
        ("6 bits", affine(6, 32)),
        ("8 bits", affine(8, 128)),
        ("e2m1", coded(Format::Table { table: Table::E2M1, group: 32 })),
        ("iq4nl", coded(Format::Table { table: Table::IQ4NL, group: 32 })),
        ("e4m3", coded(Format::E4M3 { group: 32 })),
    ]
}

fn products(pool: &Pool, name: &str, w: &Matrix) {
    print!("linear {:4} x {:4} {name:>6}:", w.n(), w.k());
    for t in [1, 2, 8, 32, 64, 512] {
        let (x, mut y) = (noise(3, t * w.k()), vec![0.0; t * w.n()]);
        let flops = 2.0 * (t * w.n() * w.k()) as f64;
        print!("  T={t} {:6.1}", rate(flops, || linear(pool, &x, t, w, None, &mut y)));
    }
    println!();
    if w.is_quantised() {
        print!("fast   {:4} x {:4} {name:>6}:", w.n(), w.k());
        for t in [1, 2, 8, 32, 64, 512] {
            let (x, mut y) = (noise(3, t * w.k()), vec![0.0; t * w.n()]);
            let x = Quantized::new(pool, &x, w.k());
            let flops = 2.0 * (t * w.n() * w.k()) as f64;
            print!("  T={t} {:6.1}", rate(flops, || fast(pool, &x, w, &mut y)));
        }
        println!();
    }
}

fn fast(pool: &Pool, x: &Quantized, weights: &Matrix, y: &mut [f32]) {
    linear_fast(pool, x, [Output { weights, bias: None, y, adds: false }]);
}

/// The heads of SmolLM2-135M: sequences of so many rows from position `first` on, with one cache.
fn attention<const S: usize>(
    pool: &Pool,
    element: Element,
    first: usize,
    rows: [usize; S],
    window: Option<usize>,
) {
    let (heads, kv_heads, k_dim, v_dim) = (9, 3, 64, 64);
    let (scale, softcap) = (0.125, None);
    let shape = Shape { heads, kv_heads, k_dim, v_dim, element, scale, softcap, window };
    let bytes = vec![[0x3c3c_3c3c_u32; 16]; shape.k_bytes() / 64];
    let block = Block { k: bytemuck::cast_slice(&bytes), v: bytemuck::cast_slice(&bytes) };
    let blocks = vec![block; (first + rows[0]).div_ceil(32)];
    let mut start = 0;
    let seqs = rows.map(|rows| {
        start += rows;
        Sequence { rows: start - rows..start, first, blocks: &blocks }
    });
    let q = noise(4, start * shape.heads * shape.k_dim);
    let mut out = vec![0.0; start * shape.heads * shape.v_dim];
    let seen = |tokens: usize| window.map_or(tokens, |window| tokens.min(window));
    let pairs = rows.iter().map(|rows| (first + 1..=first + rows).map(seen).sum::<usize>());
    let pairs: usize = pairs.sum();
    let flops = (2 * pairs * shape.heads * (shape.k_dim + shape.v_dim)) as f64;
    let rate = rate(flops, || attend(pool, &shape, &seqs, &q, &mut out));
    let window = window.map_or(String::new(), |window| format!(", window {window}"));
    println!("attend {rows:?} rows at {first}{window}, {element:?}: {rate:.1}");
}

/// The best rate of repeated runs over a quarter of a second, in units of 1e9 per second.
fn rate(operations: f64, mut run: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = Duration::MAX;
    while begin.elapsed() < Duration::from_millis(250) {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed());
    }
    operations / best.as_secs_f64() / 1e9
}

fn noise(seed: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| uniform(seed, 0, i as u64) - 0.5).collect()
}
