"""Rows as messages to another MQTT broker."""

from shardbroker.flows.drivers.getters cimport Getter, Rendered
from shardbroker.flows.sinks.row cimport Row
from shardbroker.mqtt.topics cimport is_topic_name

from shardbroker.connectors.mqtt_client import Message
from shardbroker.flows.drivers.getters import encoded, placeholders, rendered
from shardbroker.flows.drivers.mqtt_properties import Properties
from shardbroker.flows.sinks.driver import Failure
from shardbroker.flows.sinks.json_bytes import json_bytes
from shardbroker.mqtt.batches import publish_size
from shardbroker.rules.values import UNDEFINED, EvaluationError

__all__ = ["Messages"]

YES, NO = frozenset({"true", "1"}), frozenset({"false", "0", "", "undefined"})
QOS = {"0": 0, "1": 1, "2": 2, "undefined": 0, "": 0}
WRONG_TOPIC = "parameters.topic: must be a topic without wildcards, got {!r:.200}"
cdef enum:
    HEADER_MAX = 16  # most bytes of PUBLISH besides topic, properties and payload: type and length, two more lengths, packet id


cdef class Messages:
    """topic, payload, qos, retain: templates; without a payload, it is the row as JSON. version: of MQTT. origin: see Properties.

    Raises ValueError.
    """

    cdef Rendered _topic, _payload         # payload: None: JSON
    cdef bytes _constant_topic             # checked once; or None
    cdef int _flags                        # QoS and RETAIN as in the first byte of PUBLISH; -1: of each row
    cdef object _qos, _retain              # a text, or what finds a value in a row
    cdef object _properties                # of MQTT 5.0; or None
    cdef int _version

    def __init__(self, str topic not None, str payload, str qos not None, str retain not None, int version, str origin not None):
        try:
            self._topic = <Rendered>rendered(topic)
        except UnicodeEncodeError:
            raise ValueError(WRONG_TOPIC.format(topic)) from None
        self._payload = <Rendered>rendered(payload) if payload else None
        self._constant_topic = self._topic.constant
        if self._constant_topic is not None and not _is_topic(self._constant_topic):
            raise ValueError(WRONG_TOPIC.format(topic))
        self._qos, self._retain = _only(qos, "qos", QOS), _only(retain, "retain", YES | NO)
        is_constant = isinstance(self._qos, str) and isinstance(self._retain, str)
        self._flags = QOS[self._qos] << 1 | (self._retain in YES) if is_constant else -1
        self._properties = Properties(origin) if version == 5 else None
        self._version = version

    def of(self, list rows not None, limits, str of_sources not None, sources, list failures not None) -> list:
        """Returns the place of each row that is to be sent, with its message; adds those that cannot be made to `failures`.

        limits: of the server. of_sources: begin of the client id of rows that came from a server of this connector's kind, and
        `sources`: those ids of this connector, whose rows are left out.
        """
        cdef list found = []
        cdef Row row
        cdef Py_ssize_t at
        cdef bytes topic, properties = b"", payload
        cdef int flags, most_qos = limits.maximum_qos
        cdef bint retains = limits.retain_available
        cdef long long most = limits.maximum_packet_size
        new = tuple.__new__  # three times as fast as the class of a NamedTuple
        for at in range(len(rows)):
            row = <Row>rows[at]
            if row.client.startswith(of_sources):
                if row.client in sources:
                    continue  # it has come from that server
            elif self._properties is not None and self._properties.is_own(row):
                continue  # it has been here before
            try:
                if self._properties is not None:
                    properties = self._properties.of(row)
                topic = self._constant_topic
                if topic is None:
                    topic = self._topic.of(row)
                    if not _is_topic(topic):
                        failures.append(Failure(at, "the topic is not one that can be published to"))
                        continue
                payload = self._payload.of(row) if self._payload is not None else json_bytes(row.values)
                flags = self._flags
                if flags < 0:
                    flags = _level(self._qos, row) << 1 | _kept(self._retain, row)
            except (EvaluationError, ValueError, TypeError, RecursionError) as error:  # ValueError: also of text that is no UTF-8
                failures.append(Failure(at, f"message not made: {error if type(error) is _Value else type(error).__name__}"))
                continue
            if flags >> 1 > most_qos:
                flags = most_qos << 1 | flags & 1
            if not retains:
                flags &= 6
            if len(payload) + len(topic) + len(properties) + HEADER_MAX > most:
                size = publish_size(topic, flags & 6, properties, payload, self._version)
                if size > most:
                    failures.append(Failure(at, f"a packet of {size} bytes, and the server takes {most}"))
                    continue
            found.append((at, new(Message, (flags, 0, topic, properties, payload))))
        return found


class _Value(ValueError):
    """A value that QoS or RETAIN cannot have; its text has no value of a row."""


cdef bint _is_topic(bytes topic):
    return is_topic_name(<const unsigned char*>topic, <unsigned int>len(topic), 0)


cdef object _only(str text, str name, known):
    """Returns the text, or its only placeholder. Raises ValueError."""
    parts = placeholders(text.strip())
    if len(parts) != 1 or (isinstance(parts[0], str) and parts[0] not in known):
        must = "0, 1, 2 or one placeholder" if name == "qos" else "true, false or one placeholder"
        raise ValueError(f"parameters.{name}: must be {must}, got {text!r:.100}")
    return parts[0]


cdef int _level(level, Row row) except -1:
    value = level if isinstance(level, str) else (<Getter>level).of(row)
    if type(value) is int and 0 <= value <= 2:
        return value
    found = QOS.get("undefined" if value is UNDEFINED else encoded(value).decode(errors="replace"))
    if found is None:
        raise _Value("qos must be 0, 1 or 2")
    return found


cdef int _kept(kept, Row row) except -1:
    value = kept if isinstance(kept, str) else (<Getter>kept).of(row)
    if type(value) is bool:
        return value
    text = "undefined" if value is UNDEFINED else encoded(value).decode(errors="replace")
    if text not in YES and text not in NO:
        raise _Value("retain must be true or false")
    return text in YES
