"""What the daemon answers, as frozen dataclasses.

Field names are those of the protocol, whose `.proto` files document them. Enum values are their
names without the prefix, as everywhere outside protobuf: `FULL_DISK` for `VERDICT_FULL_DISK`; one
that this version does not know is `UNSPECIFIED`. A field that may be absent has the default None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, fields
from datetime import datetime, timezone
from typing import Any, Literal, TypeVar

from google.protobuf.message import Message
from typing_extensions import TypeAlias

Verdict: TypeAlias = Literal[
    "UNSPECIFIED", "COLD", "PARTIAL_MEMORY", "PARTIAL_DISK", "FULL_MEMORY", "FULL_DISK", "JOINED", "BYPASSED"
]
Reason: TypeAlias = Literal[
    "UNSPECIFIED",
    "NO_ENTRY",
    "EXTENDED",
    "NO_RECORD",
    "DIVERGED",
    "BELOW_MINIMUM",
    "EVICTED",
    "FINGERPRINT_WEIGHTS",
    "FINGERPRINT_TOKENIZER",
    "ADAPTER",
    "KV_DTYPE",
    "WINDOW_POLICY",
    "LAYOUT_VERSION",
    "NUMERICS_VERSION",
    "NAMESPACE",
    "NO_CHECKPOINT",
    "CORRUPT_QUARANTINED",
    "IO_ERROR",
    "POLICY_BYPASS",
    "POLICY_REFRESH",
    "UNKNOWN",
]
FinishReason: TypeAlias = Literal["UNSPECIFIED", "STOP", "LENGTH", "CANCELLED", "TOOL_CALLS"]
ModelState: TypeAlias = Literal[
    "UNSPECIFIED", "LOADING", "READY", "FAILED", "UNLOADED", "UNLOADING"
]


@dataclass(frozen=True)
class Divergence:
    """Where a prompt parts from its nearest cached relative."""

    token_index: int
    location: str
    prompt_text: str
    cached_text: str


@dataclass(frozen=True)
class Admitted:
    """The request runs. `verdict` is what is known now; `Done` has the final word."""

    model: str
    prompt_tokens: int
    max_tokens: int
    queue_ms: float
    verdict: Verdict
    reason: Reason
    warnings: tuple[str, ...]
    prompt_token_ids: tuple[int, ...]
    seed: int
    divergence: Divergence | None = None


@dataclass(frozen=True)
class PrefillProgress:
    """The prompt is being computed."""

    done_tokens: int
    total_tokens: int


@dataclass(frozen=True)
class TokenProbability:
    """A token and the natural logarithm of its probability."""

    id: int
    logprob: float


@dataclass(frozen=True)
class TokenLogprobs:
    """A token and its best alternatives. A token that nothing precedes has no `logprob`."""

    id: int
    top: tuple[TokenProbability, ...]
    logprob: float | None = None


@dataclass(frozen=True)
class Delta:
    """New output. `text` never ends inside a character and may lag behind `token_ids`."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True)
class CachedTokens:
    """Prompt tokens that were not computed, by where they came from."""

    memory: int
    disk: int
    joined: int


@dataclass(frozen=True)
class Usage:
    """Tokens read and written. `cached_tokens` is the sum of `cached`."""

    prompt_tokens: int
    cached_tokens: int
    cached: CachedTokens
    completion_tokens: int


@dataclass(frozen=True)
class Timings:
    """Where the time went, in milliseconds."""

    queue_ms: float
    load_ms: float
    prefill_ms: float
    ttft_ms: float
    decode_ms: float
    total_ms: float


@dataclass(frozen=True)
class Done:
    """The generation has ended."""

    finish_reason: FinishReason
    verdict: Verdict
    reason: Reason
    usage: Usage
    timings: Timings
    numerics: str
    prompt_key: str
    warnings: tuple[str, ...]
    divergence: Divergence | None = None


@dataclass(frozen=True)
class Pinned:
    """The prompt is kept from eviction until `expires`, in UTC; on disk, too, when it is `durable`."""

    expires: datetime
    bytes: int
    durable: bool


@dataclass(frozen=True)
class Warmed(Done):
    """The prompt is kept. `pinned` is there when a pin was asked for."""

    pinned: Pinned | None = None


@dataclass(frozen=True)
class Score:
    """The log-probabilities of given tokens, one entry per token."""

    model: str
    tokens: tuple[TokenLogprobs, ...]
    verdict: Verdict
    reason: Reason
    usage: Usage
    timings: Timings
    numerics: str


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter of a model."""

    name: str
    path: str
    rank: int
    bytes: int
    adapter_id: str


@dataclass(frozen=True)
class Model:
    """A model that the daemon serves."""

    name: str
    default: bool
    state: ModelState
    error: str
    path: str
    architecture: str
    format: str
    weight_type: str
    parameters: int
    weight_bytes: int
    weights_id: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    context: int
    kv_dtype: str
    kv_dtypes: tuple[str, ...]
    kv_bytes_per_token: int
    kv_bytes_per_token_mha: int
    numerics: str
    tokenizer: str
    file_bytes: int
    load_ms: float
    adapters: tuple[Adapter, ...]


Event: TypeAlias = Admitted | PrefillProgress | Delta | Pinned | Done

_T = TypeVar("_T")
_NESTED: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Adapter, CachedTokens, Divergence, Timings, TokenLogprobs, TokenProbability, Usage)
}
_EVENTS: dict[str, type[Event]] = {
    "admitted": Admitted,
    "prefill_progress": PrefillProgress,
    "delta": Delta,
    "pinned": Pinned,
    "done": Done,
}


def event_from_wire(response: Message) -> Event:
    """Reads the event that a response of a generation stream carries."""
    name = response.WhichOneof("event")
    if name not in _EVENTS:
        raise ValueError(f"this version of the client does not know the event {name!r}")
    return from_wire(_EVENTS[name], getattr(response, name))


def from_wire(kind: type[_T], message: Message) -> _T:
    """Reads a message into the dataclass whose fields bear the names of the message's."""
    return kind(**{field.name: _value(field, message) for field in fields(kind)})  # type: ignore[arg-type]


def _value(field: Field[Any], message: Message) -> Any:
    descriptor = message.DESCRIPTOR.fields_by_name[field.name]
    value = getattr(message, field.name)
    if descriptor.is_repeated:
        return tuple(_plain(descriptor, value))
    if field.default is not MISSING and not message.HasField(field.name):
        return field.default
    return next(iter(_plain(descriptor, [value])))


def _plain(descriptor: Any, values: Iterable[Any]) -> Iterable[Any]:
    if descriptor.message_type is not None and descriptor.message_type.full_name == "google.protobuf.Timestamp":
        return (value.ToDatetime(timezone.utc) for value in values)
    if descriptor.message_type is not None:
        kind = _NESTED[descriptor.message_type.name]
        return (from_wire(kind, value) for value in values)
    if descriptor.enum_type is not None:
        return (label(descriptor.enum_type, value) for value in values)
    return values


def label(enum: Any, number: int) -> str:
    """The name of an enum value without the prefix, which the enum's zero value shows."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    known = enum.values_by_number.get(number, enum.values_by_number[0])
    return str(known.name).removeprefix(prefix)
