"""What a generation has told so far, the same for both clients."""

from __future__ import annotations

from typing import Any

from .messages import (
    Admitted,
    Delta,
    Done,
    Event,
    FinishReason,
    Pinned,
    TokenLogprobs,
    Usage,
    Verdict,
    Warmed,
    event_from_wire,
)


class Generation:
    """The record of one generation. It grows while the generation is iterated over.

    What only the end can tell (`done`, `usage`, `verdict`, `finish_reason`) raises `RuntimeError` before it.
    """

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.admitted: Admitted | None = None
        self._pinned: Pinned | None = None
        self._done: Done | None = None

    @property
    def done(self) -> Done:
        """Everything that the daemon said at the end."""
        if self._done is None:
            raise RuntimeError("the generation has not ended: iterate over it first")
        return self._done

    @property
    def warmed(self) -> Warmed:
        """The same at the end of a warm-up, with the pin, which comes before the end."""
        return Warmed(**vars(self.done), pinned=self._pinned)

    @property
    def verdict(self) -> Verdict:
        """What the cache contributed."""
        return self.done.verdict

    @property
    def usage(self) -> Usage:
        """Tokens read and written."""
        return self.done.usage

    @property
    def finish_reason(self) -> FinishReason:
        """Why generation ended."""
        return self.done.finish_reason

    def _record(self, response: Any) -> Event:
        event = event_from_wire(response)
        if isinstance(event, Admitted):
            self.admitted = event
        elif isinstance(event, Delta):
            self.text += event.text
            self.token_ids += event.token_ids
            self.logprobs += event.logprobs
        elif isinstance(event, Pinned):
            self._pinned = event
        elif isinstance(event, Done):
            self._done = event
        return event
