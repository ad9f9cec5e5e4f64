"""Records of a source as records of the lanes to workers."""

import time
from zlib import crc32

import cbor2

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import encode_properties
from shardbroker.mqtt.spec import PROPERTIES, PropertyId, Wire
from shardbroker.mqtt.topics import check_topic_name
from shm.records import FED, PUBLISH, encode_event, encode_publish

__all__ = ["Encoder"]

cdef tuple RESERVED = (b"$SYS/", b"$event/")  # beginnings of topics that the broker alone publishes to
EXPIRY_MAX_S = 0xFFFFFFFF

cdef class Encoder:
    """Of the source `id`. workers: their number. payload_max: bytes. event: the name of its events in journals."""

    cdef readonly bytes event
    cdef readonly long long payload_max
    cdef bytes _publisher
    cdef long _workers

    def __init__(self, str id not None, long workers, long long payload_max):
        self.event, self._publisher = f"$sources/{id}".encode(), f"$source:{id}".encode()
        self._workers, self.payload_max = workers, payload_max

    def encode(self, received, bint is_fed) -> list:
        """Returns the records of one, each (worker, record, kind): one for rules if is_fed, kind FED, and one to be published, PUBLISH.

        Raises ValueError for what is not possible here.
        """
        columns, message, key = received
        cdef long worker = crc32(key or self._publisher) % self._workers
        cdef list found = []
        if is_fed:
            found.append((worker, encode_event(self.event, _columns(columns)), FED))
        if message is not None:
            found.append((worker, self._published(message), PUBLISH))
        return found

    cdef bytes _published(self, message):
        cdef bytes topic, payload, encoded = b""
        cdef int payload_format = 0
        cdef long long expiry_s = 0
        topic, payload, qos, retain, given = message
        if <long long>len(payload) > self.payload_max:
            raise ValueError(f"payload: must be at most {self.payload_max} bytes, got {len(payload)}")
        if topic.startswith(RESERVED):
            raise ValueError("topic: must not be below $SYS/ or $event/")
        try:
            check_topic_name(topic)
        except MqttError as error:
            raise ValueError(f"MqttError: {error}") from None
        if given:
            properties = dict(given)
            expiry_s = min(max(int(properties.pop(PropertyId.MESSAGE_EXPIRY_INTERVAL, 0)), 0), EXPIRY_MAX_S)
            try:
                encoded = encode_properties(properties)
            except (MqttError, TypeError, OverflowError, AttributeError, KeyError) as error:
                raise ValueError(f"{type(error).__name__}: {error}") from None
            for number, value in properties.items():
                if PROPERTIES[number].wire in (Wire.STRING, Wire.PAIR):
                    _check_text(value)
            payload_format = properties.get(PropertyId.PAYLOAD_FORMAT_INDICATOR, 0)
        return encode_publish(
            topic, payload, qos=qos, retain=retain, client_id=self._publisher, properties=encoded, payload_format=payload_format,
            expires_ms=time.time_ns() // 1_000_000 + 1000 * expiry_s if expiry_s else 0,
        )  # fmt: skip


def _check_text(value) -> None:
    """Checks a text of MQTT, or the pairs of User Properties (MQTT 5.0 §1.5.4). Raises ValueError."""
    if isinstance(value, list | tuple):
        for one in value:
            _check_text(one)
    elif b"\0" in value:
        raise ValueError("properties: must be texts without U+0000")
    else:
        value.decode()


cdef bytes _columns(columns):
    try:
        return cbor2.dumps(columns)
    except (cbor2.CBOREncodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"columns: must be values of JSON: {type(error).__name__}") from None
