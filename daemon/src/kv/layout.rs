//! Where the bytes of each layer and head lie inside a block.
//!
//! ```text
//! part of one window class, for 32 tokens
//! | layer a: K                         | layer a: V                  | layer b: K | ..
//! | head 0: [k_dim][32 tokens] | head 1 | head 0: [32][v_dim] | head 1 |
//! ```
//!
//! K is token-minor, so that the scores of 32 tokens are computed side by side without horizontal
//! sums; V is row-major, so that weighted rows are added side by side.
//! The arrangement is part of every fingerprint: change it and [`VERSION`] together.

use std::ops::Range;

use super::codec::Codec;
use super::key::Digest;

/// Tokens in a block.
pub const BLOCK: usize = 32;

/// The version of the arrangement.
pub const VERSION: u32 = 1;

/// The size of one layer's cache rows. `kv_heads`, never the number of query heads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LayerShape {
    /// G: heads that have keys and values of their own.
    pub kv_heads: usize,
    /// D of a key.
    pub k_dim: usize,
    /// D of a value.
    pub v_dim: usize,
}

/// What queries of a layer may see. Layers with one window form a class, and a block has one part
/// for each class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Window {
    /// Every earlier token and the query's own.
    Full,
    /// The query's own token and the `n - 1` before it; `n` is at least 1.
    Sliding(usize),
}

impl Window {
    /// How many tokens a query sees at most, if there is a bound.
    pub fn tokens(self) -> Option<usize> {
        match self {
            Self::Full => None,
            Self::Sliding(n) => Some(n),
        }
    }

    /// The positions that the query at `position` sees.
    pub fn seen(self, position: usize) -> Range<usize> {
        let end = position + 1;
        self.tokens().map_or(0, |tokens| end.saturating_sub(tokens))..end
    }
}

/// The arrangement of one model's blocks under one codec.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    codec: Codec,
    layers: Vec<Place>,
    /// The window of each class.
    classes: Vec<Window>,
    /// Bytes of the part of each class.
    parts: Vec<usize>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    shape: LayerShape,
    class: usize,
    k: Range<usize>,
    v: Range<usize>,
}

impl Layout {
    /// Arranges `layers` (each with its window) under `codec`.
    pub fn new(codec: Codec, layers: &[(LayerShape, Window)]) -> Self {
        let mut classes: Vec<Window> = Vec::new();
        let mut parts: Vec<usize> = Vec::new();
        let mut places = Vec::with_capacity(layers.len());
        for (shape, window) in layers {
            let class = classes.iter().position(|known| known == window).unwrap_or(classes.len());
            if class == classes.len() {
                classes.push(*window);
                parts.push(0);
            }
            let rows = BLOCK * shape.kv_heads * codec.bytes();
            let k = parts[class]..parts[class] + rows * shape.k_dim;
            let v = k.end..k.end + rows * shape.v_dim;
            parts[class] = v.end;
            places.push(Place { shape: *shape, class, k, v });
        }
        Self { codec, layers: places, classes, parts }
    }

    /// The codec of every block.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// The number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// The window of each class, in order.
    pub fn classes(&self) -> &[Window] {
        &self.classes
    }

    /// The bytes of each part of a block, in class order.
    pub fn parts(&self) -> &[usize] {
        &self.parts
    }

    /// The bytes of a block over all its parts.
    pub fn block_bytes(&self) -> usize {
        self.parts.iter().sum()
    }

    /// The bytes that one token adds, when blocks are full.
    pub fn token_bytes(&self) -> usize {
        self.block_bytes() / BLOCK
    }

    /// The shape of `layer`'s rows.
    pub fn shape(&self, layer: usize) -> LayerShape {
        self.layers[layer].shape
    }

    /// What queries of `layer` may see.
    pub fn window(&self, layer: usize) -> Window {
        self.classes[self.layers[layer].class]
    }

    /// The part that holds `layer`.
    pub fn class(&self, layer: usize) -> usize {
        self.layers[layer].class
    }

    /// The byte range of `layer`'s keys in its part: `[G][k_dim][32]`.
    pub fn k(&self, layer: usize) -> Range<usize> {
        self.layers[layer].k.clone()
    }

    /// The byte range of `layer`'s values in its part: `[G][32][v_dim]`.
    pub fn v(&self, layer: usize) -> Range<usize> {
        self.layers[layer].v.clone()
    }

    /// Stands for the arrangement in a fingerprint.
    pub fn digest(&self) -> Digest {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for place in &self.layers {
            let LayerShape { kv_heads, k_dim, v_dim } = place.shape;
            for number in [place.class, kv_heads, k_dim, v_dim] {
                bytes.extend((number as u64).to_le_bytes());
            }
        }
        Digest::of("layout", &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: LayerShape = LayerShape { kv_heads: 3, k_dim: 64, v_dim: 32 };

    #[test]
    fn layers_lie_one_after_another_without_gaps() {
        let layout = Layout::new(Codec::F16, &[(SHAPE, Window::Full); 4]);
        let mut end = 0;
        for layer in 0..4 {
            assert_eq!(layout.k(layer).start, end);
            assert_eq!(layout.v(layer).start, layout.k(layer).end);
            end = layout.v(layer).end;
        }
        assert_eq!(layout.parts(), &[end]);
        assert_eq!(layout.token_bytes(), 4 * 3 * (64 + 32) * 2);
    }

    #[test]
    fn layers_with_one_window_share_a_part() {
        let windows = [Window::Sliding(64), Window::Full, Window::Sliding(64), Window::Sliding(8)];
        let layout = Layout::new(Codec::F32, &windows.map(|window| (SHAPE, window)));
        assert_eq!([0, 1, 2, 3].map(|layer| layout.class(layer)), [0, 1, 0, 2]);
        assert_eq!([0, 1, 2, 3].map(|layer| layout.window(layer)), windows);
        let layer = 32 * 3 * (64 + 32) * 4;
        assert_eq!(layout.parts(), [2 * layer, layer, layer]);
        assert_eq!((layout.k(2).start, layout.k(1).start), (layer, 0));
    }

    #[test]
    fn every_range_starts_at_a_multiple_of_64_bytes() {
        for codec in Codec::ALL {
            let odd = LayerShape { kv_heads: 1, k_dim: 3, v_dim: 5 };
            let layout = Layout::new(codec, &[(odd, Window::Full); 3]);
            for layer in 0..3 {
                assert_eq!((layout.k(layer).start % 64, layout.v(layer).start % 64), (0, 0));
            }
        }
    }
}
