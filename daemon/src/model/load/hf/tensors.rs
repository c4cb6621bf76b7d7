//! Tensors of all files of a directory as matrices and vectors, each used exactly once.

use std::collections::BTreeMap;
use std::ops::Range;

use tinygpt_kernels::{Format, Matrix};

use super::Directory;
use super::quantised::{Quantised, Rows, scale_type};
use crate::model::load::finite;
use crate::model::load::ggml::{self, GgmlType};
use crate::model::load::input::Input;
use crate::model::load::mlx::{Choice, Quantization, Scheme};
use crate::model::load::safetensors::{self, Dtype, Tensor};
use crate::model::load::{Linear, LoadError, Norm, Packing};

/// The tensors that have not been used yet.
#[derive(Debug)]
pub(super) struct Tensors<'a> {
    unused: BTreeMap<String, Stored<'a>>,
    files: Vec<String>,
    architecture: &'static str,
    quantization: Option<Quantization>,
    packing: &'a Packing<'a>,
}

/// A tensor in one of the files.
#[derive(Debug)]
struct Stored<'a> {
    tensor: Tensor,
    input: Input<'a>,
    /// Which one.
    file: usize,
}

impl<'a> Tensors<'a> {
    /// Reads the heads of all files.
    pub(super) fn open(
        directory: &'a Directory,
        architecture: &'static str,
        quantization: Option<Quantization>,
        packing: &'a Packing<'a>,
    ) -> Result<Self, LoadError> {
        let files: Vec<String> = directory.weights().iter().map(|file| file.name()).collect();
        let mut unused = BTreeMap::new();
        for (file, model) in directory.weights().iter().enumerate() {
            let within = |error: LoadError| error.within(&files[file]);
            let input = model.input().map_err(within)?;
            let tensors = input.with_head(|head| safetensors::parse(head, input.len()));
            for (name, tensor) in tensors.map_err(within)? {
                if unused.insert(name.clone(), Stored { tensor, input, file }).is_some() {
                    return Err(within(LoadError::Duplicate { what: "tensor", name }));
                }
            }
        }
        let tensors = Self { unused, files, architecture, quantization, packing };
        directory.index.as_ref().map_or(Ok(()), |index| tensors.check(index))?;
        Ok(tensors)
    }

    /// Whether every tensor of an index is where it says.
    fn check(&self, index: &BTreeMap<String, String>) -> Result<(), LoadError> {
        let found = |name: &String| self.unused.get(name).map(|found| &self.files[found.file]);
        match index.iter().find(|&(name, file)| found(name) != Some(file)) {
            None => Ok(()),
            Some((tensor, file)) => {
                Err(LoadError::Misplaced { tensor: tensor.clone(), file: file.clone() })
            }
        }
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.unused.contains_key(name)
    }

    /// The element type that holds the most elements.
    pub(super) fn commonest_type(&self) -> &'static str {
        let mut bytes: BTreeMap<Dtype, usize> = BTreeMap::new();
        for Stored { tensor, .. } in self.unused.values() {
            *bytes.entry(tensor.dtype).or_default() += tensor.range.len();
        }
        let elements = |&(dtype, bytes): &(Dtype, usize)| bytes as u64 * 8 / dtype.bits();
        bytes.into_iter().max_by_key(elements).map_or("none", |(dtype, _)| dtype.name())
    }

    /// Tensors that have no influence.
    pub(super) fn ignore(&mut self, without: impl Fn(&str) -> bool) {
        self.unused.retain(|name, _| !without(name));
    }

    /// A matrix `[n, k]` in its own precision.
    pub(super) fn matrix(&mut self, name: &str, n: usize, k: usize) -> Result<Matrix, LoadError> {
        let (file, weight) = self.weight(name, n, k)?;
        self.rows(&weight, 0..n, k).map_err(|error| self.within(file, error))
    }

    /// A layer `[n, k]`, with a bias or without one.
    pub(super) fn linear(
        &mut self,
        name: &str,
        n: usize,
        k: usize,
        bias: bool,
    ) -> Result<Linear, LoadError> {
        let weight = self.matrix(&format!("{name}.weight"), n, k)?;
        let numbers = || self.numbers(&format!("{name}.bias"), &[n]);
        Ok(Linear::new(weight, bias.then(numbers).transpose()?))
    }

    /// Layers `[n, k]` without biases that are stored below one another.
    pub(super) fn fused<const P: usize>(
        &mut self,
        name: &str,
        n: [usize; P],
        k: usize,
    ) -> Result<[Linear; P], LoadError> {
        let (file, weight) = self.weight(&format!("{name}.weight"), sum(n), k)?;
        let layer = |rows| Ok(Linear::new(self.rows(&weight, rows, k)?, None));
        each(parts(n), layer).map_err(|error| self.within(file, error))
    }

    /// Matrices `[n, k]` that are stored side by side, as `[k, n of all]`.
    pub(super) fn transposed<const P: usize>(
        &mut self,
        name: &str,
        n: [usize; P],
        k: usize,
    ) -> Result<[Matrix; P], LoadError> {
        let plain = self.take(name, &[k, sum(n)])?;
        let within = |error| self.within(plain.file, error);
        // All of it at once: the rows of a tile are everywhere.
        let bytes = self.packing.bytes(plain.input, plain.range.clone()).map_err(within)?;
        each(parts(n), |columns| self.columns(&plain, &bytes, columns, k)).map_err(within)
    }

    /// Gain and bias of a LayerNorm.
    pub(super) fn layer_norm(&mut self, name: &str, width: usize) -> Result<Norm, LoadError> {
        Ok(Norm {
            weight: self.numbers(&format!("{name}.weight"), &[width])?,
            bias: Some(self.numbers(&format!("{name}.bias"), &[width])?),
        })
    }

    /// Numbers that are no product's.
    pub(super) fn numbers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let plain = self.take(name, shape)?;
        plain.numbers().map_err(|error| self.within(plain.file, error))
    }

    /// The same of a table `[n, k]` that may be quantised.
    pub(super) fn table(&mut self, name: &str, n: usize, k: usize) -> Result<Vec<f32>, LoadError> {
        let (file, weight) = self.weight(name, n, k)?;
        let numbers = match &weight {
            Weight::Plain(plain) => plain.numbers(),
            Weight::Quantised(_) => {
                self.rows(&weight, 0..n, k).map(|matrix| self.packing.numbers(&matrix))
            }
        };
        numbers.map_err(|error| self.within(file, error))
    }

    /// Fails if a tensor has found no use.
    pub(super) fn finish(self) -> Result<(), LoadError> {
        let Some((name, stored)) = self.unused.first_key_value() else { return Ok(()) };
        let (tensor, architecture) = (name.clone(), self.architecture);
        let error = LoadError::UnexpectedTensor { tensor, architecture };
        Err(self.within(stored.file, error))
    }

    /// The weights `[n, k]` of a layer, and the file that they are in.
    fn weight(&mut self, name: &str, n: usize, k: usize) -> Result<(usize, Weight<'a>), LoadError> {
        match self.scheme(name, k)? {
            Some(scheme) => self.quantised(name, scheme, n, k),
            None => self.take(name, &[n, k]).map(|plain| (plain.file, Weight::Plain(plain))),
        }
    }

    /// How the weights of a layer are quantised, if they are.
    fn scheme(&self, name: &str, k: usize) -> Result<Option<Scheme>, LoadError> {
        let Some(quantization) = &self.quantization else { return Ok(None) };
        match quantization.choice(module(name)) {
            Choice::Plain => return Ok(None),
            Choice::Quantised(scheme) => return Ok(Some(scheme)),
            Choice::Unsaid => {}
        }
        let scales = self.unused.get(&format!("{}.scales", module(name)));
        let Some((weight, scales)) = self.unused.get(name).zip(scales) else { return Ok(None) };
        let widths = [weight, scales].map(|one| one.tensor.shape.last().copied().unwrap_or(0));
        let scheme = scale_type(scales.tensor.dtype)
            .map(|scale_type| Scheme::inferred(name, k, (widths[0], widths[1]), scale_type));
        scheme.transpose().map_err(|error| self.within(weight.file, error))
    }

    fn quantised(
        &mut self,
        name: &str,
        scheme: Scheme,
        n: usize,
        k: usize,
    ) -> Result<(usize, Weight<'a>), LoadError> {
        let (words, groups) = scheme.widths(name, k)?;
        let codes = self.shaped(name, &[n, words])?;
        let scales_name = format!("{}.scales", module(name));
        let scales = self.shaped(&scales_name, &[n, groups])?;
        let biases_name = format!("{}.biases", module(name));
        let biases = scheme.has_biases().then(|| self.shaped(&biases_name, &[n, groups]));
        let biases = biases.transpose()?;
        let known = scale_type(scales.tensor.dtype).filter(|&scale_type| scheme.takes(scale_type));
        let scale_type = known.ok_or_else(|| self.unreadable(&scales_name, &scales))?;
        if codes.tensor.dtype != Dtype::U32 {
            return Err(self.unreadable(name, &codes));
        }
        let others = |biases: &&Stored<'_>| biases.tensor.dtype != scales.tensor.dtype;
        if let Some(biases) = biases.as_ref().filter(others) {
            return Err(self.unreadable(&biases_name, biases));
        }
        let rows = |Stored { tensor, input, .. }: Stored<'a>| Rows {
            input,
            row: tensor.range.len() / n,
            range: tensor.range,
        };
        let (file, name) = (codes.file, name.to_owned());
        let (codes, scales, biases) = (rows(codes), rows(scales), biases.map(rows));
        let quantised = Quantised { name, scheme, scale_type, codes, scales, biases };
        Ok((file, Weight::Quantised(quantised)))
    }

    /// A tensor of this shape and of plain numbers.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Plain<'a>, LoadError> {
        let stored = self.shaped(name, shape)?;
        let dtype = stored.tensor.dtype.plain().ok_or_else(|| self.unreadable(name, &stored))?;
        let Stored { tensor, input, file } = stored;
        Ok(Plain { name: name.into(), dtype, range: tensor.range, input, file })
    }

    /// A tensor of this shape.
    fn shaped(&mut self, name: &str, shape: &[usize]) -> Result<Stored<'a>, LoadError> {
        let stored = self.unused.remove(name);
        let stored = stored.ok_or_else(|| LoadError::MissingTensor { tensor: name.into() })?;
        let expected: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        if stored.tensor.shape == expected {
            return Ok(stored);
        }
        let (tensor, found) = (name.into(), stored.tensor.shape);
        Err(self.within(stored.file, LoadError::Shape { tensor, expected, found }))
    }

    fn unreadable(&self, name: &str, stored: &Stored<'_>) -> LoadError {
        let what = format!("the element type of tensor \"{name}\"");
        let detail = stored.tensor.dtype.name().into();
        self.within(stored.file, LoadError::Unsupported { what, detail })
    }

    fn within(&self, file: usize, error: LoadError) -> LoadError {
        error.within(&self.files[file])
    }

    /// Some rows of `[n, k]`, read where they are packed.
    fn rows(&self, weight: &Weight<'a>, rows: Range<usize>, k: usize) -> Result<Matrix, LoadError> {
        let plain = match weight {
            Weight::Plain(plain) => plain,
            Weight::Quantised(quantised) => {
                let format = quantised.scheme.format();
                return self.packing.matrix(rows.len(), k, format, |part, tile| {
                    quantised.fill(&(rows.start + part.start..rows.start + part.end), tile)
                });
            }
        };
        let (format, row) = (plain.format()?, k * plain.dtype.block_bytes());
        let begin = plain.range.start + rows.start * row;
        self.packing.matrix(rows.len(), k, format, |part, tile| {
            let bytes = begin + part.start * row..begin + part.end * row;
            ggml::fill(&plain.name, plain.dtype, &plain.input.read(bytes)?, tile)
        })
    }

    /// Some columns of `bytes`, the numbers of `[k, n]`, as the rows of a matrix.
    fn columns(
        &self,
        plain: &Plain<'a>,
        bytes: &[u8],
        columns: Range<usize>,
        k: usize,
    ) -> Result<Matrix, LoadError> {
        let (format, each) = (plain.format()?, plain.dtype.block_bytes());
        let stride = bytes.len() / k;
        self.packing.matrix(columns.len(), k, format, |part, tile| {
            let mut rows = vec![0; part.len() * k * each];
            for (lane, row) in rows.chunks_exact_mut(k * each).enumerate() {
                let column = (columns.start + part.start + lane) * each;
                for (at, number) in row.chunks_exact_mut(each).enumerate() {
                    number.copy_from_slice(&bytes[at * stride + column..][..each]);
                }
            }
            ggml::fill(&plain.name, plain.dtype, &rows, tile)
        })
    }
}

/// The weights of a layer that were taken.
#[derive(Debug)]
enum Weight<'a> {
    Plain(Plain<'a>),
    Quantised(Quantised<'a>),
}

/// A tensor of plain numbers that was taken.
#[derive(Debug)]
struct Plain<'a> {
    name: String,
    dtype: GgmlType,
    range: Range<usize>,
    input: Input<'a>,
    file: usize,
}

impl Plain<'_> {
    fn numbers(&self) -> Result<Vec<f32>, LoadError> {
        let bytes = self.input.read(self.range.clone())?;
        let numbers = ggml::plain(self.dtype, &bytes).unwrap_or_default();
        finite::numbers(&self.name, &numbers)?;
        Ok(numbers)
    }

    fn format(&self) -> Result<Format, LoadError> {
        let unreadable = || LoadError::Unsupported {
            what: "an element type".into(),
            detail: self.dtype.name().into(),
        };
        self.dtype.format().ok_or_else(unreadable)
    }
}

/// The path of a layer, from the name of its weights.
fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// The sizes of parts together, or what no tensor has.
pub(super) fn sum<const P: usize>(sizes: [usize; P]) -> usize {
    sizes.into_iter().fold(0, usize::saturating_add)
}

/// What lies one after another.
fn parts<const P: usize>(sizes: [usize; P]) -> [Range<usize>; P] {
    let mut end = 0;
    sizes.map(|size| {
        end += size;
        end - size..end
    })
}

/// What `make` makes of each, or its first error.
fn each<A, B, const P: usize>(
    of: [A; P],
    make: impl Fn(A) -> Result<B, LoadError>,
) -> Result<[B; P], LoadError> {
    let made: Vec<B> = of.into_iter().map(make).collect::<Result<_, _>>()?;
    Ok(made.try_into().unwrap_or_else(|_| unreachable!("one for each")))
}
