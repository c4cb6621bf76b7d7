//! Plain, slow references: what each kernel must equal bit for bit.
//!
//! One scalar at a time in the order that the kernels promise, with no tiles, strips or tasks.

use std::ops::Range;

use crate::attend::{BLOCK, CHUNK, Element, Sequence, Shape};
use crate::convert::{f32_from_bf16, f32_from_f16};
use crate::elementary::{exp, tanh};
use crate::matrix::Matrix;
use crate::quantized::Quantized;

/// [`crate::linear()`].
pub fn linear(x: &[f32], t: usize, w: &Matrix, bias: Option<&[f32]>, y: &mut [f32]) {
    let (n, k) = (w.n(), w.k());
    let mut weights = vec![0.0; k];
    for n_ in 0..n {
        w.row(n_, &mut weights);
        for t in 0..t {
            let mut sum = 0.0_f32;
            for i in 0..k {
                sum = x[t * k + i].mul_add(weights[i], sum);
            }
            y[t * n + n_] = bias.map_or(sum, |bias| sum + bias[n_]);
        }
    }
}

/// [`crate::linear_fast`].
pub fn linear_fast(x: &Quantized, w: &Matrix, bias: Option<&[f32]>, y: &mut [f32]) {
    let group = w.coded().group;
    let piece = group.min(32);
    for n in 0..w.n() {
        for t in 0..x.rows() {
            let row = x.row(t);
            let mut sum = 0.0_f32;
            for start in (0..w.k()).step_by(piece) {
                let (mut dot, mut integers) = (0, 0);
                for k in start..start + piece {
                    let q = i32::from(row[k / 32].q[k % 32]);
                    dot += w.integer(n, k) * q;
                    integers += q;
                }
                let (scale, min) = w.scale(n, start / group);
                let of_row = row[start / 32].scale;
                sum = (dot as f32).mul_add(scale * of_row, sum);
                if let Some(min) = min {
                    sum = min.mul_add(integers as f32 * of_row, sum);
                }
            }
            y[t * w.n() + n] = bias.map_or(sum, |bias| sum + bias[n]);
        }
    }
}

/// The sum of sixteen interleaved partial sums, folded by halves.
pub fn sum(row: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for (i, &x) in row.iter().enumerate() {
        lanes[i % 16] += x;
    }
    fold(lanes)
}

/// The sum of squares in the same order.
pub fn squares(row: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for (i, &x) in row.iter().enumerate() {
        lanes[i % 16] = x.mul_add(x, lanes[i % 16]);
    }
    fold(lanes)
}

fn fold(lanes: [f32; 16]) -> f32 {
    let eight: Vec<f32> = (0..8).map(|i| lanes[i] + lanes[i + 8]).collect();
    let four: Vec<f32> = (0..4).map(|i| eight[i] + eight[i + 4]).collect();
    (four[0] + four[2]) + (four[1] + four[3])
}

/// [`crate::norm::rms_norm`].
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let c = weight.len();
    for (x, out) in x.chunks(c).zip(out.chunks_mut(c)) {
        let scale = 1.0 / (squares(x) / c as f32 + eps).sqrt();
        for i in 0..c {
            out[i] = x[i] * scale * weight[i];
        }
    }
}

/// [`crate::norm::layer_norm`].
pub fn layer_norm(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    let c = weight.len();
    for (x, out) in x.chunks(c).zip(out.chunks_mut(c)) {
        let mean = sum(x) / c as f32;
        let centred: Vec<f32> = x.iter().map(|x| x - mean).collect();
        let scale = 1.0 / (squares(&centred) / c as f32 + eps).sqrt();
        for i in 0..c {
            let scaled = centred[i] * scale * weight[i];
            out[i] = bias.map_or(scaled, |bias| scaled + bias[i]);
        }
    }
}

/// [`crate::attend()`].
pub fn attend(shape: &Shape, seqs: &[Sequence<'_>], q: &[f32], out: &mut [f32]) {
    for seq in seqs {
        for (i, row) in seq.rows.clone().enumerate() {
            for h in 0..shape.heads {
                let at = row * shape.heads + h;
                let q = &q[at * shape.k_dim..(at + 1) * shape.k_dim];
                let result = attend_one(shape, seq, seq.first + i, h, q);
                out[at * shape.v_dim..(at + 1) * shape.v_dim].copy_from_slice(&result);
            }
        }
    }
}

/// An online softmax state.
struct State {
    m: f32,
    l: f32,
    acc: Vec<f32>,
}

impl State {
    fn fresh(shape: &Shape) -> State {
        State { m: f32::NEG_INFINITY, l: 0.0, acc: vec![0.0; shape.v_dim] }
    }
}

/// One query at `position`, head `h`.
fn attend_one(shape: &Shape, seq: &Sequence<'_>, position: usize, h: usize, q: &[f32]) -> Vec<f32> {
    let g = h / (shape.heads / shape.kv_heads);
    let keys = shape.window.map_or(0, |n| (position + 1).saturating_sub(n))..position + 1;
    let blocks = keys.start / BLOCK..position / BLOCK + 1;
    let mut total = State::fresh(shape);
    for start in (blocks.start / CHUNK * CHUNK..blocks.end).step_by(CHUNK) {
        let mut chunk = State::fresh(shape);
        for block in start.max(blocks.start)..blocks.end.min(start + CHUNK) {
            let first = block * BLOCK;
            let visible = keys.start.max(first) - first..keys.end.min(first + BLOCK) - first;
            fold_block(shape, &seq.blocks[block], g, q, visible, &mut chunk);
        }
        merge(&mut total, &chunk);
    }
    total.acc.iter().map(|acc| acc / total.l).collect()
}

fn fold_block(
    shape: &Shape,
    block: &crate::attend::Block<'_>,
    g: usize,
    q: &[f32],
    visible: Range<usize>,
    state: &mut State,
) {
    let mut p = [0.0; BLOCK];
    let mut m = state.m;
    for t in visible.clone() {
        let mut dot = 0.0_f32;
        for d in 0..shape.k_dim {
            dot = q[d].mul_add(element(shape, block.k, (g * shape.k_dim + d) * BLOCK + t), dot);
        }
        p[t] = dot * shape.scale;
        if let Some(cap) = shape.softcap {
            p[t] = cap * tanh(p[t] / cap);
        }
        m = m.max(p[t]);
    }
    for p in &mut p[visible.clone()] {
        *p = exp(*p - m);
    }
    let alpha = exp(state.m - m);
    state.m = m;
    state.l = state.l.mul_add(alpha, sum(&p));
    for d in 0..shape.v_dim {
        state.acc[d] *= alpha;
        for t in visible.clone() {
            let v = element(shape, block.v, (g * BLOCK + t) * shape.v_dim + d);
            state.acc[d] = p[t].mul_add(v, state.acc[d]);
        }
    }
}

fn merge(total: &mut State, chunk: &State) {
    let m = total.m.max(chunk.m);
    let (a, b) = (exp(total.m - m), exp(chunk.m - m));
    total.m = m;
    total.l = total.l.mul_add(a, chunk.l * b);
    for (sum, acc) in total.acc.iter_mut().zip(&chunk.acc) {
        *sum = sum.mul_add(a, acc * b);
    }
}

/// Element `i` of little-endian bytes.
pub fn element(shape: &Shape, bytes: &[u8], i: usize) -> f32 {
    let two = || u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
    match shape.element {
        Element::F32 => {
            f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        }
        Element::F16 => f32_from_f16(two()),
        Element::BF16 => f32_from_bf16(two()),
    }
}
