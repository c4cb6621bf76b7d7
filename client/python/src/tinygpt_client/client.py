"""The client for ordinary programs: every call blocks its thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any

import grpc
from tinygpt.v1 import inference_pb2 as wire
from tinygpt.v1 import model_pb2 as model_wire
from tinygpt.v1.inference_pb2_grpc import InferenceServiceStub
from tinygpt.v1.model_pb2_grpc import ModelServiceStub
from typing_extensions import Self, Unpack

from .errors import translated
from .generation import Generation
from .messages import Delta, Event, Model, Score, Warmed, from_wire
from .requests import Prompt, RunOptions, SampleOptions, WarmOptions, sample_request, score_request, warm_request
from .sockets import CHANNEL_OPTIONS, target


class Client:
    """A connection to the daemon. It is made at the first call, and may be shared by threads.

    `socket` is the path of the daemon's socket; without it `default_socket()` says where to look.
    Every call raises a `TinyGptError`. `timeout` is in seconds; the daemon keeps it too.
    """

    def __init__(self, socket: str | PathLike[str] | None = None) -> None:
        self.channel = grpc.insecure_channel(target(socket), options=CHANNEL_OPTIONS)
        self._inference = InferenceServiceStub(self.channel)
        self._models = ModelServiceStub(self.channel)

    def sample(self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[SampleOptions]) -> Sample:
        """Generates from a raw prompt; the text arrives while it is generated."""
        return Sample(self._inference.Sample(sample_request(prompt, options), timeout=timeout))

    def warm(self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[WarmOptions]) -> Warmed:
        """Computes a prompt and keeps it, generating nothing. For `pin` seconds it is not evicted."""
        warming = Sample(self._inference.Warm(warm_request(prompt, options), timeout=timeout))
        for _ in warming.events():
            pass
        return warming.warmed

    def score(
        self, prompt: Prompt, *, logprobs: int = 0, timeout: float | None = None, **options: Unpack[RunOptions]
    ) -> Score:
        """Gives the log-probability of every token of `prompt`, and the `logprobs` best in its place."""
        request = score_request(prompt, logprobs, options)
        with translated():
            return from_wire(Score, self._inference.Score(request, timeout=timeout))

    def tokenize(self, text: str, *, model: str = "", bare: bool = False) -> list[int]:
        """Gives the token ids that `sample` would use; with `bare`, without the beginning token."""
        with translated():
            request = wire.TokenizeRequest(model=model, text=text, bare=bare)
            return list(self._inference.Tokenize(request).token_ids)

    def detokenize(self, token_ids: Sequence[int], *, model: str = "") -> str:
        """Gives the text of token ids; bytes that are no UTF-8 become U+FFFD."""
        with translated():
            request = wire.DetokenizeRequest(model=model, token_ids=token_ids)
            return str(self._inference.Detokenize(request).text)

    def models(self) -> list[Model]:
        """Lists the daemon's models, the default one first."""
        with translated():
            answer = self._models.List(model_wire.ModelServiceListRequest())
        return [from_wire(Model, model) for model in answer.models]

    def close(self) -> None:
        """Ends the connection and cancels what still runs on it."""
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Sample(Generation):
    """A running generation: iterate over it for its text, or over `events()` for everything.

    Leaving the iteration early stops the generation in the daemon.
    """

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call

    def __iter__(self) -> Iterator[str]:
        for event in self.events():
            if isinstance(event, Delta) and event.text:
                yield event.text

    def events(self) -> Iterator[Event]:
        """Yields what the daemon sends, in order."""
        try:
            with translated():
                for response in self._call:
                    yield self._record(response)
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """Stops the generation in the daemon; a pending iteration raises `Cancelled`."""
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
