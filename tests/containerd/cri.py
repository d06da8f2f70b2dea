"""The Container Runtime Interface as the kubelet speaks it: requests and answers are the JSON of its messages.

The messages come from Kubernetes' own api.proto, translated when the tests run.
"""

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from tests.cluster import modules

PROTO = ("k8s.io/cri-api", "v0.34.4", "pkg/apis/runtime/v1/api.proto")
CALL_SECONDS = 120.0

Json = dict[str, Any]


class Refused(Exception):
    """The runtime's error: gRPC's code and its text."""


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    """The types of api.proto. Raises BuildError where it cannot be fetched."""
    proto = modules.file(*PROTO)
    with tempfile.TemporaryDirectory() as name:
        made = Path(name) / "api.binpb"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={proto.parent}"]
        command += ["--include_imports", f"--descriptor_set_out={made}", proto.name]
        subprocess.run(command, check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


class Cri:
    """A connection to a runtime's socket, for the length of a `with` block."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")

    def __enter__(self) -> "Cri":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, service: str, method: str, request: Json) -> Json:
        """Call a method of `RuntimeService` or `ImageService`. Raises Refused, json_format.ParseError."""
        described = _pool().FindServiceByName(f"runtime.v1.{service}").methods_by_name[method]
        question = message_factory.GetMessageClass(described.input_type)
        answer = message_factory.GetMessageClass(described.output_type)
        ask = self._channel.unary_unary(
            f"/runtime.v1.{service}/{method}",
            request_serializer=question.SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            given = ask(json_format.ParseDict(request, question()), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise Refused(f"{method}: {error.code().name}: {error.details()}") from error
        told = json_format.MessageToDict(
            given, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return dict(told)

    def runtime(self, method: str, request: Json) -> Json:
        return self.call("RuntimeService", method, request)

    def image(self, method: str, request: Json) -> Json:
        return self.call("ImageService", method, request)
