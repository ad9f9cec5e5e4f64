"""Messages and methods of etcd's API, built from descriptors when the process starts."""

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["message", "method"]

DESCRIPTORS = files("shardbroker.membership") / "etcd.binpb"
"""The compiled descriptors; `make proto` builds them from etcd.proto."""
PACKAGE = "etcdserverpb"

_pool = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
    _pool.Add(_file)


def message(name: str) -> Any:
    """Returns the class of a message."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def method(service: str, name: str) -> tuple[str, Any, Any]:
    """Returns the path of a method, and the classes of its request and its response."""
    found = _pool.FindServiceByName(f"{PACKAGE}.{service}").methods_by_name[name]
    request, response = found.input_type, found.output_type
    return f"/{PACKAGE}.{service}/{name}", message_factory.GetMessageClass(request), message_factory.GetMessageClass(response)
