//! How enum values are written for people and in JSON: without the prefix that protobuf wants.

use crate::v1::{
    CachePolicy, DaemonState, FinishReason, ModelPlace, ModelState, Persist, Pooling, Priority,
    Reason, Verdict,
};

/// An enum of the protocol whose values have a short spelling.
///
/// Protobuf scopes enum values to the whole package, so its style repeats the enum's name in each
/// of them (`VERDICT_FULL_DISK`). Everywhere else the value is written as its [label](Self::label)
/// (`FULL_DISK`).
pub trait Label: Copy + Sized + TryFrom<i32> + Default {
    /// What the protobuf names of this enum's values begin with, underscore included.
    const PREFIX: &'static str;

    /// The value's name in the `.proto` file.
    fn proto_name(self) -> &'static str;

    /// The value's name without the prefix.
    fn label(self) -> &'static str {
        let name = self.proto_name();
        name.strip_prefix(Self::PREFIX).unwrap_or(name)
    }

    /// The label of a wire value: a number this version does not know counts as `UNSPECIFIED`.
    fn label_of(wire: i32) -> &'static str {
        Self::try_from(wire).unwrap_or_default().label()
    }
}

macro_rules! labels {
    ($($enum:ident: $prefix:literal),* $(,)?) => {$(
        impl Label for $enum {
            const PREFIX: &'static str = $prefix;

            fn proto_name(self) -> &'static str {
                self.as_str_name()
            }
        }
    )*};
}

labels! {
    CachePolicy: "CACHE_POLICY_",
    DaemonState: "DAEMON_STATE_",
    FinishReason: "FINISH_REASON_",
    ModelPlace: "MODEL_PLACE_",
    ModelState: "MODEL_STATE_",
    Persist: "PERSIST_",
    Pooling: "POOLING_",
    Priority: "PRIORITY_",
    Reason: "REASON_",
    Verdict: "VERDICT_",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_no_prefix() {
        assert_eq!(Verdict::FullDisk.label(), "FULL_DISK");
        assert_eq!(Reason::NoEntry.label(), "NO_ENTRY");
        assert_eq!(FinishReason::Stop.label(), "STOP");
    }

    #[test]
    fn a_value_from_the_future_is_unspecified() {
        assert_eq!(Verdict::label_of(4_711), "UNSPECIFIED");
    }
}
