"""Talks to tinygptd, a local model daemon with a lasting KV cache, over its Unix socket.

    from tinygpt_client import Client

    with Client() as client:
        sample = client.sample("ROMEO:", max_tokens=80)
        for text in sample:
            print(text, end="", flush=True)
        print(sample.verdict, sample.usage.cached_tokens)

`AsyncClient` is the same for asyncio. Answers are frozen dataclasses (`messages`), failures are
subclasses of `TinyGptError` that carry the daemon's stable reason (`errors`).

The package wraps what most programs need. For everything else the generated stubs are part of it:
`tinygpt.v1.cache_pb2_grpc.CacheServiceStub(client.channel)` and its siblings.
"""

from .aio import AsyncClient, AsyncSample
from .client import Client, Sample
from .errors import (
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    TinyGptError,
    Unavailable,
    Unimplemented,
)
from .messages import (
    Adapter,
    Admitted,
    CachedTokens,
    Delta,
    Divergence,
    Done,
    Event,
    Model,
    Pinned,
    PrefillProgress,
    Score,
    Timings,
    TokenLogprobs,
    TokenProbability,
    Usage,
    Warmed,
)
from .sockets import SocketPathTooLong, default_socket

__all__ = [
    "Adapter",
    "Admitted",
    "AsyncClient",
    "AsyncSample",
    "CachedTokens",
    "Cancelled",
    "Client",
    "DataLoss",
    "DeadlineExceeded",
    "Delta",
    "Divergence",
    "Done",
    "Event",
    "FailedPrecondition",
    "InvalidArgument",
    "Model",
    "NotFound",
    "PermissionDenied",
    "Pinned",
    "PrefillProgress",
    "ResourceExhausted",
    "Sample",
    "Score",
    "SocketPathTooLong",
    "Timings",
    "TinyGptError",
    "TokenLogprobs",
    "TokenProbability",
    "Unavailable",
    "Unimplemented",
    "Usage",
    "Warmed",
    "default_socket",
]
