//! The families that run, by the name that `config.json` gives them.

mod gemma3;
mod gpt2;
mod llama;
mod mistral;
mod phi3;
mod qwen;
mod smollm3;

use super::config::Config;
use super::decoder::Parts;
use super::tensors::Tensors;
use crate::model::load::{GemmaConfig, GptConfig, LlamaConfig, LoadError, Weights};

/// A family, and the classes that say the same of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    name: &'static str,
    class: &'static str,
    plan: fn(&Config) -> Result<Body, LoadError>,
}

const FAMILIES: [Family; 8] = [
    Family { name: "gemma3_text", class: "Gemma3ForCausalLM", plan: gemma3::plan },
    Family { name: "gpt2", class: "GPT2LMHeadModel", plan: gpt2::plan },
    Family { name: "llama", class: "LlamaForCausalLM", plan: llama::plan },
    Family { name: "mistral", class: "MistralForCausalLM", plan: mistral::plan },
    Family { name: "phi3", class: "Phi3ForCausalLM", plan: phi3::plan },
    Family { name: "qwen2", class: "Qwen2ForCausalLM", plan: qwen::plan2 },
    Family { name: "qwen3", class: "Qwen3ForCausalLM", plan: qwen::plan3 },
    Family { name: "smollm3", class: "SmolLM3ForCausalLM", plan: smollm3::plan },
];

/// A model's numbers, and which tensors it has.
#[derive(Debug)]
pub(super) enum Body {
    Llama(LlamaConfig, Parts),
    Gemma(GemmaConfig, Parts),
    Gpt(GptConfig, Parts),
}

/// A family and what it makes of a configuration, of which every key is accounted for.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) family: Family,
    pub(super) body: Body,
}

impl Family {
    /// The name in `config.json`.
    pub(super) fn name(self) -> &'static str {
        self.name
    }

    /// Reads a configuration.
    pub(super) fn plan(config: &Config) -> Result<Plan, LoadError> {
        let found = config.text("model_type")?.ok_or_else(|| config.missing("model_type"))?;
        let known = FAMILIES.into_iter().find(|family| family.name == found);
        let family = known.ok_or_else(|| {
            let names = FAMILIES.map(|family| family.name).join(", ");
            config.unsupported("model_type", format!("\"{found}\"; known are {names}"))
        })?;
        family.check_class(config)?;
        if !config.flag("is_causal", true)? {
            return Err(config.unsupported("is_causal", "false".into()));
        }
        let body = (family.plan)(config)?;
        config.finish()?;
        Ok(Plan { family, body })
    }

    /// A classifier, or a model of rewards, has the same body and another end.
    fn check_class(self, config: &Config) -> Result<(), LoadError> {
        const KEY: &str = "architectures";
        let classes = config.list(KEY, "a list of names", |class| class.as_str())?;
        match classes.unwrap_or_default()[..] {
            [] => Ok(()),
            [class] if class == self.class => Ok(()),
            [..] => {
                let found = config.get(KEY).map(ToString::to_string).unwrap_or_default();
                Err(config.unsupported(KEY, format!("{found}; \"{}\" is", self.class)))
            }
        }
    }
}

impl Plan {
    /// V
    pub(super) fn vocab(&self) -> usize {
        match &self.body {
            Body::Llama(config, _) => config.vocab,
            Body::Gemma(config, _) => config.llama.vocab,
            Body::Gpt(config, _) => config.vocab,
        }
    }

    /// The weights; a tensor that is left over is an error.
    pub(super) fn weights(self, mut tensors: Tensors<'_>) -> Result<Weights, LoadError> {
        let weights = match self.body {
            Body::Llama(config, parts) => Weights::Llama(parts.llama(config, &mut tensors)?),
            Body::Gemma(config, parts) => {
                Weights::Gemma(gemma3::weights(config, parts, &mut tensors)?)
            }
            Body::Gpt(config, parts) => Weights::Gpt(gpt2::weights(config, parts, &mut tensors)?),
        };
        tensors.finish()?;
        Ok(weights)
    }
}
