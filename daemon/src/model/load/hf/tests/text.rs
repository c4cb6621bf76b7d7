//! Which tokens begin and end, and where chat templates live.

use super::*;
use crate::model::load::{HfVocabulary, Vocabulary};

fn vocabulary(files: &[(&str, Value)]) -> Result<HfVocabulary, LoadError> {
    let model = Model::new();
    files.iter().for_each(|(name, value)| model.write(name, value.to_string()));
    match model.load()?.vocabulary {
        Vocabulary::HuggingFace(vocabulary) => Ok(vocabulary),
        other => panic!("{other:?}"),
    }
}

const GENERATION: &str = "generation_config.json";
const SETTINGS: &str = "tokenizer_config.json";

fn config(ends: Value) -> (&'static str, Value) {
    let mut config = llama();
    config["eos_token_id"] = ends;
    ("config.json", config)
}

#[test]
fn what_ends_a_generation_is_what_the_generation_settings_say_or_else_the_model() {
    let ends = |files: &[(&str, Value)]| vocabulary(files).unwrap().eos_ids;
    assert!(ends(&[]).is_empty());
    assert_eq!(ends(&[config(json!(1))]), [1]);
    assert_eq!(ends(&[config(json!([1, 2]))]), [1, 2]);
    assert_eq!(ends(&[config(json!(1)), (GENERATION, json!({"eos_token_id": [2, 0]}))]), [2, 0]);
    assert_eq!(ends(&[config(json!(1)), (GENERATION, json!({"temperature": 0.6}))]), [1]);
}

#[test]
fn an_end_that_is_no_token_is_named_with_its_file() {
    let said = |files: &[(&str, Value)]| vocabulary(files).unwrap_err().to_string();
    let expected = "key \"eos_token_id\" is 3, which is not one of the 3 ids";
    assert_eq!(said(&[config(json!(3))]), format!("config.json: {expected}"));
    let settings = (GENERATION, json!({"eos_token_id": [0, 3]}));
    assert_eq!(said(&[settings]), format!("{GENERATION}: {expected}"));
    assert!(said(&[config(json!("x"))]).contains("is \"x\", which is not an id"));
    assert!(said(&[config(json!(["x"]))]).contains("a list of ids"));
}

#[test]
fn tokens_are_texts_or_objects_with_one() {
    let settings = json!({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>",
        "added_tokens_decoder": {"1": {"content": "<s>"}}});
    let read = vocabulary(&[(SETTINGS, settings)]).unwrap();
    assert_eq!((read.bos.as_deref(), read.eos.as_deref()), (Some("<s>"), Some("</s>")));
    assert_eq!(read.added, [(1, "<s>".to_owned())]);
    let error = vocabulary(&[(SETTINGS, json!({"bos_token": 1}))]).unwrap_err().to_string();
    assert!(error.starts_with("tokenizer_config.json: key \"bos_token\" is 1"), "{error}");
    let added = json!({"added_tokens_decoder": {"x": {"content": "<s>"}}});
    let error = vocabulary(&[(SETTINGS, added)]).unwrap_err().to_string();
    assert!(error.contains("added_tokens_decoder.x"), "{error}");
}

#[test]
fn a_key_says_whether_bos_is_added_where_the_class_of_tokenizer_asks_it() {
    let adds = |settings: Value| vocabulary(&[(SETTINGS, settings)]).map(|read| read.adds_bos);
    let class = |class: &str, add: bool| json!({"tokenizer_class": class, "add_bos_token": add});
    assert_eq!(adds(class("LlamaTokenizer", false)), Ok(Some(false)));
    assert_eq!(adds(class("GemmaTokenizer", true)), Ok(Some(true)));
    assert_eq!(adds(class("PreTrainedTokenizerFast", false)), Ok(None));
    assert_eq!(adds(json!({"tokenizer_class": "LlamaTokenizer"})), Ok(None));
    let both = json!({"tokenizer_class": "LlamaTokenizer", "add_eos_token": true});
    assert!(adds(both).unwrap_err().to_string().contains("add_eos_token"));
}

#[test]
fn a_chat_template_is_found_in_each_of_its_homes_in_order() {
    let model = Model::new();
    let template = || model.load().unwrap().chat_template;
    assert_eq!(template(), None);
    model.write("chat_template.json", json!({"chat_template": "json"}).to_string());
    assert_eq!(template().as_deref(), Some("json"));
    model.write(SETTINGS, json!({"chat_template": "settings"}).to_string());
    assert_eq!(template().as_deref(), Some("settings"));
    let list = json!([{"name": "rag", "template": "no"}, {"name": "default", "template": "list"}]);
    model.write(SETTINGS, json!({"chat_template": list}).to_string());
    assert_eq!(template().as_deref(), Some("list"));
    model.write("chat_template.jinja", "{{ jinja }}");
    assert_eq!(template().as_deref(), Some("{{ jinja }}"));
}

#[test]
fn a_chat_template_that_is_none_is_named_with_its_file() {
    let model = Model::new();
    for template in [json!(1), json!([]), json!([{"name": "rag", "template": "x"}])] {
        model.write(SETTINGS, json!({"chat_template": template}).to_string());
        let said = model.refusal();
        assert!(
            said.starts_with("tokenizer_config.json: metadata key \"chat_template\""),
            "{said}"
        );
    }
    model.write("chat_template.jinja", [0xff]);
    assert_eq!(model.refusal(), "chat_template.jinja: the template is not UTF-8");
}
