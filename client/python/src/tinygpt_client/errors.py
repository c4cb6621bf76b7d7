"""Failures, one class per gRPC status that the daemon uses.

    try:
        list(client.sample(prompt))
    except ResourceExhausted as error:
        sleep(error.retry_after or 1)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

_DETAILS = "grpc-status-details-bin"


class TinyGptError(Exception):
    """A call failed. `str(error)` is what the daemon said, numbers included."""

    code: grpc.StatusCode
    reason: str
    """The daemon's stable word for what went wrong, or "" when it was not the daemon that failed the call."""
    metadata: dict[str, str]
    """What the daemon adds to the reason, by name."""
    retry_after: float | None
    """Seconds after which the same call may succeed, where the daemon knows."""

    def __init__(self, code: grpc.StatusCode, message: str, details: Status) -> None:
        super().__init__(message)
        info, retry = ErrorInfo(), RetryInfo()
        for detail in details.details:
            detail.Unpack(info) or detail.Unpack(retry)
        self.code = code
        self.reason = info.reason
        self.metadata = dict(info.metadata)
        self.retry_after = retry.retry_delay.ToTimedelta().total_seconds() if retry.HasField("retry_delay") else None


class InvalidArgument(TinyGptError):
    """The request is wrong, and always will be."""


class NotFound(TinyGptError):
    """There is no such model or cached prompt."""


class FailedPrecondition(TinyGptError):
    """What was asked for is impossible in this daemon's state."""


class ResourceExhausted(TinyGptError):
    """The daemon has too much to do, or the message is too large."""


class Unavailable(TinyGptError):
    """No daemon listens, or it is loading or draining."""


class DeadlineExceeded(TinyGptError):
    """`timeout` has passed."""


class Cancelled(TinyGptError):
    """The call was cancelled, by this side or by the daemon."""


class PermissionDenied(TinyGptError):
    """The daemon belongs to another user."""


class DataLoss(TinyGptError):
    """What lies on disk is corrupt."""


class Unimplemented(TinyGptError):
    """This daemon does not have that call."""


_CLASSES: dict[grpc.StatusCode, type[TinyGptError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.DATA_LOSS: DataLoss,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}


@contextmanager
def translated() -> Iterator[None]:
    """Turns a failed call inside the block into a `TinyGptError`."""
    try:
        yield
    except grpc.RpcError as error:
        raise _from_call(error) from error


def _from_call(call: Any) -> TinyGptError:
    kind = _CLASSES.get(call.code(), TinyGptError)
    details = next((value for key, value in call.trailing_metadata() or () if key == _DETAILS), b"")
    return kind(call.code(), call.details() or call.code().name, Status.FromString(details))
