"""Stock grpcio, with stubs made by grpcio-tools and no options, on a bare `unix:` target.

grpc-core then sends the percent-encoded socket path as HTTP/2 authority (see `test_authority`). That
the calls here succeed is the daemon's doing.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import daemon as real
import grpc
import pytest
from daemon import Daemon, target
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status
from tinygpt.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    cache_pb2,
    cache_pb2_grpc,
    generation_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    sampling_pb2,
    verdict_pb2,
)

LONG = 900
"""Tokens of a generation that takes long enough to be interrupted."""


@pytest.fixture
def channel(daemon: Daemon) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(target(daemon.socket)) as channel:
        yield channel


def request(text: str = "ROMEO:", max_tokens: int = 20, **fields: object) -> inference_pb2.SampleRequest:
    sampling = sampling_pb2.Sampling(temperature=0, max_tokens=max_tokens)
    return inference_pb2.SampleRequest(text=text, sampling=sampling, **fields)


def sample(channel: grpc.Channel, asked: inference_pb2.SampleRequest, **options: object) -> grpc.Call:
    return inference_pb2_grpc.InferenceServiceStub(channel).Sample(asked, **options)


def test_a_bare_absolute_target_streams_a_sample(channel: grpc.Channel) -> None:
    events = list(sample(channel, request()))
    assert events[0].WhichOneof("event") == "admitted"
    assert events[-1].WhichOneof("event") == "done"
    deltas = [event.delta for event in events if event.WhichOneof("event") == "delta"]
    assert len(deltas) > 1, "the text must arrive while it is generated"
    assert sum(len(delta.token_ids) for delta in deltas) == 20
    done = events[-1].done
    assert done.finish_reason == generation_pb2.FINISH_REASON_LENGTH
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (6, 20)


def test_the_same_prompt_again_gives_the_same_text_from_memory(channel: grpc.Channel) -> None:
    asked = request("Asked for twice, computed once; " * 3, namespace="stock")
    first, second = text_and_done(channel, asked), text_and_done(channel, asked)
    assert first[0] == second[0]
    assert first[1].verdict == verdict_pb2.VERDICT_COLD
    assert second[1].verdict == verdict_pb2.VERDICT_FULL_MEMORY
    assert second[1].usage.cached_tokens == second[1].usage.prompt_tokens == second[1].usage.cached.memory


def text_and_done(channel: grpc.Channel, asked: inference_pb2.SampleRequest) -> tuple[str, generation_pb2.Done]:
    events = list(sample(channel, asked))
    return "".join(event.delta.text for event in events), events[-1].done


def test_the_triple_slash_form_works(daemon: Daemon) -> None:
    with grpc.insecure_channel(f"unix://{daemon.socket}") as channel:
        assert list(sample(channel, request()))


def test_a_relative_target_works(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(daemon.socket.parent)
    with grpc.insecure_channel(target(daemon.socket.name)) as channel:
        assert list(sample(channel, request()))


@pytest.mark.parametrize("name", ["a space.sock", "12:30:45 [a] [b] grüße@.sock"])
def test_a_socket_whose_name_is_no_host_name_works(folder: Path, name: str) -> None:
    with real.running(folder, name) as odd, grpc.insecure_channel(target(odd.socket)) as channel:
        assert list(sample(channel, request()))


def test_many_calls_on_one_connection_work(channel: grpc.Channel) -> None:
    """The header table of HPACK grows and is referred to: the authority must stay rewritten."""
    for turn in range(100):
        metadata = (("x-turn", str(turn)), ("x-padding", "p" * 10 * turn), ("x-raw-bin", bytes(range(256))))
        asked = inference_pb2.TokenizeRequest(text="a")
        answer = inference_pb2_grpc.InferenceServiceStub(channel).Tokenize(asked, metadata=metadata)
        assert list(answer.token_ids) == [ord("a")]


def test_streams_run_side_by_side_on_one_connection(channel: grpc.Channel) -> None:
    asked = [request(f"Voice {voice}: ") for voice in range(8)]
    alone = [text_and_done(channel, each)[0] for each in asked]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: text_and_done(channel, each)[0], asked))
    assert together == alone


def test_a_deadline_ends_the_call_and_the_generation(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(sample(channel, request(max_tokens=LONG), timeout=0.05))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await_idle(channel)


def test_cancelling_ends_the_generation_in_the_daemon(channel: grpc.Channel) -> None:
    started = time.monotonic()
    full = len(list(sample(channel, request(max_tokens=LONG, cache_policy=sampling_pb2.CACHE_POLICY_BYPASS))))
    full_seconds = time.monotonic() - started
    assert full > 1
    call = sample(channel, request(max_tokens=LONG, cache_policy=sampling_pb2.CACHE_POLICY_BYPASS))
    next(event for event in call if event.WhichOneof("event") == "delta")
    started = time.monotonic()
    call.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() == grpc.StatusCode.CANCELLED
    await_idle(channel)
    assert time.monotonic() - started < full_seconds / 2


def await_idle(channel: grpc.Channel) -> None:
    admin = admin_pb2_grpc.AdminServiceStub(channel)
    deadline = time.monotonic() + 10
    while (status := admin.Status(admin_pb2.StatusRequest())).running > 0:
        assert time.monotonic() < deadline, f"{status.running} sequences still run"
        time.sleep(0.01)


def test_a_prompt_of_a_megabyte_is_refused_with_both_numbers(channel: grpc.Channel) -> None:
    ids = sampling_pb2.TokenIds(ids=[7] * (1 << 20))
    message, info = refusal(
        channel, inference_pb2.SampleRequest(token_ids=ids), grpc.StatusCode.INVALID_ARGUMENT
    )
    assert "1,048,576" in message and "1,024" in message
    assert info.reason == "PROMPT_TOO_LONG"


@pytest.mark.parametrize(
    ("asked", "code", "reason", "named"),
    [
        (request(model="no-such-model"), grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL", "no-such-model"),
        (
            inference_pb2.SampleRequest(text="a", sampling=sampling_pb2.Sampling(temperature=-1)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "OUT_OF_RANGE",
            "-1",
        ),
        (inference_pb2.SampleRequest(), grpc.StatusCode.INVALID_ARGUMENT, "NO_PROMPT", "prompt"),
        (request(kv_dtype="q77"), grpc.StatusCode.INVALID_ARGUMENT, "UNKNOWN_VALUE", "q77"),
        (
            inference_pb2.SampleRequest(token_ids=sampling_pb2.TokenIds(ids=[99999])),
            grpc.StatusCode.INVALID_ARGUMENT,
            "TOKEN_OUTSIDE_VOCABULARY",
            "99,999",
        ),
    ],
    ids=["unknown model", "negative temperature", "no prompt", "unknown dtype", "token outside the vocabulary"],
)
def test_a_refusal_names_its_cause(
    channel: grpc.Channel, asked: inference_pb2.SampleRequest, code: grpc.StatusCode, reason: str, named: str
) -> None:
    message, info = refusal(channel, asked, code)
    assert named in message
    assert info.reason == reason


def refusal(
    channel: grpc.Channel, asked: inference_pb2.SampleRequest, code: grpc.StatusCode
) -> tuple[str, ErrorInfo]:
    """What the daemon says, and the ErrorInfo with which it says so to a program."""
    with pytest.raises(grpc.RpcError) as caught:
        list(sample(channel, asked))
    assert caught.value.code() == code
    status = rpc_status.from_call(caught.value)
    assert status is not None and status.message == caught.value.details()
    info = ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details), status
    assert info.domain == "tinygpt"
    return status.message, info


def test_what_is_not_built_yet_is_unimplemented(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        inference_pb2_grpc.InferenceServiceStub(channel).Embed(inference_pb2.EmbedRequest(texts=["a"]))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_text_becomes_tokens_and_text_again(channel: grpc.Channel) -> None:
    inference = inference_pb2_grpc.InferenceServiceStub(channel)
    ids = inference.Tokenize(inference_pb2.TokenizeRequest(text="grüße")).token_ids
    assert bytes(ids).decode() == "grüße"
    assert inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=ids)).text == "grüße"


def test_the_other_services_answer(channel: grpc.Channel, daemon: Daemon) -> None:
    models = model_pb2_grpc.ModelServiceStub(channel).List(model_pb2.ModelServiceListRequest()).models
    assert [model.name for model in models] == ["builtin"]
    status = admin_pb2_grpc.AdminServiceStub(channel).Status(admin_pb2.StatusRequest())
    assert (status.pid, status.state) == (daemon.pid, admin_pb2.DAEMON_STATE_SERVING)
    done = text_and_done(channel, request("Listed among the cached prompts: " * 4))[1]
    cache = cache_pb2_grpc.CacheServiceStub(channel)
    keys = [answer.entry.prompt_key for answer in cache.List(cache_pb2.CacheServiceListRequest())]
    assert done.prompt_key in keys
