//! Matrices of which only the shape is there: what a model would be, for whoever only asks that.

use super::buffer::Draft;
use super::{Format, Matrix, Scales};

impl Matrix {
    /// `N` outputs by `K` inputs without weights: it takes no [`bytes`](Self::bytes), and must not
    /// be computed with or asked for a row.
    ///
    /// # Panics
    /// When the format does not suit `k`.
    pub fn outline(n: usize, k: usize, format: Format) -> Matrix {
        format.check(k);
        let [weights, scales, mins] = [(); 3].map(|()| Draft::zeroed(0).finish());
        Matrix { n, k, format, weights, scales, mins, kept: Scales::F32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_has_a_shape_and_takes_nothing() {
        let matrix = Matrix::outline(1 << 30, 1 << 30, Format::F32);
        assert_eq!((matrix.n(), matrix.k(), matrix.bytes()), (1 << 30, 1 << 30, 0));
    }
}
