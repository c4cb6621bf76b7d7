//! From what a client sends as its prompt to token ids that the model can take.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use super::convert::reply::count;
use super::models::Served;
use super::refusal::Refusal;
use crate::kv::key::Digest;
use crate::store::text_digest;
use crate::text::TokenizerError;

/// Texts beyond this many bytes are tokenised off the runtime's threads.
const LONG_TEXT: usize = 64 << 10;

/// A prompt as it came.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Text for the model's tokenizer.
    Text(Arc<str>),
    /// Ids, taken as they are.
    Ids(Arc<[u32]>),
}

/// A prompt that the model can take.
#[derive(Debug)]
pub struct Tokens {
    /// The ids, at least one and at most the context.
    pub ids: Arc<[u32]>,
    /// The digest of the text that they came from.
    pub text: Option<Digest>,
    /// What the caller should know about them.
    pub warnings: Vec<String>,
}

impl Tokens {
    /// How many there are.
    pub fn count(&self) -> u32 {
        count(self.ids.len())
    }
}

impl Prompt {
    /// The ids of this prompt for `served`.
    ///
    /// # Errors
    /// When there are none, too many for the context, or one outside the vocabulary.
    pub async fn tokens(&self, served: &Arc<Served>) -> Result<Tokens, Refusal> {
        let ids = match self {
            Self::Text(text) => {
                may_fit(text.len(), served.longest, served.info.context)?;
                Arc::from(encode(Arc::clone(text), false, served).await?)
            }
            Self::Ids(ids) => Arc::clone(ids),
        };
        fits(&ids, served.info.context)?;
        known(&ids, served.info.vocab, "token_ids")?;
        let doubled = served.tokenizer.doubles_bos(&ids);
        Ok(Tokens {
            text: match self {
                Self::Text(text) => Some(text_digest(text)),
                Self::Ids(_) => None,
            },
            warnings: doubled.then(|| DOUBLED.to_owned()).into_iter().collect(),
            ids,
        })
    }
}

const DOUBLED: &str = "the prompt begins with two beginning-of-sequence tokens; \
                       the tokenizer adds one to a text by itself";

/// The ids of a text as a prompt, or `bare` without what a prompt begins with.
pub async fn encode(text: Arc<str>, bare: bool, served: &Arc<Served>) -> Result<Vec<u32>, Refusal> {
    let long = text.len() > LONG_TEXT;
    let tokenizer = Arc::clone(&served.tokenizer);
    // Dropped with this future, when the client has gone.
    let client = Arc::new(());
    let waits = Arc::downgrade(&client);
    let work = move || {
        let ids = tokenizer.encode_while(&text, &|| waits.strong_count() > 0)?;
        Ok::<_, TokenizerError>(if bare { ids } else { tokenizer.as_prompt(ids) })
    };
    if !long {
        return Ok(work()?);
    }
    let stopped = |_| Refusal::Stopped { name: served.info.name.clone() };
    let ids = spawn_blocking(work).await.map_err(stopped)??;
    drop(client);
    Ok(ids)
}

/// Whether a text of `bytes` can be few enough tokens of `longest` bytes at most: what cannot is not
/// worth a tokenizer's time.
fn may_fit(bytes: usize, longest: usize, context: usize) -> Result<(), Refusal> {
    let tokens = bytes.div_ceil(longest);
    if tokens <= context {
        return Ok(());
    }
    let (bytes, tokens, context) = (bytes.into(), tokens.into(), context.into());
    Err(Refusal::TextTooLong { bytes, tokens, context })
}

fn fits(ids: &[u32], context: usize) -> Result<(), Refusal> {
    match ids.len() {
        0 => Err(Refusal::EmptyPrompt),
        tokens if tokens > context => {
            Err(Refusal::PromptTooLong { tokens: tokens.into(), context: context.into() })
        }
        _ => Ok(()),
    }
}

/// Whether all of `ids`, given in `field`, are in a vocabulary of `vocab`.
pub fn known(ids: &[u32], vocab: usize, field: &'static str) -> Result<(), Refusal> {
    let stranger = ids.iter().find(|id| **id as usize >= vocab);
    stranger.map_or(Ok(()), |id| {
        let (id, vocab) = ((*id).into(), vocab.into());
        Err(Refusal::TokenOutsideVocabulary { field, id, vocab })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_as_long_as_the_context_at_most() {
        assert!(fits(&[0; 8], 8).is_ok());
        let error = fits(&[0; 9_001], 8_192).expect_err("too long").to_string();
        assert_eq!(error, "prompt is 9,001 tokens, context is 8,192");
        assert!(matches!(fits(&[], 8), Err(Refusal::EmptyPrompt)));
    }

    #[test]
    fn a_text_that_no_tokenizer_could_make_short_enough_is_refused_by_its_bytes() {
        assert!(may_fit(80, 10, 8).is_ok());
        let error = may_fit(81, 10, 8).expect_err("too long").to_string();
        assert_eq!(error, "prompt is 81 bytes, at least 9 tokens, context is 8");
    }

    #[test]
    fn an_id_outside_the_vocabulary_is_named() {
        assert!(known(&[0, 255], 256, "token_ids").is_ok());
        let error = known(&[3, 99_999], 256, "token_ids").expect_err("unknown").to_string();
        assert_eq!(error, "token id 99,999 in token_ids is outside the vocabulary of 256 ids");
    }
}
