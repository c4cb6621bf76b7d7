"""The services that every gRPC tool expects: health and server reflection, asked with stock stubs."""

from collections.abc import Iterator
from pathlib import Path

import daemon as real
import grpc
import pytest
from daemon import Daemon, target
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from tinygpt.v1 import admin_pb2, admin_pb2_grpc

OURS = [f"tinygpt.v1.{name}Service" for name in ("Admin", "Cache", "Inference", "Model")]


@pytest.fixture
def channel(daemon: Daemon) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(target(daemon.socket)) as channel:
        yield channel


@pytest.mark.parametrize("service", ["", *OURS])
def test_every_service_is_healthy(channel: grpc.Channel, service: str) -> None:
    answer = HealthStub(channel).Check(HealthCheckRequest(service=service))
    assert answer.status == HealthCheckResponse.SERVING


def test_the_health_of_an_unknown_service_is_not_found(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        HealthStub(channel).Check(HealthCheckRequest(service="tinygpt.v1.TeaService"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_watching_health_tells_now_and_when_the_daemon_drains(folder: Path) -> None:
    with real.running(folder) as own, grpc.insecure_channel(target(own.socket)) as channel:
        watch = HealthStub(channel).Watch(HealthCheckRequest(service=OURS[2]), timeout=30)
        assert next(watch).status == HealthCheckResponse.SERVING
        admin_pb2_grpc.AdminServiceStub(channel).Drain(admin_pb2.DrainRequest())
        assert next(watch).status == HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_lists_the_services(channel: grpc.Channel, version: str) -> None:
    answer = reflect(channel, version, reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in answer.list_services_response.service}
    assert {*OURS, "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_describes_a_service_with_all_that_it_imports(channel: grpc.Channel, version: str) -> None:
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="tinygpt.v1.InferenceService")
    answer = reflect(channel, version, asked)
    files = [FileDescriptorProto.FromString(file) for file in answer.file_descriptor_response.file_descriptor_proto]
    (inference,) = [file for file in files if file.name == "tinygpt/v1/inference.proto"]
    assert "Sample" in [method.name for method in inference.service[0].method]
    for name in inference.dependency:
        answer = reflect(channel, version, reflection_pb2.ServerReflectionRequest(file_by_filename=name))
        assert answer.file_descriptor_response.file_descriptor_proto, name


def reflect(
    channel: grpc.Channel, version: str, asked: reflection_pb2.ServerReflectionRequest
) -> reflection_pb2.ServerReflectionResponse:
    """Asks either version; their messages are the same, and PyPI has stubs of the older one only."""
    method = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    (answer,) = method(iter([asked]))
    assert not answer.HasField("error_response"), answer.error_response
    return answer
