//! How tokens are chosen, from the command line or from a line of a batch.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tinygpt_proto::v1::Sampling;

use crate::cli::heading;
use crate::failure::Failure;

/// The flags that say how tokens are chosen. A batch's lines use the same names as the protocol.
/// Numbers are passed on as they are: the daemon refuses what it cannot do, and says why.
/// Only what JSON has no number for is refused here, for a batch merges by way of JSON.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = heading::SAMPLING)]
pub(crate) struct SamplingArgs {
    /// Most tokens to generate; 0 computes the prompt and stops [default: 256]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, help_heading = heading::LENGTH)]
    max_tokens: Option<u32>,
    /// End before this text (repeatable) [default: none]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = heading::LENGTH)]
    stop: Vec<String>,
    /// End at this token, as at those of the model (repeatable) [default: none]
    #[arg(long = "stop-id", value_name = "ID", allow_negative_numbers = true, help_heading = heading::LENGTH)]
    stop_token_ids: Vec<u32>,
    /// 0 always takes the likeliest token [default: 1]
    #[arg(long, value_name = "F", value_parser = finite, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Choose among the K likeliest; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0, allow_negative_numbers = true)]
    top_k: u32,
    /// Choose among the likeliest that together reach this probability [default: 1]
    #[arg(long, value_name = "F", value_parser = finite, allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Drop tokens less likely than this fraction of the likeliest
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = finite, allow_negative_numbers = true)]
    min_p: f32,
    /// Make tokens that occurred already less likely; 1 changes nothing [default: 1]
    #[arg(long = "repeat-penalty", value_name = "F", value_parser = finite, allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Taken from the logits of tokens generated already
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = finite, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Taken from the logits of generated tokens once per occurrence
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = finite, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// The same seed gives the same text [default: drawn]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Generate so many texts for the one prompt, which is computed once
    #[arg(long = "choices", value_name = "N", default_value_t = 1, allow_negative_numbers = true, help_heading = heading::LENGTH)]
    pub(crate) n: u32,
    /// Report each token's log-probability, with the K likeliest beside it [default: none is reported]
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub(crate) logprobs: Option<u32>,
}

impl SamplingArgs {
    /// These, with some of them replaced by name.
    ///
    /// # Errors
    /// When there is no such parameter, or it has another type, by its name.
    pub(crate) fn with(&self, over: Map<String, Value>) -> Result<Self, Failure> {
        over.into_iter().try_fold(self.clone(), |sampling, (name, value)| {
            let replaced = sampling.replace(&name, value);
            replaced.map_err(|error| Failure::Usage(format!("{name}: {error}")))
        })
    }

    fn replace(&self, name: &str, value: Value) -> serde_json::Result<Self> {
        let mut all = serde_json::to_value(self)?;
        all[name] = value;
        serde_json::from_value(all)
    }
}

fn finite(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() => Ok(number),
        Ok(number) => Err(format!("{number} is not a finite number")),
        Err(error) => Err(error.to_string()),
    }
}

impl From<SamplingArgs> for Sampling {
    fn from(args: SamplingArgs) -> Self {
        Self {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            min_p: args.min_p,
            repetition_penalty: args.repetition_penalty,
            presence_penalty: args.presence_penalty,
            frequency_penalty: args.frequency_penalty,
            seed: args.seed,
            max_tokens: args.max_tokens,
            stop: args.stop,
            stop_token_ids: args.stop_token_ids,
            logprobs: args.logprobs,
            n: args.n,
            ..Default::default()
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn merged(over: &str) -> Result<SamplingArgs, Failure> {
        let base = SamplingArgs { logprobs: Some(3), ..Default::default() };
        base.with(serde_json::from_str(over).unwrap())
    }

    #[test]
    fn what_is_named_is_replaced_and_the_rest_kept() {
        let sampling = merged(r#"{"temperature": 0, "stop": ["\n"]}"#).unwrap();
        let stop = vec!["\n".to_owned()];
        let expected =
            SamplingArgs { temperature: Some(0.0), stop, logprobs: Some(3), ..Default::default() };
        assert_eq!(sampling, expected);
    }

    #[test]
    fn a_name_that_is_no_parameter_is_refused() {
        let error = merged(r#"{"temprature": 0}"#).unwrap_err().to_string();
        assert!(error.contains("temprature"), "{error}");
    }

    #[test]
    fn a_value_of_another_type_is_refused_under_its_name() {
        for (over, words) in [
            (r#"{"top_p": 1, "temperature": "hot"}"#, "temperature: invalid type: string"),
            (r#"{"max_tokens": -1}"#, "max_tokens: invalid value: integer `-1`"),
            (r#"{"stop": "\n"}"#, "stop: invalid type: string"),
        ] {
            let error = merged(over).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
