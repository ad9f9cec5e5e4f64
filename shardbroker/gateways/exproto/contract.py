"""The services of exproto.proto: their messages and methods, built from its descriptors when the process starts."""

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["ADAPTER", "PACKAGE", "Method", "message", "methods"]

PACKAGE = "emqx.exproto.v1"
ADAPTER = f"{PACKAGE}.ConnectionAdapter"
Method = tuple[Any, Any]
"""Classes of the request and the answer."""

_pool = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString((files(__package__) / "exproto.binpb").read_bytes()).file:
    _pool.Add(_file)


def message(name: str) -> Any:
    """Returns the class of a message."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def methods(service: str) -> dict[str, Method]:
    """Returns the methods of a service by name."""
    return {
        one.name: (message_factory.GetMessageClass(one.input_type), message_factory.GetMessageClass(one.output_type))
        for one in _pool.FindServiceByName(service).methods
    }
