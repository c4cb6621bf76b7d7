"""A daemon of a few lines, for what the client package does with answers that a real one gives rarely."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import grpc
from google.protobuf import any_pb2, duration_pb2, timestamp_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status
from tinygpt.v1 import cache_pb2, generation_pb2, inference_pb2, inference_pb2_grpc, verdict_pb2


class FakeDaemon(inference_pb2_grpc.InferenceServiceServicer):
    """Answers by the prompt's text: "busy" fails with details, "endless" runs until it is cancelled."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.requests: list[inference_pb2.SampleRequest | inference_pb2.WarmRequest] = []
        self.cancelled = threading.Event()

    def Sample(
        self, request: inference_pb2.SampleRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.SampleResponse]:
        self.requests.append(request)
        if request.text == "busy":
            context.abort_with_status(rpc_status.to_status(busy()))
        yield inference_pb2.SampleResponse(admitted=generation_pb2.Admitted(model="toy", prompt_tokens=3, seed=2**63))
        while request.text == "endless" and not self._gone(context):
            yield inference_pb2.SampleResponse(delta=generation_pb2.Delta(text="and on "))
        yield inference_pb2.SampleResponse(prefill_progress=generation_pb2.PrefillProgress(done_tokens=2, total_tokens=3))
        yield inference_pb2.SampleResponse(delta=words())
        yield inference_pb2.SampleResponse(delta=generation_pb2.Delta(token_ids=[9]))
        yield inference_pb2.SampleResponse(done=done())

    def Warm(
        self, request: inference_pb2.WarmRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.WarmResponse]:
        self.requests.append(request)
        yield inference_pb2.WarmResponse(admitted=generation_pb2.Admitted(model="toy", prompt_tokens=3))
        if request.HasField("pin"):
            expires = timestamp_pb2.Timestamp(seconds=1_800_000_000, nanos=500_000_000)
            yield inference_pb2.WarmResponse(pinned=cache_pb2.PinResponse(expires=expires, bytes=7, durable=True))
        yield inference_pb2.WarmResponse(done=done())

    def _gone(self, context: grpc.ServicerContext) -> bool:
        context.add_callback(self.cancelled.set)
        return self.cancelled.wait(0.01)


def words() -> generation_pb2.Delta:
    top = [generation_pb2.TokenProbability(id=7, logprob=-0.5), generation_pb2.TokenProbability(id=8, logprob=-1.5)]
    logprobs = [generation_pb2.TokenLogprobs(id=7, logprob=-0.5, top=top), generation_pb2.TokenLogprobs(id=8)]
    return generation_pb2.Delta(text="words", token_ids=[7, 8], logprobs=logprobs)


def done() -> generation_pb2.Done:
    return generation_pb2.Done(
        finish_reason=generation_pb2.FINISH_REASON_STOP,
        verdict=verdict_pb2.VERDICT_PARTIAL_DISK,
        reason=verdict_pb2.REASON_DIVERGED,
        divergence=verdict_pb2.Divergence(token_index=2, prompt_text="a", cached_text="b"),
        usage=generation_pb2.Usage(
            prompt_tokens=3, cached_tokens=2, cached=verdict_pb2.CachedTokens(disk=2), completion_tokens=3
        ),
        timings=generation_pb2.Timings(ttft_ms=1.5),
        warnings=["two beginning tokens"],
    )


def busy() -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="tinygpt", metadata={"limit": "64"})
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=250_000_000))
    status = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message="the queue of 64 is full")
    for detail in (info, retry):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


@contextmanager
def running(socket: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(socket)
    server = grpc.server(ThreadPoolExecutor(4))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(daemon, server)
    server.add_insecure_port(f"unix:{quote(str(socket))}")
    server.start()
    try:
        yield daemon
    finally:
        server.stop(grace=None).wait()
