//! Tensors of a GGUF file as matrices and vectors, each used exactly once.

use std::collections::BTreeMap;

use tinygpt_kernels::Matrix;

use super::container::Tensor;
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
        let Tensor { dtype, range, .. } = self.take(name, &[n, k])?;
        let format = dtype.format().ok_or_else(|| unreadable(name, dtype))?;
        let row = range.len() / n;
        self.packing.matrix(n, k, format, |rows, tile| {
            let bytes = range.start + rows.start * row..range.start + rows.end * row;
            ggml::fill(dtype, &self.input.read(bytes)?, tile);
            Ok(())
        })
    }

    /// `name.weight`, `[n, k]`, and `name.bias` if the file has one.
    pub(super) fn linear(&mut self, name: &str, n: usize, k: usize) -> Result<Linear, LoadError> {
        let weight = self.matrix(&format!("{name}.weight"), n, k)?;
        let bias = format!("{name}.bias");
        let bias = self.contains(&bias).then(|| self.vector(&bias, n)).transpose()?;
        Ok(Linear { weight, bias })
    }

    /// The gain of an RMSNorm.
    pub(super) fn norm(&mut self, name: &str, width: usize) -> Result<Norm, LoadError> {
        Ok(Norm { weight: self.vector(&format!("{name}.weight"), width)?, bias: None })
    }

    /// A vector of plain numbers.
    pub(super) fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, LoadError> {
        let Tensor { dtype, range, .. } = self.take(name, &[length])?;
        ggml::plain(dtype, &self.input.read(range)?).ok_or_else(|| unreadable(name, dtype))
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
