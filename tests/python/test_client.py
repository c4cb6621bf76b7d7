"""The client package against a real daemon."""

import asyncio
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import daemon as real
import pytest
import tinygpt_client
from daemon import Daemon
from stubs import REPOSITORY

LONG = 900
"""Tokens of a generation that takes long enough to be interrupted."""


def test_a_sample_then_the_same_from_memory(daemon: Daemon) -> None:
    prompt = "Twice the same prompt, through the client package. " * 3
    with tinygpt_client.Client(daemon.socket) as client:
        first, second = (done(client.sample(prompt, max_tokens=20, temperature=0, namespace="twice")) for _ in "12")
    assert first.text == second.text
    assert (first.verdict, second.verdict) == ("COLD", "FULL_MEMORY")
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, len(prompt))
    assert first.finish_reason == "LENGTH" and len(first.token_ids) == 20


def done(sample: tinygpt_client.Sample) -> tinygpt_client.Sample:
    """Runs a generation to its end."""
    for _ in sample:
        pass
    return sample


def test_warming_makes_the_sample_a_hit(daemon: Daemon) -> None:
    prompt = "Warmed before it is asked for. " * 5
    with tinygpt_client.Client(daemon.socket) as client:
        warmed = client.warm(prompt, namespace="warmed")
        sample = done(client.sample(prompt, max_tokens=1, namespace="warmed"))
    assert (warmed.verdict, warmed.usage.completion_tokens) == ("COLD", 0)
    assert sample.verdict == "FULL_MEMORY"


def test_a_warmed_prompt_is_pinned_for_as_long_as_was_asked(daemon: Daemon) -> None:
    prompt = "Pinned while it is warmed. " * 5
    with tinygpt_client.Client(daemon.socket) as client:
        warmed = client.warm(prompt, namespace="pinned", pin=90)
        unpinned = client.warm(prompt, namespace="pinned")
        with pytest.raises(tinygpt_client.InvalidArgument, match="30 days"):
            client.warm(prompt, pin=timedelta(days=31).total_seconds())
    assert warmed.pinned is not None and warmed.pinned.durable and warmed.pinned.bytes > 0
    left = warmed.pinned.expires - datetime.now(timezone.utc)
    assert timedelta(seconds=60) < left <= timedelta(seconds=91)
    assert unpinned.pinned is None and unpinned.prompt_key == warmed.prompt_key


def test_scores_are_what_sampling_reports(daemon: Daemon) -> None:
    with tinygpt_client.Client(daemon.socket) as client:
        sample = done(client.sample("ROMEO:", max_tokens=5, temperature=0, logprobs=2, echo_prompt_ids=True))
        assert sample.admitted is not None
        prompt = sample.admitted.prompt_token_ids
        scored = client.score([*prompt, *sample.token_ids], logprobs=2).tokens
    assert list(prompt) == list(b"ROMEO:")
    assert scored[0].logprob is None and len(scored) == len(prompt) + 5
    assert list(scored[len(prompt) :]) == sample.logprobs


def test_tokens_and_models(daemon: Daemon) -> None:
    with tinygpt_client.Client(daemon.socket) as client:
        assert client.tokenize("grüße") == list("grüße".encode())
        assert client.detokenize(client.tokenize("grüße")) == "grüße"
        (model,) = client.models()
    assert (model.name, model.default, model.state, model.context) == ("builtin", True, "READY", 1024)


def test_a_refusal_is_a_typed_error_with_a_reason(daemon: Daemon) -> None:
    with tinygpt_client.Client(daemon.socket) as client:
        with pytest.raises(tinygpt_client.InvalidArgument, match="1,024") as caught:
            list(client.sample("x" * 2000))
        with pytest.raises(tinygpt_client.NotFound, match="no-such-model"):
            list(client.sample("x", model="no-such-model"))
    assert caught.value.reason == "PROMPT_TOO_LONG"


def test_leaving_early_lets_others_run(daemon: Daemon) -> None:
    with tinygpt_client.Client(daemon.socket) as client:
        for _ in client.sample("Left early: ", max_tokens=LONG):
            break
        with pytest.raises(tinygpt_client.DeadlineExceeded):
            list(client.sample("Out of time: ", max_tokens=LONG, timeout=0.05))
        assert list(client.sample("Served: ", max_tokens=5))


def test_asyncio_clients_run_side_by_side(daemon: Daemon) -> None:
    async def one(client: tinygpt_client.AsyncClient, prompt: str) -> str:
        sample = client.sample(prompt, max_tokens=20, temperature=0)
        return "".join([text async for text in sample])

    async def all_together() -> list[str]:
        async with tinygpt_client.AsyncClient(daemon.socket) as client:
            return await asyncio.gather(*(one(client, f"Async {voice}: ") for voice in range(4)))

    with tinygpt_client.Client(daemon.socket) as client:
        alone = ["".join(client.sample(f"Async {voice}: ", max_tokens=20, temperature=0)) for voice in range(4)]
    assert asyncio.run(all_together()) == alone


def test_the_readmes_example_finds_a_daemon_that_nobody_named(folder: Path) -> None:
    example = REPOSITORY / "client" / "python" / "example.py"
    assert example.read_text() in (example.parent / "README.md").read_text()
    with real.running(folder, default_place=True):
        environment = real.environment(XDG_RUNTIME_DIR=str(folder))
        run = [subprocess.run([sys.executable, example], env=environment, capture_output=True, text=True) for _ in "12"]
    first, second = (finished.stdout.splitlines()[-1] for finished in run)
    assert first == "COLD: 0 of 6 prompt tokens were cached"
    assert second == "FULL_MEMORY: 6 of 6 prompt tokens were cached"
