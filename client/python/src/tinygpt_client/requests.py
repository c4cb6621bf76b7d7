"""What a caller may ask for, and the messages that ask for it.

Options bear the names of the protocol's fields. One that is left out is left out on the wire too,
so the daemon's defaults are decided in one place: the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from google.protobuf.duration_pb2 import Duration
from tinygpt.v1 import inference_pb2 as wire
from tinygpt.v1.sampling_pb2 import Sampling, TokenIds
from typing_extensions import TypeAlias, TypedDict

Prompt: TypeAlias = str | Sequence[int]
"""Text, which the daemon tokenises, or token ids, taken as they are."""


class RunOptions(TypedDict, total=False):
    """Options of every request that runs a model."""

    model: str
    cache_policy: Literal["use", "read-only", "refresh", "bypass"]
    priority: Literal["low", "normal", "high"]
    namespace: str
    kv_dtype: str
    adapter: str


class CacheOptions(RunOptions, total=False):
    """Options of every request that keeps what it computes."""

    persist: Literal["behind", "durable", "no"]


class WarmOptions(CacheOptions, total=False):
    """Options of a warm-up. For `pin` seconds, 30 days at most, the prompt is not evicted."""

    pin: float


class SamplingOptions(TypedDict, total=False):
    """How tokens are chosen, and when generation ends."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    logit_bias: Mapping[int, float]
    max_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    logprobs: int


class SampleOptions(CacheOptions, SamplingOptions, total=False):
    """Options of a generation."""

    echo_prompt_ids: bool


_ENUMS = ("cache_policy", "priority", "persist")


def sample_request(prompt: Prompt, options: SampleOptions) -> wire.SampleRequest:
    """Asks for a generation."""
    given: dict[str, Any] = dict(options)
    chosen = {name: given.pop(name) for name in SamplingOptions.__annotations__ if name in given}
    return wire.SampleRequest(sampling=Sampling(**chosen), **_prompt(prompt), **_spelled(given))


def warm_request(prompt: Prompt, options: WarmOptions) -> wire.WarmRequest:
    """Asks for a prompt to be computed and kept."""
    given: dict[str, Any] = dict(options)
    if given.get("pin") is not None:
        given["pin"] = _duration(given["pin"])
    return wire.WarmRequest(**_prompt(prompt), **_spelled(given))


def score_request(prompt: Prompt, logprobs: int, options: RunOptions) -> wire.ScoreRequest:
    """Asks for log-probabilities."""
    return wire.ScoreRequest(logprobs=logprobs, **_prompt(prompt), **_spelled(options))


def _prompt(prompt: Prompt) -> dict[str, Any]:
    return {"text": prompt} if isinstance(prompt, str) else {"token_ids": TokenIds(ids=prompt)}


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=seconds))
    return duration


def _spelled(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with their enum values as protobuf names them: `READ_ONLY` of `cache_policy` for `read-only`."""
    return {name: _proto_name(name, value) if name in _ENUMS else value for name, value in options.items()}


def _proto_name(enum: str, value: str) -> str:
    return f"{enum}_{value}".upper().replace("-", "_")
