//! Small LoRA adapters with seeded numbers, as PEFT and TinyGPT save them: for behaviour, not for
//! sense.

use std::path::Path;
use std::{fs, io};

use serde_json::{Map, Value, json};

/// An adapter: which layers it changes, and how.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// r
    pub rank: usize,
    /// The scale is this over the rank.
    pub alpha: f32,
    /// Other numbers for another seed.
    pub seed: u64,
    /// Names of layers with the shape `[out, in]` of their weights.
    pub layers: Vec<(String, [usize; 2])>,
}

impl Adapter {
    /// Changes every projection of the Llama that [`crate::directory`] writes.
    #[must_use]
    pub fn of_directory(seed: u64) -> Self {
        let shapes = [
            ("self_attn.q_proj", [64, 64]),
            ("self_attn.k_proj", [32, 64]),
            ("self_attn.v_proj", [32, 64]),
            ("self_attn.o_proj", [64, 64]),
            ("mlp.gate_proj", [96, 64]),
            ("mlp.up_proj", [96, 64]),
            ("mlp.down_proj", [64, 96]),
        ];
        let named =
            |layer| shapes.map(|(name, shape)| (format!("model.layers.{layer}.{name}"), shape));
        Self { rank: 4, alpha: 8.0, seed, layers: (0..2).flat_map(named).collect() }
    }

    /// What a layer's inputs are multiplied with first, `[r, in]`.
    #[must_use]
    pub fn down(&self, layer: usize) -> Vec<f32> {
        let [_, inputs] = self.layers[layer].1;
        noise(self.seed + 2 * layer as u64, self.rank * inputs, 1.0 / (inputs as f32).sqrt())
    }

    /// What that is multiplied with, `[out, r]`, but for the scale.
    #[must_use]
    pub fn up(&self, layer: usize) -> Vec<f32> {
        let [outputs, _] = self.layers[layer].1;
        noise(self.seed + 2 * layer as u64 + 1, outputs * self.rank, 0.5)
    }

    /// What a layer's weights become more by, `[out, in]`.
    #[must_use]
    pub fn delta(&self, layer: usize) -> Vec<f32> {
        let [outputs, inputs] = self.layers[layer].1;
        let (down, up) = (self.down(layer), self.up(layer));
        let scale = f64::from(self.alpha) / self.rank as f64;
        let number = |at: usize| {
            let (row, column) = (at / inputs, at % inputs);
            let product =
                |r| f64::from(up[row * self.rank + r]) * f64::from(down[r * inputs + column]);
            (scale * (0..self.rank).map(product).sum::<f64>()) as f32
        };
        (0..outputs * inputs).map(number).collect()
    }

    /// `adapter_config.json`, as PEFT writes it.
    #[must_use]
    pub fn config(&self) -> Value {
        let end = |(name, _): &(String, _)| name.rsplit('.').next().unwrap_or(name).to_owned();
        let mut targets: Vec<String> = self.layers.iter().map(end).collect();
        targets.sort_unstable();
        targets.dedup();
        json!({
            "alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": "a/model",
            "bias": "none", "corda_config": null, "eva_config": null, "exclude_modules": null,
            "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
            "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
            "loftq_config": {}, "lora_alpha": self.alpha, "lora_bias": false, "lora_dropout": 0.05,
            "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
            "peft_type": "LORA", "qalora_group_size": 16, "r": self.rank, "rank_pattern": {},
            "revision": null, "target_modules": targets, "target_parameters": null,
            "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false,
            "use_qalora": false, "use_rslora": false
        })
    }

    /// `adapter_model.safetensors`, in f32.
    #[must_use]
    pub fn safetensors(&self) -> Vec<u8> {
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (at, (name, [outputs, inputs])) in self.layers.iter().enumerate() {
            for (part, shape, numbers) in [
                ("lora_A", [self.rank, *inputs], self.down(at)),
                ("lora_B", [*outputs, self.rank], self.up(at)),
            ] {
                let begin = data.len();
                data.extend(numbers.into_iter().flat_map(f32::to_le_bytes));
                let place = json!({
                    "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]
                });
                header.insert(format!("base_model.model.{name}.{part}.weight"), place);
            }
        }
        let header = Value::Object(header).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
    }

    /// Makes a directory as PEFT does.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn write_peft(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        fs::write(directory.join("adapter_config.json"), self.config().to_string())?;
        fs::write(directory.join("adapter_model.safetensors"), self.safetensors())
    }

    /// The header of a `.lora` file.
    #[must_use]
    pub fn header(&self) -> Value {
        let entry = |(name, [outputs, inputs]): &(String, [usize; 2])| {
            let rank = self.rank;
            json!({"name": name, "loraAShape": [inputs, rank], "loraBShape": [rank, outputs]})
        };
        let entries: Vec<Value> = self.layers.iter().map(entry).collect();
        json!({"rank": self.rank, "alpha": self.alpha, "targetSuffixes": [], "entries": entries})
    }

    /// A `.lora` file with this header.
    #[must_use]
    pub fn lora_with(&self, header: &Value) -> Vec<u8> {
        let header = header.to_string();
        let length = u32::try_from(header.len()).unwrap_or(u32::MAX);
        let mut file = [&b"TGLA"[..], &1_u32.to_le_bytes(), &length.to_le_bytes()].concat();
        file.extend(header.into_bytes());
        for (at, (_, [_, inputs])) in self.layers.iter().enumerate() {
            let numbers = transposed(&self.down(at), *inputs);
            let numbers = numbers.into_iter().chain(transposed(&self.up(at), self.rank));
            file.extend(numbers.flat_map(f32::to_le_bytes));
        }
        file
    }

    /// A `.lora` file.
    #[must_use]
    pub fn lora(&self) -> Vec<u8> {
        self.lora_with(&self.header())
    }
}

/// The columns of `[rows, columns]` as rows.
fn transposed(numbers: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|at| numbers[at..].iter().step_by(columns).copied()).collect()
}

/// Numbers between `-size` and `size`.
fn noise(seed: u64, len: usize, size: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(len as u64);
    let mut number = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * size
    };
    (0..len).map(|_| number()).collect()
}
