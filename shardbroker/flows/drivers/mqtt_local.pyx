"""Messages of another MQTT broker as records of a source, and as messages of this broker."""

import time

from shardbroker.flows.drivers.mqtt_properties import INTO
from shardbroker.flows.messages import PROPERTY_NAMES
from shardbroker.flows.sources.source import Message, Received
from shardbroker.mqtt.spec import PropertyId
from shardbroker.rules.templates import template
from shardbroker.rules.values import EvaluationError

__all__ = ["LocalMessages"]

cdef dict NAMES = PROPERTY_NAMES
cdef frozenset PASSED = frozenset([*NAMES, PropertyId.USER_PROPERTY])  # properties of a message that are its publisher's
cdef frozenset YES = frozenset({"true", "1"})
cdef str SAME_QOS = "${qos}", SAME_RETAIN = "${retain}"  # templates that keep what a message has: its fields are not rendered


cdef class LocalMessages:
    """address: of the server. topic, payload, qos, retain: templates; without a topic nothing is published. strip: begin of topics
    that is left out. origin: of the data directory here; empty: messages are not marked. version: of MQTT.

    Raises EvaluationError for a template that is too long.
    """

    cdef str _address, _strip
    cdef object _topic, _payload, _qos, _retain
    cdef tuple _around                     # texts around ${topic}, if the topic has no other placeholder; or None
    cdef bint _is_payload                  # whether the payload is that of the message
    cdef bint _keeps_qos, _keeps_retain
    cdef list _mark

    def __init__(
        self, str address not None, str topic, str strip, str payload not None, str qos not None, str retain not None,
        str origin not None, int version,
    ):  # fmt: skip
        self._address, self._strip = address, strip
        self._topic = template(topic) if topic else None
        self._payload, self._qos, self._retain = template(payload), template(qos), template(retain)
        self._keeps_qos, self._keeps_retain = qos.strip() == SAME_QOS, retain.strip() == SAME_RETAIN
        self._is_payload = self._payload.parts == (("payload",),)
        self._mark = [(INTO.encode(), origin.encode())] if version == 5 and origin else []
        parts = self._topic.parts if self._topic is not None else ()
        if sum([one == ("topic",) for one in parts]) == 1 and all([one == ("topic",) or isinstance(one, str) for one in parts]):
            at = parts.index(("topic",))
            self._around = ("".join(parts[:at]), "".join(parts[at + 1 :]))

    def received(self, packet):
        """Returns a record, with what is published here; an impossible message is made a failed record by its topic."""
        given = packet.properties
        cdef dict columns = {
            "server": self._address,
            "topic": packet.topic.decode(),
            "payload": packet.payload,
            "qos": packet.qos,
            "dup": packet.dup,
            "retain": packet.retain,
            "pub_props": _named(given) if given else {},
            "message_received_at": time.time_ns() // 1_000_000,
        }
        message = self._message(columns, packet, given) if self._topic is not None else None
        return tuple.__new__(Received, (columns, message, packet.topic))

    cdef object _message(self, dict columns, packet, given):
        cdef dict fields = columns, properties = {}
        cdef str topic = columns["topic"]
        if self._strip and topic.startswith(self._strip):
            topic = topic.removeprefix(self._strip)
            fields = {**columns, "topic": topic}
        if given:
            properties = {number: value for number, value in given.items() if number in PASSED}
        if self._mark:
            properties[PropertyId.USER_PROPERTY] = [*properties.get(PropertyId.USER_PROPERTY, ()), *self._mark]
        try:
            topic = <str>self._around[0] + topic + <str>self._around[1] if self._around is not None else self._topic.render(fields)
            payload = packet.payload if self._is_payload else _bytes(self._payload, fields)
            retain = packet.retain if self._keeps_retain else self._retain.render(fields) in YES
            qos = packet.qos if self._keeps_qos else self._qos_of(fields)
            return tuple.__new__(Message, (topic.encode(), payload, qos, retain, properties))
        except (EvaluationError, UnicodeEncodeError):
            return Message(b"", b"")

    cdef int _qos_of(self, dict fields) except -1:
        """Raises EvaluationError."""
        qos = self._qos.render(fields)
        if qos not in ("0", "1", "2"):
            raise EvaluationError("qos")
        return int(qos)


cdef dict _named(given):
    """Returns properties as the column pub_props has them."""
    cdef dict found = {}
    for number, value in given.items():
        if number == PropertyId.USER_PROPERTY:
            pairs = [{"key": _text(key), "value": _text(one)} for key, one in value]
            found["User-Property"] = {one["key"]: one["value"] for one in pairs}
            found["User-Property-Pairs"] = pairs
        elif (name := NAMES.get(number)) is not None:
            found[name] = _text(value) if isinstance(value, bytes) else value
    return found


cdef str _text(value):
    return value.decode(errors="replace")


cdef bytes _bytes(text, dict fields):
    if len(text.parts) == 1 and not isinstance(text.parts[0], str):
        value = text.value(fields, text.parts[0])
        if isinstance(value, bytes):
            return value
    return text.render(fields).encode()
