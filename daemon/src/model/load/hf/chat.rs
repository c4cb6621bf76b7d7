//! The chat template, from any of its homes.

use serde_json::Value;

use super::directory::{Directory, TEMPLATE, TEMPLATE_JSON, TOKENIZER_CONFIG};
use crate::model::load::LoadError;

const KEY: &str = "chat_template";

/// Of several templates, the one for chats without tools or retrieved documents.
const DEFAULT: &str = "default";

impl Directory {
    /// The Jinja source: a file of its own before a key of another one.
    pub(super) fn chat_template(&self) -> Result<Option<String>, LoadError> {
        if let Some(bytes) = self.text(TEMPLATE)? {
            let text = String::from_utf8(bytes);
            let error = || LoadError::NotUtf8 { what: "the template".into() }.within(TEMPLATE);
            return text.map(Some).map_err(|_| error());
        }
        for file in [TOKENIZER_CONFIG, TEMPLATE_JSON] {
            let value = self.json(file)?.and_then(|mut value| value.get_mut(KEY).map(Value::take));
            if let Some(value) = value.filter(|value| !value.is_null()) {
                return template(&value).map(Some).map_err(|error| error.within(file));
            }
        }
        Ok(None)
    }
}

/// A text, or a list of texts with names.
fn template(value: &Value) -> Result<String, LoadError> {
    let named = |template: &&Value| template.get("name").and_then(Value::as_str) == Some(DEFAULT);
    let of_list = || value.as_array()?.iter().find(named)?.get("template")?.as_str();
    let text = value.as_str().or_else(of_list);
    text.map(str::to_owned).ok_or_else(|| LoadError::WrongKind {
        key: KEY.into(),
        expected: "a text, or a list of templates of which one is called \"default\"",
        found: value.to_string(),
    })
}
