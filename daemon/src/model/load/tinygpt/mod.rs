//! `.tinygpt`: the model files of TinyGPT.
//!
//! ```text
//!  0        4          8           12         12+H    16+H
//!  | "TGPT" | u32 ver. | u32 H     | JSON (H) | step  | body
//! ```
//!
//! Nothing is aligned and nothing is checksummed.
//! The manifest lists tensors with `[out, in]` shapes, but the bytes of every linear weight are
//! stored `[in, out]`; embeddings are stored as listed. Rows of outputs are what the kernels want,
//! so linear weights are transposed here.
//!
//! Int4 blocks run along the stored order, so a block of a linear weight holds 64 *outputs* of one
//! input. Transposed, no two neighbours of a row share a scale: such weights become f32, the
//! smallest type that holds the products exactly. Embeddings stay packed.

mod body;
mod header;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use tinygpt_kernels::{Code, Format, Matrix};

use self::body::{BLOCK, Body, Elements, Place, array, nibble, scale};
use self::header::{Entry, Header};
use super::canon::Canon;
use super::cursor::Cursor;
use super::input::Input;
use super::{
    Attention, Checkpoint, Dense, Experts, Glimpse, GptBlock, GptConfig, GptWeights, Linear,
    LoadError, Mlp, Norm, Packing, Vocabulary, Weights, finite,
};

/// First four bytes of a `.tinygpt` file.
pub(super) const MAGIC: &[u8; 4] = b"TGPT";

/// The only one that such files have.
const ARCHITECTURE: &str = "gpt";

/// Tensors outside the blocks, in each block outside its MLP, and in an MLP.
const OUTER: u64 = 4;
const PER_BLOCK: u64 = 12;
const PER_MLP: u64 = 4;

/// Reads a file that begins with `head`.
pub(super) fn load(
    head: &[u8],
    input: Input<'_>,
    packing: &Packing<'_>,
) -> Result<Checkpoint, LoadError> {
    let mut cursor = Cursor::head(head, input.len());
    cursor.take(4, "the magic number")?;
    let header = read_header(&mut cursor)?;
    check_state_length(&header, &cursor)?;
    cursor.skip(4, "the step counter")?;
    let config = header.config.resolve()?;
    let layout = header.layout()?;
    let manifest = header.manifest.as_deref().unwrap_or_default();
    check_count(&config, manifest)?;
    let (body, places) = Body::new(input, cursor.at(), layout, manifest)?;
    let tensors = Tensors::new(body, manifest, &places, packing)?;
    checkpoint(config, &tensors)
}

/// What a file of `length` bytes that begins with `head` says of itself.
pub(super) fn glimpse(head: &[u8], length: usize) -> Result<Glimpse, LoadError> {
    let mut cursor = Cursor::head(head, length);
    cursor.take(4, "the magic number")?;
    let header = read_header(&mut cursor)?;
    Ok(Glimpse {
        format: "tinygpt",
        architecture: ARCHITECTURE.into(),
        quantisation: header.layout().map(|layout| layout.name().to_owned()).unwrap_or_default(),
        context: usize::try_from(header.config.context()).unwrap_or(0),
    })
}

fn read_header(cursor: &mut Cursor<'_>) -> Result<Header, LoadError> {
    let version = cursor.u32("the version")?;
    let hint = match version {
        1 => "it has no tensor list; re-export the model with a current TinyGPT",
        _ => "version 2 is",
    };
    let refusal = LoadError::Version { format: ".tinygpt", found: version, hint };
    if version != 2 {
        return Err(refusal);
    }
    let length = cursor.u32("the header length")?;
    let json = cursor.take(length.into(), "the JSON header")?;
    let header: Header = serde_json::from_slice(json)
        .map_err(|error| LoadError::Header { reason: error.to_string() })?;
    match header.manifest {
        Some(_) => Ok(header),
        None => Err(LoadError::MissingKey { key: "manifest".into() }),
    }
}

fn check_state_length(header: &Header, cursor: &Cursor<'_>) -> Result<(), LoadError> {
    match header.state_byte_length {
        Some(need) if need > cursor.left() as u64 => Err(LoadError::Truncated {
            what: "the body",
            need,
            at: cursor.at(),
            left: cursor.left(),
        }),
        _ => Ok(()),
    }
}

/// Before any loop over the layers that `config` claims.
fn check_count(config: &GptConfig, manifest: &[Entry]) -> Result<(), LoadError> {
    // Beside the experts there is a router.
    let mlp = config.experts.map_or(PER_MLP, |experts| 1 + PER_MLP * experts.count as u64);
    let expected = (PER_BLOCK + mlp).saturating_mul(config.layers as u64).saturating_add(OUTER);
    if manifest.len() as u64 == expected {
        return Ok(());
    }
    Err(LoadError::OutOfRange {
        what: "the number of tensors in the manifest".into(),
        found: manifest.len().to_string(),
        expected: format!("{expected}, as {} layers have", config.layers),
    })
}

fn checkpoint(config: GptConfig, tensors: &Tensors<'_>) -> Result<Checkpoint, LoadError> {
    let quantisation = tensors.body.layout().name().to_owned();
    Ok(Checkpoint {
        tokenizer: Canon::default().text("vocabulary", "bytes").digest("tokenizer"),
        weights: Weights::Gpt(weights(config, tensors)?),
        vocabulary: Vocabulary::Bytes,
        format: "tinygpt",
        architecture: ARCHITECTURE.into(),
        quantisation,
        chat_template: None,
    })
}

fn weights(config: GptConfig, tensors: &Tensors<'_>) -> Result<GptWeights, LoadError> {
    let GptConfig { width, context, vocab, .. } = config;
    let blocks = (0..config.layers).map(|layer| block(&config, tensors, layer));
    Ok(GptWeights {
        token_embedding: tensors.rows("token_embedding.weight", vocab, width)?,
        position_embedding: tensors.values("position_embedding.weight", &[context, width])?,
        final_norm: tensors.norm("ln_final", width)?,
        head: None,
        blocks: blocks.collect::<Result<_, _>>()?,
        config,
    })
}

fn block(config: &GptConfig, tensors: &Tensors<'_>, layer: usize) -> Result<GptBlock, LoadError> {
    let GptConfig { width, heads, kv_heads, .. } = *config;
    let keys = kv_heads * (width / heads);
    let name = |part: &str| format!("blocks.{layer}.{part}");
    Ok(GptBlock {
        attention: Attention {
            norm: tensors.norm(&name("ln1"), width)?,
            q: tensors.linear(&name("attn.q_proj"), width, width)?,
            k: tensors.linear(&name("attn.k_proj"), keys, width)?,
            v: tensors.linear(&name("attn.v_proj"), keys, width)?,
            o: tensors.linear(&name("attn.o_proj"), width, width)?,
            q_norm: None,
            k_norm: None,
        },
        norm: tensors.norm(&name("ln2"), width)?,
        mlp: match config.experts {
            None => Mlp::Dense(dense(config, tensors, &name("mlp"))?),
            Some(experts) => Mlp::Experts(Experts {
                router: Linear::new(
                    tensors.weight(&name("moe.router"), experts.count, width)?,
                    None,
                ),
                experts: (0..experts.count)
                    .map(|i| dense(config, tensors, &name(&format!("moe.experts.{i}"))))
                    .collect::<Result<_, _>>()?,
            }),
        },
    })
}

fn dense(config: &GptConfig, tensors: &Tensors<'_>, name: &str) -> Result<Dense, LoadError> {
    let GptConfig { width, mlp, .. } = *config;
    Ok(Dense {
        fc_in: tensors.linear(&format!("{name}.fc_in"), mlp, width)?,
        fc_out: tensors.linear(&format!("{name}.fc_out"), width, mlp)?,
    })
}

/// The tensors of a file by name.
struct Tensors<'a> {
    body: Body<'a>,
    by_name: BTreeMap<&'a str, (&'a [u64], Place)>,
    packing: &'a Packing<'a>,
}

impl<'a> Tensors<'a> {
    fn new(
        body: Body<'a>,
        manifest: &'a [Entry],
        places: &[Place],
        packing: &'a Packing<'a>,
    ) -> Result<Self, LoadError> {
        let mut by_name = BTreeMap::new();
        for (entry, place) in manifest.iter().zip(places) {
            if by_name.insert(entry.name.as_str(), (entry.shape.as_slice(), *place)).is_some() {
                return Err(LoadError::Duplicate { what: "tensor", name: entry.name.clone() });
            }
        }
        Ok(Self { body, by_name, packing })
    }

    fn place(&self, name: &str, shape: &[usize]) -> Result<Place, LoadError> {
        let Some((found, place)) = self.by_name.get(name) else {
            return Err(LoadError::MissingTensor { tensor: name.into() });
        };
        let expected: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        if **found == expected {
            return Ok(*place);
        }
        Err(LoadError::Shape { tensor: name.into(), expected, found: found.to_vec() })
    }

    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let place = self.place(name, shape)?;
        let elements = self.body.elements(place, Input::read)?;
        let values: Vec<_> = (0..place.elements).map(|index| elements.f32(index)).collect();
        finite::numbers(name, &values)?;
        Ok(values)
    }

    fn norm(&self, name: &str, width: usize) -> Result<Norm, LoadError> {
        Ok(Norm {
            weight: self.values(&format!("{name}.weight"), &[width])?,
            bias: Some(self.values(&format!("{name}.bias"), &[width])?),
        })
    }

    /// An embedding: stored as listed, `[n, k]`.
    fn rows(&self, name: &str, n: usize, k: usize) -> Result<Matrix, LoadError> {
        let elements = self.elements(self.place(name, &[n, k])?)?;
        match &elements {
            Elements::Int4 { scales, values } if k.is_multiple_of(BLOCK) => {
                self.packed(name, [scales, values], n, k)
            }
            _ => self.matrix(name, &elements, [n, k], |row, column| row * k + column),
        }
    }

    fn linear(&self, name: &str, n: usize, k: usize) -> Result<Linear, LoadError> {
        let weight = self.weight(name, n, k)?;
        let bias = self.values(&format!("{name}.bias"), &[n])?;
        Ok(Linear::new(weight, Some(bias)))
    }

    /// A linear weight: listed `[n, k]`, stored `[k, n]`.
    fn weight(&self, name: &str, n: usize, k: usize) -> Result<Matrix, LoadError> {
        let name = format!("{name}.weight");
        let elements = self.elements(self.place(&name, &[n, k])?)?;
        self.matrix(&name, &elements, [n, k], |row, column| column * n + row)
    }

    /// The elements of a matrix, as far as its packing looks at them.
    fn elements(&self, place: Place) -> Result<Elements<'a>, LoadError> {
        self.body.elements(place, |input, range| self.packing.bytes(input, range))
    }

    /// A matrix whose elements lie where `stored(row, column)` says.
    fn matrix(
        &self,
        name: &str,
        elements: &Elements<'_>,
        [n, k]: [usize; 2],
        stored: impl Fn(usize, usize) -> usize + Sync,
    ) -> Result<Matrix, LoadError> {
        let half = matches!(elements, Elements::F16(_));
        let format = if half { Format::F16 } else { Format::F32 };
        self.packing.matrix(n, k, format, |rows, tile| {
            match elements {
                Elements::F16(bytes) => {
                    let half = |at| u16::from_le_bytes(array(bytes, at));
                    let halves = gather(&rows, k, |row, column| half(stored(row, column)));
                    finite::halves(name, &halves)?;
                    tile.f16(&halves);
                }
                _ => {
                    let number = |row, column| elements.f32(stored(row, column));
                    let numbers = gather(&rows, k, number);
                    finite::numbers(name, &numbers)?;
                    tile.f32(&numbers);
                }
            }
            Ok(())
        })
    }

    /// Int4 rows that are whole blocks.
    fn packed(
        &self,
        name: &str,
        [scales, values]: [&[u8]; 2],
        n: usize,
        k: usize,
    ) -> Result<Matrix, LoadError> {
        let code = Code { bits: 4, zero: 8 };
        let format = Format::Affine { code, group: BLOCK, min: false };
        self.packing.matrix(n, k, format, |rows, tile| {
            let elements = rows.start * k..rows.end * k;
            let blocks = elements.start / BLOCK..elements.end / BLOCK;
            let q: Vec<i8> = elements.map(|index| nibble(values, index)).collect();
            let scale: Vec<f32> = blocks.map(|block| scale(scales, block)).collect();
            finite::numbers(name, &scale)?;
            tile.affine(&q, &scale, None);
            Ok(())
        })
    }
}

/// Rows `[rows][k]`. Columns are the outer loop: a transposed source has the rows of one column
/// side by side.
fn gather<T: Copy + Default>(
    rows: &Range<usize>,
    k: usize,
    element: impl Fn(usize, usize) -> T,
) -> Vec<T> {
    let mut gathered = vec![T::default(); rows.len() * k];
    for column in 0..k {
        for (lane, row) in rows.clone().enumerate() {
            gathered[lane * k + column] = element(row, column);
        }
    }
    gathered
}
