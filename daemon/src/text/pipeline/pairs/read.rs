//! A byte-pair model as a `tokenizer.json` has it, read without a string for each of its texts.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::Pairs;
use crate::text::merges::{Merge, Merges};
use crate::text::pieces::Pieces;

/// Ids that may be without a token, on top of as many as there are tokens.
const HOLES: usize = 1 << 16;

impl Pairs {
    /// Reads the keys of a model. What others than those here say is refused before.
    pub(in super::super) fn read<'de, A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let (mut tokens, mut merges, mut early) = (None, None, None);
        let (mut unknown, mut fuses, mut bytes, mut whole_words) = (None, None, None, None);
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            match (&*key, &tokens) {
                ("vocab", Some(_)) => return Err(A::Error::duplicate_field("vocab")),
                ("vocab", None) => tokens = Some(map.next_value::<Tokens>()?.0),
                ("merges", Some(tokens)) => merges = Some(map.next_value_seed(Joined(tokens))?),
                // Files that name pairs before tokens are rare, so that memory does not matter.
                ("merges", None) => early = Some(map.next_value::<Value>()?),
                ("unk_token", _) => unknown = map.next_value()?,
                ("fuse_unk", _) => fuses = map.next_value()?,
                ("byte_fallback", _) => bytes = map.next_value()?,
                ("ignore_merges", _) => whole_words = map.next_value()?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        let tokens = tokens.ok_or_else(|| A::Error::missing_field("vocab"))?;
        let merges = match (merges, early) {
            (Some(merges), _) => merges,
            (None, Some(early)) => Joined(&tokens).deserialize(early).map_err(A::Error::custom)?,
            (None, None) => return Err(A::Error::missing_field("merges")),
        };
        let is_set = |flag: Option<bool>| flag.unwrap_or(false);
        let token = |byte: usize| tokens.find(format!("<0x{byte:02X}>").as_bytes());
        Ok(Self {
            bytes: is_set(bytes).then(|| Box::new(std::array::from_fn(token))),
            fuses: is_set(fuses),
            whole_words: is_set(whole_words),
            unknown,
            merges,
            pieces: tokens,
        })
    }
}

/// The tokens in the order of their ids.
struct Tokens(Pieces);

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Listed::default())
    }
}

/// Tokens as they are listed, in any order.
#[derive(Default)]
struct Listed {
    /// Their texts, end to end.
    text: String,
    /// An id, and where its text is.
    tokens: Vec<(u32, usize, usize)>,
}

impl<'de> Visitor<'de> for Listed {
    type Value = Tokens;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tokens with their ids")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Tokens, A::Error> {
        while let Some((text, id)) = map.next_entry::<Cow<'_, str>, u32>()? {
            let start = self.text.len();
            self.text.push_str(&text);
            self.tokens.push((id, start, self.text.len()));
        }
        self.sorted().map(Tokens).map_err(A::Error::custom)
    }
}

impl Listed {
    fn sorted(mut self) -> Result<Pieces, String> {
        self.tokens.sort_unstable();
        let text = |&(_, start, end): &(u32, usize, usize)| &self.text[start..end];
        if let Some(pair) = self.tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let [one, other] = [&pair[0], &pair[1]].map(text);
            return Err(format!("token {} is \"{one}\" and \"{other}\"", pair[0].0));
        }
        let count = self.tokens.len();
        let end = self.tokens.last().map_or(0, |(id, ..)| *id as usize + 1);
        if end > 2 * count + HOLES {
            return Err(format!("there is a token {}, but only {count} tokens", end - 1));
        }
        let mut tokens = self.tokens.iter().peekable();
        Ok(Pieces::new((0..end).map(|id| {
            let token = tokens.next_if(|token| token.0 as usize == id);
            let text = token.map(text).unwrap_or_default();
            (text.into(), !text.is_empty())
        })))
    }
}

/// Reads merges of these tokens, best first.
struct Joined<'a>(&'a Pieces);

impl<'de> DeserializeSeed<'de> for Joined<'_> {
    type Value = Merges;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Merges, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Joined<'_> {
    type Value = Merges;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pairs of tokens")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merges, A::Error> {
        let mut merges = Vec::new();
        while let Some(Pair(pair)) = seq.next_element()? {
            if let Some(pair) = pair {
                Merges::check(merges.len() + 1, self.0).map_err(A::Error::custom)?;
                merges.push(self.merge(merges.len(), &pair).map_err(A::Error::custom)?);
            }
        }
        // The last of equal pairs counts, as it does with the library.
        merges.reverse();
        Ok(Merges::new(merges, self.0.len()))
    }
}

impl Joined<'_> {
    fn merge(&self, rank: usize, [left, right]: &[String; 2]) -> Result<Merge, String> {
        let find = |text: &str| {
            let found = self.0.find(text.as_bytes());
            let missing = || format!("merge {rank} (\"{left} {right}\") wants a token \"{text}\"");
            found.ok_or_else(missing)
        };
        let whole = find(&format!("{left}{right}"))?;
        Ok(Merge { left: find(left)?, right: find(right)?, rank: rank as u32, whole })
    }
}

/// Two tokens; `None` for a line that older files begin with.
struct Pair(Option<[String; 2]>);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Form)
    }
}

struct Form;

impl<'de> Visitor<'de> for Form {
    type Value = Pair;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("two tokens, in a list or with a space between them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Pair, E> {
        if text.starts_with("#version") {
            return Ok(Pair(None));
        }
        match text.split_once(' ') {
            Some((left, right)) if !right.contains(' ') => {
                Ok(Pair(Some([left, right].map(String::from))))
            }
            _ => Err(E::custom(format!("the merge \"{text}\" is not two tokens"))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Pair, A::Error> {
        let (left, right) = (seq.next_element()?, seq.next_element()?);
        match (left.zip(right), seq.next_element::<IgnoredAny>()?) {
            (Some((left, right)), None) => Ok(Pair(Some([left, right]))),
            _ => Err(A::Error::custom("a merge is not two tokens")),
        }
    }
}
