//! Where the readers of model files get their matrices: packed now, found in a pack, or not at all.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

use tinygpt_kernels::{Format, Matrix, Piece, Pool, Tile};

use super::Pack;
use crate::model::load::LoadError;
use crate::model::load::input::Input;
use crate::sys::memory::Arena;

/// Packs matrices on a pool, or takes them from a pack, in the order in which they are asked for.
#[derive(Debug)]
pub struct Packing<'a> {
    origin: Origin<'a>,
    /// Where what is packed here lies.
    arena: Arena,
    done: RefCell<Vec<Matrix>>,
}

/// Where matrices come from.
#[derive(Debug)]
enum Origin<'a> {
    /// The model file, packed here.
    Pool(&'a Pool),
    /// An earlier process, which packed them.
    Pack(&'a Pack),
    /// Nowhere: they have shapes, and no weights.
    Nowhere,
}

impl<'a> Packing<'a> {
    /// Packs everything.
    pub fn new(pool: &'a Pool) -> Self {
        Self::from(Origin::Pool(pool))
    }

    /// Takes everything from `pack`.
    pub fn kept(pack: &'a Pack) -> Self {
        Self::from(Origin::Pack(pack))
    }

    /// Gives [outlines](Matrix::outline): a file is read but for its matrices, and whatever is
    /// wrong with it is found all the same.
    pub fn outline() -> Self {
        Self::from(Origin::Nowhere)
    }

    fn from(origin: Origin<'a>) -> Self {
        Self { origin, arena: Arena::default(), done: RefCell::default() }
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
        let matrix = match self.origin {
            Origin::Pool(pool) => {
                Matrix::build(pool, &|bytes| self.take(bytes), n, k, format, fill)?
            }
            Origin::Pack(pack) => {
                pack.matrix(index, n, k, format).ok_or(LoadError::Kept { index, n, k })?
            }
            Origin::Nowhere => Matrix::outline(n, k, format),
        };
        self.done.borrow_mut().push(matrix.clone());
        Ok(matrix)
    }

    /// Where the heap would scatter them over small pages, matrices lie one behind the other in huge
    /// ones.
    fn take(&self, bytes: usize) -> Option<Box<dyn Piece>> {
        Some(Box::new(self.arena.take(bytes).ok()?))
    }

    /// What `fill` needs of the file as a whole: nothing where it is not called.
    pub(in crate::model::load) fn bytes<'b>(
        &self,
        input: Input<'b>,
        range: Range<usize>,
    ) -> Result<Cow<'b, [u8]>, LoadError> {
        match self.origin {
            Origin::Pool(_) => input.read(range),
            Origin::Pack(_) | Origin::Nowhere => Ok(Cow::default()),
        }
    }

    /// The numbers `[n][k]` of a matrix that it gave; zeros of one without weights.
    pub(in crate::model::load) fn numbers(&self, matrix: &Matrix) -> Vec<f32> {
        let k = matrix.k();
        let mut numbers = vec![0.0; matrix.n() * k];
        if !matches!(self.origin, Origin::Nowhere) {
            numbers.chunks_exact_mut(k).enumerate().for_each(|(n, row)| matrix.row(n, row));
        }
        numbers
    }

    /// All matrices, in the order in which they were asked for.
    pub fn into_matrices(self) -> Vec<Matrix> {
        self.done.into_inner()
    }
}
