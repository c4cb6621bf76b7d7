//! Attention over the pieces of one sequence.
//!
//! Keys and values are read where they lie, piece by piece, and widened to f32 on the way. All
//! queries of a KV head are multiplied together.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use tinygpt_kernels::Shape;

use crate::kv::layout::Window;

/// Rows of a piece: `k [G][n][k_dim]`, `v [G][n][v_dim]`, and `mask [T][n]` if not every query
/// sees every key.
pub(super) struct Piece {
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) mask: Option<Tensor>,
}

/// Queries `q [T][H*k_dim]` over all pieces: `[T][H*v_dim]`. The masks are the window.
pub(super) fn attend(q: &Tensor, pieces: &[Piece], shape: &Shape) -> Result<Tensor> {
    let (rows, groups, heads) = (q.dim(0)?, shape.kv_heads, shape.heads);
    let (each, scale) = (heads / groups, f64::from(shape.scale));
    let q = q.reshape((rows, groups, each, shape.k_dim))?.permute((1, 2, 0, 3))?;
    let q = (q.contiguous()?.reshape((groups, each * rows, shape.k_dim))? * scale)?;
    let score = |piece: &Piece| scores(&q, piece, shape.softcap);
    let scores = pieces.iter().map(score).collect::<Result<Vec<_>>>()?;
    let most = scores.iter().map(|scores| scores.max_keepdim(2));
    let most = most.reduce(|a, b| a?.maximum(&b?)).expect("a row sees itself")?;

    let weigh = |(scores, piece): (Tensor, &Piece)| {
        let weights = scores.broadcast_sub(&most)?.exp()?;
        let values = piece.v.to_dtype(DType::F32)?;
        Ok([weights.sum_keepdim(2)?, weights.matmul(&values)?])
    };
    let sum = |a: Result<[Tensor; 2]>, b: Result<[Tensor; 2]>| {
        let ([total, out], [more, rest]) = (a?, b?);
        Ok([(total + more)?, (out + rest)?])
    };
    let weighed = scores.into_iter().zip(pieces).map(weigh).reduce(sum);
    let [total, out] = weighed.expect("a row sees itself")?;
    let out = out.broadcast_div(&total)?.reshape((groups, each, rows, shape.v_dim))?;
    out.permute((2, 0, 1, 3))?.contiguous()?.reshape((rows, heads * shape.v_dim))
}

/// `q [G][R*T][k_dim]` with a piece's keys: `[G][R*T][n]`.
fn scores(q: &Tensor, piece: &Piece, softcap: Option<f32>) -> Result<Tensor> {
    let mut scores = q.matmul(&piece.k.to_dtype(DType::F32)?.transpose(1, 2)?)?;
    if let Some(cap) = softcap.map(f64::from) {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    let Some(mask) = &piece.mask else { return Ok(scores) };
    let (groups, queries, n) = scores.dims3()?;
    let by_row = scores.reshape((groups, queries / mask.dim(0)?, mask.dim(0)?, n))?;
    by_row.broadcast_add(mask)?.reshape((groups, queries, n))
}

/// `[rows][keys]`: minus infinity where a row does not see a key, because it is later or lies
/// before the row's `window`, 0 elsewhere.
pub(super) fn mask(
    rows: Range<usize>,
    keys: Range<usize>,
    window: Window,
    device: &Device,
) -> Result<Tensor> {
    let shape = (rows.len(), keys.len());
    let first = positions(rows.clone().map(|row| window.seen(row).start), device)?.unsqueeze(1)?;
    let rows = positions(rows, device)?.unsqueeze(1)?;
    let keys = positions(keys, device)?.unsqueeze(0)?;
    let never = Tensor::full(f32::NEG_INFINITY, shape, device)?;
    let seen = Tensor::zeros(shape, DType::F32, device)?;
    let causal = keys.broadcast_gt(&rows)?.where_cond(&never, &seen)?;
    keys.broadcast_lt(&first)?.where_cond(&never, &causal)
}

fn positions(of: impl Iterator<Item = usize>, device: &Device) -> Result<Tensor> {
    let position = |at| u32::try_from(at).expect("a context has fewer than 2^32 positions");
    Tensor::from_iter(of.map(position).collect::<Vec<_>>(), device)
}
