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
    /// Width of the residual stream.
    pub width: usize,
    /// Learned positions.
    pub context: usize,
}

impl Shape {
    /// TinyGPT's `huge`, 9.6 million parameters.
    pub const HUGE: Self = Self { layers: 12, heads: 8, width: 256, context: 256 };
    /// TinyGPT's `behemoth`, 404 million parameters.
    pub const BEHEMOTH: Self = Self { layers: 32, heads: 16, width: 1024, context: 1024 };

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
        for i in 0..self.layers {
            pair(format!("blocks.{i}.ln1"), vec![c], c);
            for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
                pair(format!("blocks.{i}.attn.{name}"), vec![c, c], c);
            }
            pair(format!("blocks.{i}.ln2"), vec![c], c);
            pair(format!("blocks.{i}.mlp.fc_in"), vec![m, c], m);
            pair(format!("blocks.{i}.mlp.fc_out"), vec![c, m], c);
        }
        tensors
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
                "heads": self.heads, "dMlp": 4 * self.width, "vocabSize": 256,
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
