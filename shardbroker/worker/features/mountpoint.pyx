"""Connections below a mount point; see mountpoint.pxd."""

from functools import lru_cache

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp

from shardbroker.mqtt.spec cimport BAD_USER_NAME_OR_PASSWORD, CLIENT_IDENTIFIER_NOT_VALID, TOPIC_FILTER_INVALID, TOPIC_NAME_INVALID
from shardbroker.pubsub.message cimport Publication
from shardbroker.worker.connection cimport Connection

from shardbroker.access.placeholders import Template, UnfitValueError
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import STREAM, check_topic_filter, parse_subscription
from shardbroker.worker.features.delayed import DELAYED

__all__ = ["MountedConnection", "mounted_connection"]

cdef enum:
    TOPIC_MAX = 65535                      # bytes, MQTT 5.0 §1.5.4

NAMES = {"clientid": ("client id", CLIENT_IDENTIFIER_NOT_VALID), "username": ("user name", BAD_USER_NAME_OR_PASSWORD)}
"""Placeholders: what they stand for, and what a client is told whose value has no place in a topic."""

parsed = lru_cache(maxsize=256)(Template.parse)
"""One template for each mount point, however many connections it has."""


def mounted_connection(str mountpoint not None) -> MountedConnection:
    """A connection, bare as __new__ makes it."""
    cdef MountedConnection connection = MountedConnection.__new__(MountedConnection)
    connection.mounted = 1
    connection.template = parsed(mountpoint)
    return connection


cdef class MountedConnection(Connection):
    # --- who is it? ---------------------------------------------------------------------------------------------------------------

    cdef bint mount(self, object username) except -1:
        """A value that would not stay within its level would open the trees of other clients: it is refused."""
        if self.prefix is not None:
            return True
        try:
            self.prefix = self.template.fill_topic({"clientid": self.wanted_id.decode(), "username": username or ""}).encode()
        except UnfitValueError as error:
            what, reason_code = NAMES[error.name]
            self.refuse(self.version, reason_code, f"the {what} is part of the listener's mountpoint and {error}")
            return False
        return True

    # --- incoming --------------------------------------------------------------------------------------------------------------

    cdef bytes mounted_topic(self, bytes topic):
        if PyBytes_GET_SIZE(self.prefix) + PyBytes_GET_SIZE(topic) > TOPIC_MAX:
            raise MqttError(TOPIC_NAME_INVALID, "the topic is too long below this listener's mount point")
        if not topic.startswith(DELAYED):
            return self.prefix + topic
        seconds, slash, real = topic[len(DELAYED):].partition(b"/")
        return DELAYED + seconds + slash + self.prefix + real if real else topic           # refused where it is used

    cdef bytes mounted_filter(self, bytes wire_filter):
        _, filter = parse_subscription(wire_filter)
        if filter.startswith(STREAM):      # all of the stream that is below the mount point
            wire_filter, filter = filter + b"/#", b"#"
        check_topic_filter(filter, self.context.max_topic_levels)
        if PyBytes_GET_SIZE(self.prefix) + PyBytes_GET_SIZE(wire_filter) > TOPIC_MAX:
            raise MqttError(TOPIC_FILTER_INVALID, "filter with the listener's mountpoint is too long")
        return wire_filter[:len(wire_filter) - len(filter)] + self.prefix + filter

    cdef bytes topic_prefix(self):
        return self.prefix

    # --- outgoing --------------------------------------------------------------------------------------------------------------

    cdef bytes unmounted(self, bytes topic):
        """As the client names it. What a session was subscribed to by another listener stays as it is."""
        return topic[len(self.prefix):] if self.prefix is not None and topic.startswith(self.prefix) else topic

    cdef int write_publish(self, Publication publication, uint8_t qos, bint retain, bint dup, uint16_t packet_id, bytes ids) except -1:
        cdef uint32_t size = <uint32_t>PyBytes_GET_SIZE(self.prefix)
        if publication.topic_size <= size or memcmp(publication.topic, PyBytes_AS_STRING(self.prefix), size):
            return Connection.write_publish(self, publication, qos, retain, dup, packet_id, ids)
        publication.topic += size
        publication.topic_size -= size
        try:
            return Connection.write_publish(self, publication, qos, retain, dup, packet_id, ids)
        finally:
            publication.topic -= size
            publication.topic_size += size
