//! Where the readers of model files get their matrices: packed now, or found in a pack.

use std::cell::RefCell;
use std::ops::Range;

use tinygpt_kernels::{Format, Matrix, Pool, Tile};

use super::Pack;
use crate::model::load::LoadError;

/// Packs matrices on a pool, or takes them from a pack, in the order in which they are asked for.
#[derive(Debug)]
pub struct Packing<'a> {
    pool: &'a Pool,
    pack: Option<&'a Pack>,
    done: RefCell<Vec<Matrix>>,
}

impl<'a> Packing<'a> {
    /// Packs everything.
    pub fn new(pool: &'a Pool) -> Self {
        Self { pool, pack: None, done: RefCell::default() }
    }

    /// Takes everything from `pack`.
    pub fn kept(pool: &'a Pool, pack: &'a Pack) -> Self {
        Self { pack: Some(pack), ..Self::new(pool) }
    }

    /// The next matrix, as [`Matrix::build`] makes it.
    ///
    /// # Errors
    /// The first of `fill`; [`LoadError::Kept`] when the pack has another one in its place.
    pub(in crate::model::load) fn matrix(
        &self,
        n: usize,
        k: usize,
        format: Format,
        fill: impl Fn(Range<usize>, &mut Tile<'_>) -> Result<(), LoadError> + Sync,
    ) -> Result<Matrix, LoadError> {
        let index = self.done.borrow().len();
        let matrix = match self.pack {
            None => Matrix::build(self.pool, n, k, format, fill)?,
            Some(pack) => {
                pack.matrix(index, n, k, format).ok_or(LoadError::Kept { index, n, k })?
            }
        };
        self.done.borrow_mut().push(matrix.clone());
        Ok(matrix)
    }

    /// All matrices, in the order in which they were asked for.
    pub fn into_matrices(self) -> Vec<Matrix> {
        self.done.into_inner()
    }
}
