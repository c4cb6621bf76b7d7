//! What is known about a loaded model.

use std::sync::Arc;
use std::time::Duration;

use super::adapters::AdapterInfo;
use super::job::Namespace;
use crate::kv::codec::Codec;
use crate::kv::key::{Digest, Fields};
use crate::kv::layout::Layout;
use crate::model::AdapterId;
use crate::store::Family;

/// What is known about a loaded model.
#[derive(Debug)]
pub struct ModelInfo {
    /// The name that requests use.
    pub name: String,
    /// Counts loads; a job made for another generation is answered with `Reloaded`.
    pub generation: u64,
    /// Where it came from; `None` for the built-in model.
    pub path: Option<std::path::PathBuf>,
    /// `tinygpt` or `gguf`.
    pub format: &'static str,
    /// `tinygpt`, `llama`, ..
    pub architecture: String,
    /// The weights' types, in words.
    pub quantisation: String,
    /// Most tokens of prompt and text together.
    pub context: usize,
    /// V.
    pub vocab: usize,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Numbers in its weight matrices.
    pub parameters: u64,
    /// How long the load took.
    pub load: Duration,
    /// C, the width of the residual stream.
    pub width: usize,
    /// H, to tell what the cache would hold without grouped heads.
    pub heads: usize,
    /// The kind of its tokenizer, in words.
    pub tokenizer: String,
    /// The arrangement of blocks for a codec's sake: `layouts[codec]` in the order of `Codec::ALL`.
    pub layouts: Vec<Arc<Layout>>,
    /// The fields of every fingerprint of this model; codec, layout, identity and namespace vary,
    /// and so does the adapter, which is none here.
    pub fields: Fields,
    /// The numerics label.
    pub numerics: &'static str,
    /// The codec of requests that name none.
    pub default_codec: Codec,
    /// What requests may add to it.
    pub adapters: Vec<AdapterInfo>,
}

impl ModelInfo {
    /// The arrangement of blocks under `codec`.
    pub fn layout(&self, codec: Codec) -> &Arc<Layout> {
        let index = Codec::ALL.iter().position(|known| *known == codec);
        &self.layouts[index.expect("ALL lists every codec")]
    }

    /// The adapter that has this field of a fingerprint; `None` where none is meant.
    pub(super) fn adapter(&self, digest: Digest) -> Option<AdapterId> {
        self.adapters.iter().position(|adapter| adapter.digest == digest).map(AdapterId)
    }

    /// The fields of chains with `codec` and an adapter in `namespace`.
    pub fn fields(&self, codec: Codec, adapter: Digest, namespace: &Namespace) -> Fields {
        Fields {
            adapter,
            codec: Digest::of("codec", codec.name().as_bytes()),
            layout: self.layout(codec).digest(),
            identity: namespace.identity,
            namespace: namespace.sub,
            ..self.fields
        }
    }

    /// Chains with `codec` and an adapter in `namespace`.
    pub(super) fn family(&self, codec: Codec, adapter: Digest, namespace: &Namespace) -> Family {
        let fields = self.fields(codec, adapter, namespace);
        let layout = Arc::clone(self.layout(codec));
        Family { fingerprint: fields.fingerprint(), fields, layout, width: self.width }
    }

    /// What a token would take under the default codec if every query head had KV of its own.
    pub fn mha_token_bytes(&self) -> usize {
        let layout = self.layout(self.default_codec);
        let layer = |layer| {
            let shape = layout.shape(layer);
            self.heads * (shape.k_dim + shape.v_dim) * layout.codec().bytes()
        };
        (0..layout.layers()).map(layer).sum()
    }

    /// Whether this model computed the chains with `fields`, under whichever codec, with whichever
    /// of its adapters and for whomever.
    pub fn computed(&self, fields: &Fields) -> bool {
        let adapter = self.adapter(fields.adapter).map_or(self.fields.adapter, |_| fields.adapter);
        let same = Fields {
            adapter,
            codec: fields.codec,
            layout: fields.layout,
            identity: fields.identity,
            namespace: fields.namespace,
            ..self.fields
        };
        same == *fields
    }
}
