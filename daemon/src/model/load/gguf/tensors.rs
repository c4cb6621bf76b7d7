//! Tensors of a GGUF file as matrices and vectors, each used exactly once.

use std::collections::BTreeMap;
use std::ops::Range;

use tinygpt_kernels::Matrix;

use super::container::Tensor;
use crate::model::load::finite;
use crate::model::load::ggml::{self, GgmlType};
use crate::model::load::input::Input;
use crate::model::load::{Linear, LoadError, Norm, Packing};

/// The tensors that have not been used yet.
#[derive(Debug)]
pub(super) struct Tensors<'a> {
    unused: BTreeMap<&'a str, Tensor>,
    input: Input<'a>,
    architecture: &'static str,
    packing: &'a Packing<'a>,
}

impl<'a> Tensors<'a> {
    pub(super) fn new(
        unused: BTreeMap<&'a str, Tensor>,
        input: Input<'a>,
        architecture: &'static str,
        packing: &'a Packing<'a>,
    ) -> Self {
        Self { unused, input, architecture, packing }
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.unused.contains_key(name)
    }

    /// The element type that holds the most elements.
    pub(super) fn commonest_type(&self) -> &'static str {
        let mut elements: BTreeMap<GgmlType, u64> = BTreeMap::new();
        for tensor in self.unused.values() {
            *elements.entry(tensor.dtype).or_default() += tensor.shape.iter().product::<u64>();
        }
        let commonest = elements.into_iter().max_by_key(|&(_, elements)| elements);
        commonest.map_or("none", |(dtype, _)| dtype.name())
    }

    /// A `[n, k]` matrix in its own precision.
    pub(super) fn matrix(&mut self, name: &str, n: usize, k: usize) -> Result<Matrix, LoadError> {
        let tensor = self.take(name, &[n, k])?;
        self.rows(name, &tensor, 0..n, k)
    }

    pub(super) fn optional_matrix(
        &mut self,
        name: &str,
        n: usize,
        k: usize,
    ) -> Result<Option<Matrix>, LoadError> {
        self.contains(name).then(|| self.matrix(name, n, k)).transpose()
    }

    /// `name.weight`, `[n, k]`, and `name.bias` if the file has one.
    pub(super) fn linear(&mut self, name: &str, n: usize, k: usize) -> Result<Linear, LoadError> {
        let [linear] = self.fused(name, [n], k)?;
        Ok(linear)
    }

    /// Several projections of the same rows in one tensor, one below the other.
    pub(super) fn fused<const PARTS: usize>(
        &mut self,
        name: &str,
        parts: [usize; PARTS],
        k: usize,
    ) -> Result<[Linear; PARTS], LoadError> {
        let n = parts.iter().fold(0usize, |n, &part| n.saturating_add(part));
        let weight = format!("{name}.weight");
        let tensor = self.take(&weight, &[n, k])?;
        let bias = format!("{name}.bias");
        let bias = self.contains(&bias).then(|| self.vector(&bias, n)).transpose()?;
        let mut start = 0;
        let mut linears = Vec::with_capacity(PARTS);
        for part in parts {
            let rows = start..start + part;
            let bias = bias.as_ref().map(|bias| bias[rows.clone()].to_vec());
            linears.push(Linear::new(self.rows(&weight, &tensor, rows, k)?, bias));
            start += part;
        }
        Ok(linears.try_into().expect("as many as there are parts"))
    }

    /// Some rows of a tensor of rows of `k`, in its own precision.
    fn rows(
        &self,
        name: &str,
        tensor: &Tensor,
        rows: Range<usize>,
        k: usize,
    ) -> Result<Matrix, LoadError> {
        let dtype = tensor.dtype;
        let format = dtype.format().ok_or_else(|| unreadable(name, dtype))?;
        let row = k / dtype.block() * dtype.block_bytes();
        let (input, start) = (self.input, tensor.range.start + rows.start * row);
        self.packing.matrix(rows.len(), k, format, |rows, tile| {
            let bytes = start + rows.start * row..start + rows.end * row;
            ggml::fill(name, dtype, &input.read(bytes)?, tile)
        })
    }

    /// The gain of an RMSNorm.
    pub(super) fn norm(&mut self, name: &str, width: usize) -> Result<Norm, LoadError> {
        Ok(Norm { weight: self.vector(&format!("{name}.weight"), width)?, bias: None })
    }

    /// Gain and bias of a LayerNorm.
    pub(super) fn layer_norm(&mut self, name: &str, width: usize) -> Result<Norm, LoadError> {
        let bias = self.vector(&format!("{name}.bias"), width)?;
        Ok(Norm { bias: Some(bias), ..self.norm(name, width)? })
    }

    /// A vector of plain numbers.
    pub(super) fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, LoadError> {
        self.plain(name, &[length])
    }

    /// Plain numbers of a shape, outermost first.
    pub(super) fn plain(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let Tensor { dtype, range, .. } = self.take(name, shape)?;
        let numbers = ggml::plain(dtype, &self.input.read(range)?);
        let numbers = numbers.ok_or_else(|| unreadable(name, dtype))?;
        finite::numbers(name, &numbers)?;
        Ok(numbers)
    }

    /// Fails if a tensor has found no use.
    pub(super) fn finish(self) -> Result<(), LoadError> {
        match self.unused.first_key_value() {
            None => Ok(()),
            Some((name, _)) => Err(LoadError::UnexpectedTensor {
                tensor: (*name).into(),
                architecture: self.architecture,
            }),
        }
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let tensor = self.unused.remove(name);
        let tensor = tensor.ok_or_else(|| LoadError::MissingTensor { tensor: name.into() })?;
        let expected: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        if tensor.shape == expected {
            return Ok(tensor);
        }
        Err(LoadError::Shape { tensor: name.into(), expected, found: tensor.shape })
    }
}

fn unreadable(name: &str, dtype: GgmlType) -> LoadError {
    LoadError::Unsupported {
        what: format!("the element type of tensor \"{name}\""),
        detail: dtype.name().into(),
    }
}
