"""Properties of MQTT 5.0 as callbacks see them: names and Python values. The codec checks those that callbacks return."""

from collections.abc import Callable, Mapping
from typing import Any

from shardbroker.hooks.contract import Properties
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import Connack, Connect, Publish, decode
from shardbroker.mqtt.spec import PROPERTIES, PacketType, PropertyId, Wire

__all__ = ["CONNACK", "CONNECT", "PUBLISH", "named", "numbered"]

Known = dict[PropertyId, Any]
Packet = Callable[[Known], Any]


def CONNECT(given: Known) -> Any:
    """Returns a CONNECT with these properties."""
    return Connect(5, b"c", properties=given)


def CONNACK(given: Known) -> Any:
    """Returns a CONNACK with these properties."""
    return Connack(False, 0, given)


def PUBLISH(given: Known) -> Any:
    """Returns a PUBLISH with these properties, which must be allowed for publishers and subscribers alike."""
    for number in given:
        if PacketType.WILL not in PROPERTIES[number].packets:
            raise ValueError(f"{number.name.lower()} is not a property of a message")
    return Publish(b"t", properties=given)


def named(properties: Mapping[Any, Any] | None) -> Properties:
    """Returns the properties of a packet as callbacks receive them."""
    return Properties({PropertyId(number).name.lower(): _shown(number, value) for number, value in (properties or {}).items()})


def numbered(given: Any, packet: Packet) -> Known:
    """Returns the properties by number, for a packet that must allow them. Raises ValueError."""
    if not isinstance(given, Mapping):
        raise ValueError(f"properties are a dictionary, not {type(given).__name__}")
    found: Known = {}
    for name, value in given.items():
        number = PropertyId.__members__.get(str(name).upper())
        if number is None:
            raise ValueError(f"unknown property {name!r}")
        try:
            found[number] = _kept(number, value)
        except (AttributeError, TypeError, ValueError):
            raise ValueError(f"property {name}: value {value!r} is not valid") from None
    try:
        decode(packet(found).encode(5))
    except (MqttError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"properties are not valid: {error}") from None
    return found


def _shown(number: int, value: Any) -> Any:
    wire = PROPERTIES[number].wire
    if wire is Wire.STRING:
        return value.decode()
    if wire is Wire.PAIR:
        return tuple((name.decode(), text.decode()) for name, text in value)
    return value


def _kept(number: int, value: Any) -> Any:
    wire = PROPERTIES[number].wire
    if wire is Wire.STRING:
        return value.encode()
    if wire is Wire.BINARY:
        return bytes(memoryview(value))
    if wire is Wire.PAIR:
        return [(name.encode(), text.encode()) for name, text in value]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value
