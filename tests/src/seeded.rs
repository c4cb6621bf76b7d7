//! Models of any shape with seeded weights, as `.tinygpt` files: for speed, not for sense.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};

/// Dimensions of a TinyGPT model over bytes; its MLP is four times as wide as the model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks.
    pub layers: usize,
    /// Heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Learned positions.
    pub context: usize,
    /// MLPs of a block, of which two compute each row where there are more than one.
    pub experts: usize,
    /// Tokens that a query sees, if not all.
    pub window: Option<usize>,
}

impl Shape {
    /// TinyGPT's `tiny`, 0.8 million parameters.
    pub const TINY: Self = Self::new(4, 4, 128, 128);
    /// TinyGPT's `small`, 2.8 million parameters.
    pub const SMALL: Self = Self::new(6, 6, 192, 256);
    /// TinyGPT's `huge`, 9.6 million parameters.
    pub const HUGE: Self = Self::new(12, 8, 256, 256);
    /// TinyGPT's `mega`, 76 million parameters.
    pub const MEGA: Self = Self::new(24, 8, 512, 1024);
    /// TinyGPT's `behemoth`, 404 million parameters.
    pub const BEHEMOTH: Self = Self::new(32, 16, 1024, 1024);
    /// TinyGPT's `titan`, 1.4 billion parameters.
    pub const TITAN: Self = Self::new(48, 24, 1536, 1024);

    /// A model with keys and values for each head, one MLP in each block, and no window.
    pub const fn new(layers: usize, heads: usize, width: usize, context: usize) -> Self {
        Self { layers, heads, kv_heads: heads, width, context, experts: 1, window: None }
    }

    /// How many numbers it has.
    pub fn parameters(self) -> usize {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// Names and shapes of all tensors, in the order of the file.
    fn tensors(self) -> Vec<(String, Vec<usize>)> {
        let (c, m) = (self.width, 4 * self.width);
        let mut tensors = vec![
            ("token_embedding.weight".to_owned(), vec![256, c]),
            ("position_embedding.weight".to_owned(), vec![self.context, c]),
        ];
        let mut pair = |name: String, weight: Vec<usize>, bias: usize| {
            tensors.push((format!("{name}.weight"), weight));
            tensors.push((format!("{name}.bias"), vec![bias]));
        };
        pair("ln_final".into(), vec![c], c);
        let keys = c / self.heads * self.kv_heads;
        for i in 0..self.layers {
            pair(format!("blocks.{i}.ln1"), vec![c], c);
            for (name, n) in [("q_proj", c), ("k_proj", keys), ("v_proj", keys), ("o_proj", c)] {
                pair(format!("blocks.{i}.attn.{name}"), vec![n, c], n);
            }
            pair(format!("blocks.{i}.ln2"), vec![c], c);
            for mlp in self.mlps() {
                pair(format!("blocks.{i}.{mlp}.fc_in"), vec![m, c], m);
                pair(format!("blocks.{i}.{mlp}.fc_out"), vec![c, m], c);
            }
        }
        let routers = (0..self.layers).filter(|_| self.experts > 1);
        let router = |i| (format!("blocks.{i}.moe.router.weight"), vec![self.experts, c]);
        tensors.extend(routers.map(router));
        tensors
    }

    fn mlps(self) -> Vec<String> {
        match self.experts {
            1 => vec!["mlp".to_owned()],
            count => (0..count).map(|expert| format!("moe.experts.{expert}")).collect(),
        }
    }

    fn header(self) -> Value {
        let mut offset = 0;
        let entry = |(name, shape): (String, Vec<usize>)| {
            let entry = json!({ "name": name, "shape": shape, "floatOffset": offset });
            offset += shape.iter().product::<usize>();
            entry
        };
        let manifest: Vec<Value> = self.tensors().into_iter().map(entry).collect();
        json!({
            "version": 2,
            "config": {
                "layers": self.layers, "dModel": self.width, "ctx": self.context,
                "heads": self.heads, "kvHeads": self.kv_heads, "dMlp": 4 * self.width,
                "vocabSize": 256, "nExperts": self.experts, "moeTopK": self.experts.min(2),
                "slidingWindow": self.window,
            },
            "manifest": manifest,
            "includesOptimizerState": false,
            "weightDtype": "fp16",
            "stateByteLength": 4 + 2 * offset,
        })
    }

    /// Writes a model with weights of this shape, the same on every machine.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(self, path: &Path) -> io::Result<()> {
        let header = self.header().to_string();
        let length = u32::try_from(header.len()).map_err(io::Error::other)?;
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(b"TGPT")?;
        file.write_all(&2_u32.to_le_bytes())?;
        file.write_all(&length.to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        file.write_all(&0_i32.to_le_bytes())?;
        let mut seed = 1;
        for (name, shape) in self.tensors() {
            for _ in 0..shape.iter().product() {
                file.write_all(&number(&name, &mut seed).to_le_bytes())?;
            }
        }
        file.flush()
    }
}

/// The bits of a half-precision number: gains are 1, biases 0, weights between 2^-7 and 2^-5.
fn number(tensor: &str, seed: &mut u64) -> u16 {
    if tensor.ends_with(".bias") {
        return 0;
    }
    if tensor.contains("ln") {
        return 0x3C00;
    }
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let random = (*seed >> 40) as u16;
    let (sign, exponent, fraction) = (random & 0x8000, 8 + (random >> 10 & 1), random & 0x03FF);
    sign | exponent << 10 | fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_as_many_parameters_as_their_originals() {
        let presets = [
            (Shape::TINY, 842_496),
            (Shape::SMALL, 2_767_872),
            (Shape::HUGE, 9_608_704),
            (Shape::MEGA, 76_313_600),
            (Shape::BEHEMOTH, 404_391_936),
            (Shape::TITAN, 1_361_882_112),
        ];
        for (shape, parameters) in presets {
            assert_eq!(shape.parameters(), parameters, "{shape:?}");
        }
    }
}
