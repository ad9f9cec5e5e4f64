"""The service of exhook.proto: its messages and methods, built from its descriptors when the process starts."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from shardbroker.hooks.exhook import FORWARDED

__all__ = ["LOADED", "METHODS", "SERVICES", "UNLOADED", "Method", "message"]

DESCRIPTORS = files("shardbroker.integrations.exhook") / "exhook.binpb"
"""The compiled descriptors; `make proto` builds them from exhook.proto."""
SERVICES = ("emqx.exhook.v2.HookProvider", "emqx.exhook.v3.HookProvider")
"""Names that programs give the service: version 3 has the same messages. The first that a program supports is used."""

_pool = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
    _pool.Add(_file)
_service = _pool.FindServiceByName(SERVICES[0])


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the service."""

    name: str
    request: Any
    response: Any


def message(name: str) -> Any:
    """Returns the class of a message."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"emqx.exhook.v2.{name}"))


def _method(name: str) -> Method:
    found = _service.methods_by_name[name]
    return Method(name, message_factory.GetMessageClass(found.input_type), message_factory.GetMessageClass(found.output_type))


METHODS = {point: _method("On" + "".join(word.capitalize() for word in point.split("."))) for point in FORWARDED}
"""The methods by point."""
LOADED, UNLOADED = _method("OnProviderLoaded"), _method("OnProviderUnloaded")
