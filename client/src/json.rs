//! Any message of the protocol as JSON, by reflection: a contract with scripts.
//!
//! `--json` prints the daemon's own messages under the names of the `.proto` files, so that a new
//! field appears in scripts on the day the daemon has it.
//! It differs from protobuf's own JSON mapping where that serves scripts badly: names are not
//! turned into camel case, 64-bit numbers are numbers, fields are never left out, enum values have
//! no prefix, what is unset or unspecified is null, and a token with its log-probability is a pair.

use std::sync::LazyLock;
use std::time::SystemTime;

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, EnumDescriptor, Kind, MapKey, ReflectMessage, Value,
};
use serde_json::{Map, Number, Value as Json};
use tinygpt_proto::FILE_DESCRIPTOR_SET;

/// Empty only if the descriptor set were no descriptor set, which the tests exclude.
static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap_or_default());

/// The message, which is a `tinygpt.v1.NAME`, as an object that begins with `schema`.
pub(crate) fn object(schema: &str, name: &str, message: &impl Message) -> Map<String, Json> {
    let mut object = Map::new();
    object.insert("schema".into(), schema.into());
    object.extend(fields(name, message));
    object
}

/// The message, which is a `tinygpt.v1.NAME`, as an object.
pub(crate) fn fields(name: &str, message: &impl Message) -> Map<String, Json> {
    decode(name, &message.encode_to_vec()).map(|message| of_message(&message)).unwrap_or_default()
}

/// Messages, each a `tinygpt.v1.NAME`, as an array of objects.
pub(crate) fn all(name: &str, messages: &[impl Message]) -> Json {
    messages.iter().map(|message| fields(name, message)).collect()
}

/// `None` only if the descriptor set did not describe the generated code, which the tests exclude.
fn decode(name: &str, bytes: &[u8]) -> Option<DynamicMessage> {
    let descriptor = POOL.get_message_by_name(&format!("tinygpt.v1.{name}"))?;
    DynamicMessage::decode(descriptor, bytes).ok()
}

fn of_message(message: &DynamicMessage) -> Map<String, Json> {
    let descriptor = message.descriptor();
    let fields = descriptor.fields().filter(|field| {
        // Of a oneof only the member that is set is there.
        field.containing_oneof().is_none_or(|oneof| oneof.is_synthetic())
            || message.has_field(field)
    });
    fields
        .map(|field| {
            let absent = field.supports_presence() && !message.has_field(&field);
            let value = match absent {
                true => Json::Null,
                false => of_value(&message.get_field(&field), &field.kind()),
            };
            (field.name().to_owned(), value)
        })
        .collect()
}

fn of_value(value: &Value, kind: &Kind) -> Json {
    match value {
        Value::Bool(value) => (*value).into(),
        Value::I32(value) => (*value).into(),
        Value::I64(value) => (*value).into(),
        Value::U32(value) => (*value).into(),
        Value::U64(value) => (*value).into(),
        Value::F32(value) => shortest(*value),
        Value::F64(value) => (*value).into(),
        Value::String(value) => value.as_str().into(),
        Value::Bytes(value) => value.to_vec().into(),
        Value::EnumNumber(number) => match kind {
            Kind::Enum(descriptor) => label(descriptor, *number),
            _ => Json::Null,
        },
        Value::Message(message) => match message.descriptor().full_name() {
            "google.protobuf.Timestamp" => time(message),
            "tinygpt.v1.TokenProbability" => {
                of_message(message).into_iter().map(|(_, value)| value).collect()
            }
            _ => of_message(message).into(),
        },
        Value::List(values) => values.iter().map(|value| of_value(value, kind)).collect(),
        Value::Map(entries) => of_map(entries.iter(), kind),
    }
}

fn of_map<'a>(entries: impl Iterator<Item = (&'a MapKey, &'a Value)>, kind: &Kind) -> Json {
    let Kind::Message(entry) = kind else { return Json::Null };
    let kind = entry.map_entry_value_field().kind();
    let mut entries: Vec<_> =
        entries.map(|(key, value)| (key_name(key), of_value(value, &kind))).collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    Json::Object(entries.into_iter().collect())
}

fn key_name(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

/// The decimal digits that name this `f32` among its neighbours, not those of its `f64` twin.
fn shortest(value: f32) -> Json {
    value.to_string().parse().ok().and_then(Number::from_f64).map_or(Json::Null, Json::Number)
}

/// The value's name without the prefix that all of the enum's names share.
fn label(descriptor: &EnumDescriptor, number: i32) -> Json {
    let unspecified = descriptor.default_value();
    let prefix = unspecified.name().trim_end_matches("UNSPECIFIED");
    match descriptor.get_value(number) {
        Some(value) if value.number() != 0 => {
            value.name().strip_prefix(prefix).unwrap_or(value.name()).into()
        }
        _ => Json::Null,
    }
}

/// A timestamp in RFC 3339; null when no calendar has it.
fn time(message: &DynamicMessage) -> Json {
    let time = message.transcode_to::<prost_types::Timestamp>().ok();
    match time.and_then(|time| SystemTime::try_from(time).ok()) {
        Some(time) => humantime::format_rfc3339_millis(time).to_string().into(),
        None => Json::Null,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tinygpt_proto::v1::{
        Budget, DaemonState, Delta, StatusResponse, TokenLogprobs, TokenProbability,
    };

    use super::*;

    #[test]
    fn a_message_keeps_its_names_and_hides_nothing() {
        let message = StatusResponse {
            version: "1".into(),
            state: DaemonState::Serving.into(),
            started: Some(prost_types::Timestamp { seconds: 0, nanos: 0 }),
            memory: Some(Budget { used: 1 << 40, limit: None }),
            counters: [("hits".to_owned(), 7)].into(),
            ..Default::default()
        };
        let json = Json::from(object("s/1", "StatusResponse", &message));
        assert_eq!(json["schema"], "s/1");
        assert_eq!(json["state"], "SERVING");
        assert_eq!(json["started"], "1970-01-01T00:00:00.000Z");
        assert_eq!(json["memory"], serde_json::json!({ "used": 1_u64 << 40, "limit": null }));
        assert_eq!(json["counters"]["hits"], 7);
        assert_eq!(json["pid"], 0);
        assert_eq!(json["models"], serde_json::json!([]));
        assert!(json.as_object().unwrap().contains_key("disk"), "unset messages are null");
    }

    #[test]
    fn a_float_has_the_digits_that_were_meant() {
        assert_eq!(shortest(0.1).to_string(), "0.1");
    }

    #[test]
    fn the_likeliest_tokens_are_pairs() {
        let top = vec![TokenProbability { id: 2, logprob: -0.1 }];
        let token = TokenLogprobs { id: 1, logprob: None, top };
        let delta = Delta { logprobs: vec![token], ..Default::default() };
        let expected = serde_json::json!([{ "id": 1, "logprob": null, "top": [[2, -0.1]] }]);
        assert_eq!(fields("Delta", &delta)["logprobs"], expected);
    }
}
