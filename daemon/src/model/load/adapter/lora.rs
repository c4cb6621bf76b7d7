//! `.lora`: the adapters of TinyGPT.
//!
//! ```text
//!  0        4          8         12         12+H
//!  | "TGLA" | u32 ver. | u32 H   | JSON (H) | A, B of each entry, f32
//!
//!  JSON: { "rank": r, "alpha": a, "entries": [
//!            {"name": "blocks.0.attn.q_proj", "loraAShape": [in, r], "loraBShape": [r, out]}, .. ] }
//! ```
//!
//! The scale is `alpha / rank`: the format does not say when a training used another one.

use serde::Deserialize;

use super::{Adapter, Base, Change, Target, transposed};
use crate::model::load::cursor::Cursor;
use crate::model::load::input::Input;
use crate::model::load::{LoadError, first_bytes, ggml};

const MAGIC: &[u8; 4] = b"TGLA";

/// What is read of the header.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    rank: usize,
    alpha: f64,
    base_layers: Option<u64>,
    base_d_model: Option<u64>,
    base_heads: Option<u64>,
    base_ctx: Option<u64>,
    entries: Vec<Entry>,
}

/// The change of one layer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    name: String,
    lora_a_shape: Vec<u64>,
    lora_b_shape: Vec<u64>,
    lora_m_shape: Option<Vec<u64>>,
}

/// Reads a whole file.
pub(super) fn load(input: Input<'_>) -> Result<Adapter, LoadError> {
    let (header, begin) = input.with_head(|head| read_header(head, input.len()))?;
    let mut cursor = Cursor::head(&[], input.len());
    cursor.skip(begin as u64, "the header")?;
    let scale = (header.alpha / header.rank as f64) as f32;
    let read = |entry: &Entry| entry.read(header.rank, scale, &mut cursor, input);
    let changes = header.entries.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    if cursor.left() > 0 {
        return Err(LoadError::Hole { begin: cursor.at(), end: input.len() });
    }
    Adapter::new(Some(header.base()), changes)
}

/// The header, and where it ends.
fn read_header(head: &[u8], length: usize) -> Result<(Header, usize), LoadError> {
    let mut cursor = Cursor::head(head, length);
    if head.first_chunk() != Some(MAGIC) {
        return Err(LoadError::AdapterMagic { found: first_bytes(head) });
    }
    cursor.take(4, "the magic number")?;
    let version = cursor.u32("the version")?;
    if !(1..=2).contains(&version) {
        let hint = "versions 1 and 2 are";
        return Err(LoadError::Version { format: ".lora", found: version, hint });
    }
    let length = cursor.u32("the header length")?;
    let json = cursor.take(length.into(), "the JSON header")?;
    let header: Header = serde_json::from_slice(json)
        .map_err(|error| LoadError::Header { reason: error.to_string() })?;
    header.check()?;
    Ok((header, cursor.at()))
}

impl Header {
    fn check(&self) -> Result<(), LoadError> {
        let refuse = |what: &str, found: String, expected: &str| {
            Err(LoadError::OutOfRange { what: what.into(), found, expected: expected.into() })
        };
        match (self.rank, self.alpha) {
            (0, _) => refuse("rank", "0".into(), "positive"),
            (_, alpha) if !alpha.is_finite() => refuse("alpha", alpha.to_string(), "finite"),
            _ => Ok(()),
        }
    }

    fn base(&self) -> Base {
        Base([
            ("baseLayers", self.base_layers),
            ("baseDModel", self.base_d_model),
            ("baseHeads", self.base_heads),
            ("baseCtx", self.base_ctx),
        ])
    }
}

impl Entry {
    /// Reads what comes next, which is this entry's.
    fn read(
        &self,
        rank: usize,
        scale: f32,
        cursor: &mut Cursor<'_>,
        input: Input<'_>,
    ) -> Result<Change, LoadError> {
        if self.lora_m_shape.is_some() {
            let what = format!("\"loraMShape\" of \"{}\"", self.name);
            return Err(LoadError::Unsupported { what, detail: "DoRA".into() });
        }
        let target = Target::named(&self.name).ok_or_else(|| LoadError::UnexpectedTensor {
            tensor: self.name.clone(),
            architecture: "lora",
        })?;
        let numbers = |shape: &[u64], rank_at: usize, cursor: &mut Cursor<'_>| {
            let bytes = self.bytes(shape, rank_at, rank)?;
            let begin = cursor.at();
            cursor.skip(bytes, "the numbers of an entry")?;
            let bytes = input.read(begin..cursor.at())?;
            Ok::<_, LoadError>(ggml::plain(ggml::GgmlType::F32, &bytes).unwrap_or_default())
        };
        let down = transposed(&numbers(&self.lora_a_shape, 1, cursor)?, rank);
        let up = numbers(&self.lora_b_shape, 0, cursor)?;
        let up = transposed(&up, up.len() / rank);
        Change { module: self.name.clone(), target, rank, down, up }.scaled(scale)
    }

    /// Bytes of a matrix of f32 with a rank at `rank_at` of its shape.
    fn bytes(&self, shape: &[u64], rank_at: usize, rank: usize) -> Result<u64, LoadError> {
        let tensor = || self.name.clone();
        match *shape {
            [a, b] if shape[rank_at] == rank as u64 && a > 0 && b > 0 => a
                .checked_mul(b)
                .and_then(|numbers| numbers.checked_mul(4))
                .ok_or_else(|| LoadError::Overflow { tensor: tensor(), dims: shape.into() }),
            _ => {
                let mut expected = vec![1; 2];
                expected[rank_at] = rank as u64;
                Err(LoadError::Shape { tensor: tensor(), expected, found: shape.into() })
            }
        }
    }
}
