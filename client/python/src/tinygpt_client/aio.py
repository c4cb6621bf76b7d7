"""The client for asyncio programs. Each method does what its namesake in `client` does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any

import grpc.aio
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


class AsyncClient:
    """A connection to the daemon, for one event loop. Make it inside a coroutine."""

    def __init__(self, socket: str | PathLike[str] | None = None) -> None:
        self.channel = grpc.aio.insecure_channel(target(socket), options=CHANNEL_OPTIONS)
        self._inference = InferenceServiceStub(self.channel)
        self._models = ModelServiceStub(self.channel)

    def sample(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[SampleOptions]
    ) -> AsyncSample:
        """Generates from a raw prompt; the text arrives while it is generated."""
        return AsyncSample(self._inference.Sample(sample_request(prompt, options), timeout=timeout))

    async def warm(self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[WarmOptions]) -> Warmed:
        """Computes a prompt and keeps it, generating nothing. For `pin` seconds it is not evicted."""
        warming = AsyncSample(self._inference.Warm(warm_request(prompt, options), timeout=timeout))
        async for _ in warming.events():
            pass
        return warming.warmed

    async def score(
        self, prompt: Prompt, *, logprobs: int = 0, timeout: float | None = None, **options: Unpack[RunOptions]
    ) -> Score:
        """Gives the log-probability of every token of `prompt`, and the `logprobs` best in its place."""
        request = score_request(prompt, logprobs, options)
        with translated():
            return from_wire(Score, await self._inference.Score(request, timeout=timeout))

    async def tokenize(self, text: str, *, model: str = "", bare: bool = False) -> list[int]:
        """Gives the token ids that `sample` would use; with `bare`, without the beginning token."""
        with translated():
            request = wire.TokenizeRequest(model=model, text=text, bare=bare)
            return list((await self._inference.Tokenize(request)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "") -> str:
        """Gives the text of token ids; bytes that are no UTF-8 become U+FFFD."""
        with translated():
            request = wire.DetokenizeRequest(model=model, token_ids=token_ids)
            return str((await self._inference.Detokenize(request)).text)

    async def models(self) -> list[Model]:
        """Lists the daemon's models, the default one first."""
        with translated():
            answer = await self._models.List(model_wire.ModelServiceListRequest())
        return [from_wire(Model, model) for model in answer.models]

    async def close(self) -> None:
        """Ends the connection and cancels what still runs on it."""
        await self.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSample(Generation):
    """A running generation: iterate over it for its text, or over `events()` for everything.

    Leaving the iteration early stops the generation in the daemon.
    """

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call

    async def __aiter__(self) -> AsyncIterator[str]:
        async for event in self.events():
            if isinstance(event, Delta) and event.text:
                yield event.text

    async def events(self) -> AsyncIterator[Event]:
        """Yields what the daemon sends, in order."""
        try:
            with translated():
                async for response in self._call:
                    yield self._record(response)
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """Stops the generation in the daemon; a pending iteration raises `asyncio.CancelledError`."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
