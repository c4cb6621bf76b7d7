"""grpclib: gRPC in pure Python, over another HTTP/2 implementation than grpc-core's."""

import asyncio

from daemon import Daemon
from grpclib.client import Channel, UnaryStreamMethod
from tinygpt.v1.inference_pb2 import SampleRequest, SampleResponse
from tinygpt.v1.sampling_pb2 import Sampling


def test_grpclib_streams_a_sample(daemon: Daemon) -> None:
    async def check() -> None:
        channel = Channel(path=str(daemon.socket))
        try:
            method = UnaryStreamMethod(channel, "/tinygpt.v1.InferenceService/Sample", SampleRequest, SampleResponse)
            events = await method(SampleRequest(text="ROMEO:", sampling=Sampling(temperature=0, max_tokens=20)))
        finally:
            channel.close()
        assert events[0].WhichOneof("event") == "admitted"
        assert events[-1].done.usage.completion_tokens == 20

    asyncio.run(check())
