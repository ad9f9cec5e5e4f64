"""Records of a source as records of the lanes to workers."""

import time
from typing import Any, NamedTuple
from zlib import crc32

import cbor2

from shardbroker.flows.sources.source import Message, Received
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import encode_properties
from shardbroker.mqtt.spec import PROPERTIES, PropertyId, Wire
from shardbroker.mqtt.topics import check_topic_name
from shm.records import FED, PUBLISH, encode_event, encode_publish

__all__ = ["Encoded", "Encoder"]

RESERVED = (b"$SYS/", b"$event/")
"""Beginnings of topics that the broker alone publishes to."""
EXPIRY_MAX_S = 0xFFFFFFFF


class Encoded(NamedTuple):
    """A record for the lane of a worker."""

    worker: int
    record: bytes
    kind: int
    """PUBLISH or FED."""


class Encoder:
    """Of the source `id`. workers: their number. payload_max: bytes."""

    def __init__(self, id: str, workers: int, payload_max: int) -> None:
        self.event = f"$sources/{id}".encode()
        """The name of its events in journals."""
        self._publisher = f"$source:{id}".encode()
        self._workers, self.payload_max = workers, payload_max

    def encode(self, received: Received, is_fed: bool) -> list[Encoded]:
        """Returns the records of one: for rules if is_fed, and to be published. Raises ValueError for what is not possible here."""
        worker = crc32(received.key or self._publisher) % self._workers
        found = []
        if is_fed:
            found.append(Encoded(worker, encode_event(self.event, _columns(received.columns)), FED))
        if received.message is not None:
            found.append(Encoded(worker, self._published(received.message), PUBLISH))
        return found

    def _published(self, message: Message) -> bytes:
        topic, payload, qos, retain, given = message
        if len(payload) > self.payload_max:
            raise ValueError(f"payload: must be at most {self.payload_max} bytes, got {len(payload)}")
        if topic.startswith(RESERVED):
            raise ValueError("topic: must not be below $SYS/ or $event/")
        properties = dict(given)
        expiry_s = min(max(int(properties.pop(PropertyId.MESSAGE_EXPIRY_INTERVAL, 0)), 0), EXPIRY_MAX_S)
        try:
            check_topic_name(topic)
            encoded = encode_properties(properties) if properties else b""
        except (MqttError, TypeError, OverflowError, AttributeError, KeyError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        for number, value in properties.items():
            if PROPERTIES[number].wire in (Wire.STRING, Wire.PAIR):
                _check_text(value)
        record: bytes = encode_publish(
            topic, payload, qos=qos, retain=retain, client_id=self._publisher, properties=encoded,
            payload_format=properties.get(PropertyId.PAYLOAD_FORMAT_INDICATOR, 0),
            expires_ms=time.time_ns() // 1_000_000 + 1000 * expiry_s if expiry_s else 0,
        )  # fmt: skip
        return record


def _check_text(value: Any) -> None:
    """Checks a text of MQTT, or the pairs of User Properties (MQTT 5.0 §1.5.4). Raises ValueError."""
    if isinstance(value, list | tuple):
        for one in value:
            _check_text(one)
    elif b"\0" in value:
        raise ValueError("properties: must be texts without U+0000")
    else:
        value.decode()


def _columns(columns: dict[str, Any]) -> bytes:
    try:
        return cbor2.dumps(columns)
    except (cbor2.CBOREncodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"columns: must be values of JSON: {type(error).__name__}") from None
