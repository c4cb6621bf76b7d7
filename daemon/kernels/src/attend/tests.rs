mod windows;

use proptest::prelude::*;

use super::*;
use crate::convert::{narrow_bf16, narrow_f16};
use crate::noise::{bits, isas, noise, pool};
use crate::reference;

/// Aligned bytes.
type Lines = Vec<[u32; 16]>;

/// Cached keys and values of one sequence, in blocks; tokens beyond `len` hold NaN.
struct Cache {
    len: usize,
    /// Bytes of keys and values of each block.
    blocks: Vec<(Lines, Lines)>,
}

impl Cache {
    fn new(shape: &Shape, seed: u64, len: usize) -> Cache {
        let blocks = (0..len.div_ceil(BLOCK)).map(|b| {
            let seen = (len - b * BLOCK).min(BLOCK);
            let seed = seed * 1_000 + 2 * b as u64;
            let mut k = noise(seed, shape.kv_heads * shape.k_dim * BLOCK);
            let mut v = noise(seed + 1, shape.kv_heads * shape.v_dim * BLOCK);
            for row in k.chunks_exact_mut(BLOCK) {
                row[seen..].fill(f32::NAN);
            }
            for head in v.chunks_exact_mut(BLOCK * shape.v_dim) {
                head[seen * shape.v_dim..].fill(f32::NAN);
            }
            (pack(shape.element, &k), pack(shape.element, &v))
        });
        Cache { len, blocks: blocks.collect() }
    }

    fn blocks(&self, shape: &Shape) -> Vec<Block<'_>> {
        self.blocks
            .iter()
            .map(|(k, v)| Block {
                k: &bytemuck::cast_slice(k)[..shape.k_bytes()],
                v: &bytemuck::cast_slice(v)[..shape.v_bytes()],
            })
            .collect()
    }
}

/// The bytes of numbers as an element type, in aligned lines.
fn pack(element: Element, values: &[f32]) -> Lines {
    let mut bytes = vec![[0; 16]; (values.len() * element.bytes()).div_ceil(64)];
    let mut narrow = vec![0_u16; values.len()];
    match element {
        Element::F32 => {
            bytemuck::cast_slice_mut(&mut bytes)[..values.len()].copy_from_slice(values);
            return bytes;
        }
        Element::F16 => assert_eq!(narrow_f16(values, &mut narrow), 0),
        Element::BF16 => narrow_bf16(values, &mut narrow),
    }
    bytemuck::cast_slice_mut(&mut bytes)[..values.len()].copy_from_slice(&narrow);
    bytes
}

fn shape(heads: usize, kv_heads: usize, k_dim: usize, v_dim: usize, element: Element) -> Shape {
    let scale = 1.0 / (k_dim as f32).sqrt();
    Shape { heads, kv_heads, k_dim, v_dim, element, scale, softcap: None, window: None }
}

const ELEMENTS: [Element; 3] = [Element::F32, Element::F16, Element::BF16];

/// The last `rows` rows of a cache, attended.
fn last_rows(isa: Isa, threads: usize, shape: &Shape, cache: &Cache, rows: usize) -> Vec<u32> {
    let first = cache.len - rows;
    let q = &noise(7, cache.len * shape.heads * shape.k_dim)[first * shape.heads * shape.k_dim..];
    let mut out = vec![f32::NAN; rows * shape.heads * shape.v_dim];
    let seqs = [Sequence { rows: 0..rows, first, blocks: &cache.blocks(shape) }];
    attend_on(isa, &pool(threads), shape, &seqs, q, &mut out);
    bits(&out)
}

fn reference_rows(shape: &Shape, cache: &Cache, rows: usize) -> Vec<f32> {
    let first = cache.len - rows;
    let q = &noise(7, cache.len * shape.heads * shape.k_dim)[first * shape.heads * shape.k_dim..];
    let mut out = vec![f32::NAN; rows * shape.heads * shape.v_dim];
    let seqs = [Sequence { rows: 0..rows, first, blocks: &cache.blocks(shape) }];
    reference::attend(shape, &seqs, q, &mut out);
    out
}

#[test]
fn attention_has_the_bits_of_its_reference_at_every_length() {
    let lengths = [1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1_000, 3_000];
    let shapes = [(1, 1, 8, 16), (6, 2, 24, 40), (9, 3, 64, 64), (8, 2, 16, 48), (4, 4, 7, 5)];
    for (i, len) in lengths.into_iter().enumerate() {
        for (j, (heads, kv_heads, k_dim, v_dim)) in shapes.into_iter().enumerate() {
            let shape = shape(heads, kv_heads, k_dim, v_dim, ELEMENTS[(i + j) % 3]);
            let cache = Cache::new(&shape, 1, len);
            for rows in [1, 2, 35].into_iter().filter(|&rows| rows <= len) {
                let want = bits(&reference_rows(&shape, &cache, rows));
                for (isa, threads) in isas().into_iter().zip([1, 2].into_iter().cycle()) {
                    let got = last_rows(isa, threads, &shape, &cache, rows);
                    assert_eq!(got, want, "{rows} of {len}, {shape:?}, {isa:?}");
                }
            }
        }
    }
}

#[test]
fn attention_agrees_with_a_textbook_softmax_in_double_precision() {
    for element in ELEMENTS {
        let shape = shape(4, 2, 32, 48, element);
        let cache = Cache::new(&shape, 2, 300);
        let got = reference_rows(&shape, &cache, 300);
        let q = noise(7, 300 * shape.heads * shape.k_dim);
        for (position, h) in
            [0, 1, 31, 32, 100, 255, 256, 299].into_iter().flat_map(|p| [(p, 0), (p, 3)])
        {
            let at = position * shape.heads + h;
            let want = textbook(&shape, &cache, position, h, &q[at * shape.k_dim..][..shape.k_dim]);
            for (got, want) in got[at * shape.v_dim..][..shape.v_dim].iter().zip(want) {
                assert!((f64::from(*got) - want).abs() < 2e-6, "{got} not {want} at {position}");
            }
        }
    }
}

/// `sum(softmax(q k) v)` over the visible tokens.
fn textbook(shape: &Shape, cache: &Cache, position: usize, h: usize, q: &[f32]) -> Vec<f64> {
    let g = h / (shape.heads / shape.kv_heads);
    let blocks = cache.blocks(shape);
    let element = |bytes: &[u8], i: usize| f64::from(reference::element(shape, bytes, i));
    let score = |p: usize| {
        let key =
            |d: usize| element(blocks[p / BLOCK].k, (g * shape.k_dim + d) * BLOCK + p % BLOCK);
        let dot: f64 = q.iter().enumerate().map(|(d, &q)| f64::from(q) * key(d)).sum();
        let scaled = dot * f64::from(shape.scale);
        let cap = shape.softcap.map(f64::from);
        cap.map_or(scaled, |cap| cap * (scaled / cap).tanh()).exp()
    };
    let seen = shape.window.map_or(0, |tokens| (position + 1).saturating_sub(tokens))..=position;
    let weights: Vec<f64> = seen.clone().map(score).collect();
    let total: f64 = weights.iter().sum();
    let value = |p: usize, d: usize| {
        element(blocks[p / BLOCK].v, (g * BLOCK + p % BLOCK) * shape.v_dim + d)
    };
    let channel = |d: usize| seen.clone().zip(&weights).map(|(p, w)| w * value(p, d)).sum::<f64>();
    (0..shape.v_dim).map(|d| channel(d) / total).collect()
}

#[test]
fn a_query_sees_nothing_of_the_tokens_after_it() {
    let shape = shape(2, 1, 16, 16, Element::F32);
    let cache = Cache::new(&shape, 3, 70);
    let mut spoilt = Cache::new(&shape, 3, 70);
    let (k, v) = &mut spoilt.blocks[2];
    for row in bytemuck::cast_slice_mut::<_, f32>(k).chunks_exact_mut(BLOCK) {
        row[4..].fill(f32::INFINITY);
    }
    bytemuck::cast_slice_mut::<_, f32>(v)[4 * shape.v_dim..].fill(f32::NAN);
    let width = shape.heads * shape.v_dim;
    for isa in isas() {
        let clean = last_rows(isa, 1, &shape, &cache, 70);
        let got = last_rows(isa, 1, &shape, &spoilt, 70);
        assert_eq!(got[..68 * width], clean[..68 * width], "positions 0..68 are as before");
        assert_ne!(got[68 * width..], clean[68 * width..], "position 68 sees the spoilt token");
    }
}

#[test]
fn rows_of_no_sequence_are_left_alone() {
    let shape = shape(1, 1, 8, 8, Element::F16);
    let cache = Cache::new(&shape, 4, 5);
    let seqs = [Sequence { rows: 1..3, first: 3, blocks: &cache.blocks(&shape) }];
    let mut out = vec![7.0; 4 * 8];
    attend(&pool(1), &shape, &seqs, &noise(1, 4 * 8), &mut out);
    assert!(out[..8].iter().chain(&out[24..]).all(|&x| x == 7.0));
    assert!(out[8..24].iter().all(|&x| x != 7.0));
}

#[test]
#[should_panic(expected = "sequences have rows of their own")]
fn overlapping_sequences_are_refused() {
    let shape = shape(1, 1, 8, 8, Element::F16);
    let cache = Cache::new(&shape, 4, 5);
    let blocks = cache.blocks(&shape);
    let seqs = [0..2, 1..3].map(|rows| Sequence { rows, first: 0, blocks: &blocks });
    attend(&pool(1), &shape, &seqs, &[0.0; 24], &mut [0.0; 24]);
}

#[test]
#[should_panic(expected = "2 blocks, not 1")]
fn missing_blocks_are_refused() {
    let shape = shape(1, 1, 8, 8, Element::F16);
    let cache = Cache::new(&shape, 4, 5);
    let seqs = [Sequence { rows: 0..1, first: 32, blocks: &cache.blocks(&shape) }];
    attend(&pool(1), &shape, &seqs, &[0.0; 8], &mut [0.0; 8]);
}

/// Sequences whose first blocks are one cache's, and whose others are their own.
fn branches<'a>(shape: &Shape, trunk: &'a Cache, own: &'a [Cache]) -> Vec<Vec<Block<'a>>> {
    let whole = trunk.len / BLOCK;
    let branch = |own: &'a Cache| {
        let mut blocks = trunk.blocks(shape)[..whole].to_vec();
        blocks.extend(own.blocks(shape));
        blocks
    };
    own.iter().map(branch).collect()
}

#[test]
fn sequences_that_share_blocks_have_the_bits_of_each_alone() {
    for (trunk, own) in [(0, 7), (32, 5), (96, 33), (256, 1), (992, 40), (1_024, 300)] {
        for v_dim in [24, 32] {
            check_branches(&shape(6, 2, 16, v_dim, Element::F16), trunk, |i| own + i);
        }
    }
}

/// Nine sequences that share `trunk` tokens, with `own(i)` tokens of their own.
fn check_branches(shape: &Shape, trunk: usize, own: impl Fn(usize) -> usize) {
    let trunk = Cache::new(shape, 1, trunk);
    let own: Vec<_> = (0..9).map(|i| Cache::new(shape, 2 + i as u64, own(i))).collect();
    let blocks = branches(shape, &trunk, &own);
    // Decodes, and a short slice of a prompt among them.
    let rows_of = |i: usize| if i == 4 { own[i].len.min(5) } else { 1 };
    let total: usize = (0..own.len()).map(rows_of).sum();
    let q = noise(7, total * shape.heads * shape.k_dim);
    let mut start = 0;
    let seqs: Vec<_> = (0..own.len())
        .map(|i| {
            let rows = start..start + rows_of(i);
            start = rows.end;
            Sequence { first: trunk.len + own[i].len - rows.len(), rows, blocks: &blocks[i] }
        })
        .collect();
    let mut want = vec![f32::NAN; total * shape.heads * shape.v_dim];
    reference::attend(shape, &seqs, &q, &mut want);
    for (isa, threads) in isas().into_iter().zip([1, 2, 3].into_iter().cycle()) {
        let mut got = vec![f32::NAN; want.len()];
        attend_on(isa, &pool(threads), shape, &seqs, &q, &mut got);
        assert_eq!(bits(&got), bits(&want), "{} shared, {shape:?}, {isa:?}", trunk.len);
    }
}

/// All rows of a sequence at once, and cut, each piece beside a row of a companion.
fn cut(shape: &Shape, cuts: &[usize], companion: usize, threads: usize) -> [Vec<u32>; 2] {
    let (width, len) = (shape.heads * shape.k_dim, cuts.iter().sum());
    let (cache, other) = (Cache::new(shape, 5, len), Cache::new(shape, 6, companion));
    let whole = last_rows(Isa::best(), 1, shape, &cache, len);
    let (blocks, other) = (cache.blocks(shape), other.blocks(shape));
    let q = noise(7, len * width);
    let (mut sliced, mut first) = (Vec::new(), 0);
    for &cut in cuts {
        let mut rows = noise(8, width);
        rows.extend(&q[first * width..][..cut * width]);
        let seqs = [
            Sequence { rows: 0..1, first: companion - 1, blocks: &other },
            Sequence { rows: 1..1 + cut, first, blocks: &blocks },
        ];
        let mut out = vec![f32::NAN; (1 + cut) * shape.heads * shape.v_dim];
        attend(&pool(threads), shape, &seqs, &rows, &mut out);
        sliced.extend(bits(&out[shape.heads * shape.v_dim..]));
        first += cut;
    }
    [whole, sliced]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_query_has_the_same_bits_however_its_rows_are_cut_and_whoever_travels_with_it(
        cuts in proptest::collection::vec(1_usize..90, 1..8),
        companion in 1_usize..300,
        element in 0_usize..3,
        threads in 1_usize..4,
    ) {
        let shape = shape(6, 2, 16, 16, ELEMENTS[element]);
        let [whole, sliced] = cut(&shape, &cuts, companion, threads);
        prop_assert_eq!(whole, sliced);
    }
}
