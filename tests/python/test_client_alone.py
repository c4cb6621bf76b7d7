"""What the client package does by itself, without a daemon."""

import asyncio
import dataclasses
import typing
from datetime import datetime, timezone
from pathlib import Path

import fake
import grpc
import pytest
import tinygpt_client
from fake import FakeDaemon
from tinygpt.v1 import cache_pb2, generation_pb2, inference_pb2, model_pb2, verdict_pb2
from tinygpt_client import messages, sockets


def test_a_sample_yields_its_text_and_remembers_the_rest(fake_daemon: FakeDaemon) -> None:
    with tinygpt_client.Client(fake_daemon.socket) as client:
        sample = client.sample("hello")
        assert list(sample) == ["words"]
    assert sample.text == "words"
    assert sample.token_ids == [7, 8, 9]
    assert sample.admitted is not None and sample.admitted.seed == 2**63
    assert (sample.verdict, sample.finish_reason) == ("PARTIAL_DISK", "STOP")
    assert sample.usage.cached == tinygpt_client.CachedTokens(memory=0, disk=2, joined=0)
    assert sample.done.timings.ttft_ms == 1.5
    assert sample.done.warnings == ("two beginning tokens",)


def test_fields_that_may_be_absent_are_none(fake_daemon: FakeDaemon) -> None:
    with tinygpt_client.Client(fake_daemon.socket) as client:
        sample = client.sample("hello")
        list(sample)
    first, second = sample.logprobs
    assert (first.logprob, [token.id for token in first.top]) == (-0.5, [7, 8])
    assert second.logprob is None
    assert sample.admitted is not None and sample.admitted.divergence is None
    assert sample.done.divergence == tinygpt_client.Divergence(2, "", "a", "b")


def test_events_come_in_the_order_they_were_sent(fake_daemon: FakeDaemon) -> None:
    with tinygpt_client.Client(fake_daemon.socket) as client:
        kinds = [type(event).__name__ for event in client.sample("hello").events()]
    assert kinds == ["Admitted", "PrefillProgress", "Delta", "Delta", "Done"]


def test_options_reach_the_daemon_and_absent_ones_stay_absent(fake_daemon: FakeDaemon) -> None:
    with tinygpt_client.Client(fake_daemon.socket) as client:
        list(client.sample("a", max_tokens=0, temperature=0, stop=["\n"], cache_policy="read-only", persist="durable"))
        list(client.sample([1, 2, 3], seed=2**64 - 1, model="other"))
    first, second = fake_daemon.requests
    assert (first.text, first.sampling.max_tokens, list(first.sampling.stop)) == ("a", 0, ["\n"])
    assert first.sampling.HasField("max_tokens") and first.sampling.HasField("temperature")
    assert not first.sampling.HasField("seed")
    assert (first.cache_policy, first.persist) == (2, 2)
    assert (list(second.token_ids.ids), second.sampling.seed, second.model) == ([1, 2, 3], 2**64 - 1, "other")
    assert not second.sampling.HasField("max_tokens")


def test_a_pin_reaches_the_daemon_and_its_lease_comes_back(fake_daemon: FakeDaemon) -> None:
    async def warmed() -> tinygpt_client.Warmed:
        async with tinygpt_client.AsyncClient(fake_daemon.socket) as client:
            return await client.warm("a", pin=3600)

    with tinygpt_client.Client(fake_daemon.socket) as client:
        pinned, unpinned = client.warm("a", pin=1.5), client.warm("a", persist="durable")
    lease = tinygpt_client.Pinned(datetime(2027, 1, 15, 8, 0, 0, 500_000, timezone.utc), bytes=7, durable=True)
    assert (pinned.pinned, unpinned.pinned, asyncio.run(warmed()).pinned) == (lease, None, lease)
    assert (pinned.verdict, pinned.usage.cached.disk) == ("PARTIAL_DISK", 2)
    first, second, third = fake_daemon.requests
    assert (first.pin.seconds, first.pin.nanos, third.pin.seconds) == (1, 500_000_000, 3600)
    assert not second.HasField("pin")


def test_an_option_that_does_not_exist_is_refused_by_name(fake_daemon: FakeDaemon) -> None:
    with tinygpt_client.Client(fake_daemon.socket) as client:
        with pytest.raises(ValueError, match="temprature"):
            client.sample("a", temprature=0)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="CACHE_POLICY_SOMETIMES"):
            client.sample("a", cache_policy="sometimes")  # type: ignore[arg-type]


def test_a_failure_carries_the_daemons_reason_numbers_and_delay(fake_daemon: FakeDaemon) -> None:
    with tinygpt_client.Client(fake_daemon.socket) as client:
        with pytest.raises(tinygpt_client.ResourceExhausted, match="the queue of 64 is full") as caught:
            list(client.sample("busy"))
    error = caught.value
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert (error.metadata, error.retry_after) == ({"limit": "64"}, 0.25)


def test_no_daemon_is_unavailable_and_names_the_socket(folder: Path) -> None:
    with tinygpt_client.Client(folder / "nobody.sock") as client:
        with pytest.raises(tinygpt_client.Unavailable, match="nobody.sock") as caught:
            list(client.sample("a"))
    assert (caught.value.reason, caught.value.retry_after) == ("", None)


def test_a_timeout_is_deadline_exceeded(fake_daemon: FakeDaemon) -> None:
    with tinygpt_client.Client(fake_daemon.socket) as client:
        with pytest.raises(tinygpt_client.DeadlineExceeded):
            list(client.sample("endless", timeout=0.2))
    assert fake_daemon.cancelled.wait(5)


def test_leaving_the_loop_early_cancels(fake_daemon: FakeDaemon) -> None:
    with tinygpt_client.Client(fake_daemon.socket) as client:
        sample = client.sample("endless")
        for _ in sample:
            break
        assert fake_daemon.cancelled.wait(5)
        with pytest.raises(RuntimeError, match="has not ended"):
            sample.usage  # noqa: B018


def test_cancel_ends_the_iteration_with_cancelled(fake_daemon: FakeDaemon) -> None:
    with tinygpt_client.Client(fake_daemon.socket) as client:
        sample = client.sample("endless")
        with pytest.raises(tinygpt_client.Cancelled):
            for _ in sample:
                sample.cancel()
    assert fake_daemon.cancelled.wait(5)


def test_the_asyncio_client_does_the_same(fake_daemon: FakeDaemon) -> None:
    async def check() -> None:
        async with tinygpt_client.AsyncClient(fake_daemon.socket) as client:
            sample = client.sample("hello")
            assert [text async for text in sample] == ["words"]
            assert sample.verdict == "PARTIAL_DISK"
            with pytest.raises(tinygpt_client.ResourceExhausted) as caught:
                _ = [text async for text in client.sample("busy")]
            assert (caught.value.reason, caught.value.retry_after) == ("QUEUE_FULL", 0.25)
            async with client.sample("endless") as endless:
                async for _ in endless:
                    break
            assert await asyncio.to_thread(fake_daemon.cancelled.wait, 5)

    asyncio.run(check())


@pytest.mark.parametrize(
    ("alias", "enum"),
    [
        (messages.Verdict, verdict_pb2.Verdict),
        (messages.Reason, verdict_pb2.Reason),
        (messages.FinishReason, generation_pb2.FinishReason),
        (messages.ModelState, model_pb2.ModelState),
    ],
)
def test_the_typed_words_are_those_of_the_protocol(alias: typing.Any, enum: typing.Any) -> None:
    words = [messages.label(enum.DESCRIPTOR, value.number) for value in enum.DESCRIPTOR.values]
    assert list(typing.get_args(alias)) == words
    assert messages.label(enum.DESCRIPTOR, 4711) == "UNSPECIFIED"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (messages.Admitted, generation_pb2.Admitted),
        (messages.PrefillProgress, generation_pb2.PrefillProgress),
        (messages.Delta, generation_pb2.Delta),
        (messages.Done, generation_pb2.Done),
        (messages.Pinned, cache_pb2.PinResponse),
        (messages.Usage, generation_pb2.Usage),
        (messages.Timings, generation_pb2.Timings),
        (messages.TokenLogprobs, generation_pb2.TokenLogprobs),
        (messages.TokenProbability, generation_pb2.TokenProbability),
        (messages.CachedTokens, verdict_pb2.CachedTokens),
        (messages.Divergence, verdict_pb2.Divergence),
        (messages.Score, inference_pb2.ScoreResponse),
        (messages.Model, model_pb2.Model),
    ],
)
def test_the_dataclasses_have_the_fields_of_the_protocol(kind: typing.Any, message: typing.Any) -> None:
    assert {field.name for field in dataclasses.fields(kind)} == set(message.DESCRIPTOR.fields_by_name)
    assert isinstance(messages.from_wire(kind, message()), kind)


def test_the_socket_named_by_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYGPT_SOCKET", "/a/b.sock")
    assert sockets.default_socket() == Path("/a/b.sock")
    assert sockets.target(None) == "unix:/a/b.sock"


def test_a_runtime_directory_is_used_only_when_it_is_mine_and_short(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.delenv("TINYGPT_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert sockets.default_socket() == folder / "tinygpt" / "tinygptd.sock"
    deep = folder / ("d" * sockets.MAX_PATH_BYTES)
    deep.mkdir()
    for elsewhere in (folder / "missing", deep, Path("relative")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(elsewhere))
        assert not sockets.default_socket().is_relative_to(elsewhere)


def test_a_path_of_one_byte_too_many_is_refused_with_both_numbers() -> None:
    fits = "/" + "s" * (sockets.MAX_PATH_BYTES - 1)
    assert sockets.target(fits).endswith(fits)
    with pytest.raises(tinygpt_client.SocketPathTooLong, match=f"{len(fits) + 1} bytes.*allows {len(fits)}"):
        tinygpt_client.Client(fits + "s")


@pytest.mark.parametrize("name", ["plain.sock", "a space.sock", "100%.sock", "what?#.sock", "grüße.sock"])
def test_any_file_name_can_be_a_socket(folder: Path, name: str) -> None:
    with fake.running(folder / name), tinygpt_client.Client(folder / name) as client:
        assert list(client.sample("hello")) == ["words"]


def test_a_relative_path_is_relative_to_where_the_client_was_made(
    fake_daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fake_daemon.socket.parent)
    with tinygpt_client.Client(fake_daemon.socket.name) as client:
        monkeypatch.chdir("/")
        assert list(client.sample("hello")) == ["words"]
