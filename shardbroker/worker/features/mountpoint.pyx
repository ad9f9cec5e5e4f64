"""Connections below a mount point; see mountpoint.pxd."""

from functools import lru_cache

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp

from shardbroker.mqtt.codec cimport PublishView
from shardbroker.mqtt.packets cimport Connect, Will
from shardbroker.mqtt.spec cimport BAD_USER_NAME_OR_PASSWORD, CLIENT_IDENTIFIER_NOT_VALID, TOPIC_FILTER_INVALID, TOPIC_NAME_INVALID
from shardbroker.pubsub.message cimport Publication
from shardbroker.session.client_output cimport ClientOutput
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.connection cimport Connection

from shardbroker.access.placeholders import Template, UnfitValueError
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter, parse_subscription
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
            self.refuse(self.version, reason_code, f"the {what} stands in this listener's mount point: it {error}")
            return False
        return True

    cdef int accept(self, Connect packet, bytes client_id) except -1:
        cdef Will will = packet.will
        if will is not None:
            if PyBytes_GET_SIZE(self.prefix) + PyBytes_GET_SIZE(will.topic) > TOPIC_MAX:
                return self.refuse(self.version, TOPIC_NAME_INVALID, "the will's topic is too long below this listener's mount point")
            will.topic = self.mounted_topic(will.topic)
        return Connection.accept(self, packet, client_id)

    # --- what comes in --------------------------------------------------------------------------------------------------------------

    cdef bytes incoming_topic(self, PublishView* view):
        cdef bytes topic
        if view.topic_alias or view.topic_size == 0:
            topic = Connection.incoming_topic(self, view)
        else:
            topic = PyBytes_FromStringAndSize(<const char*>view.topic, view.topic_size)
        if PyBytes_GET_SIZE(self.prefix) + PyBytes_GET_SIZE(topic) > TOPIC_MAX:
            raise MqttError(TOPIC_NAME_INVALID, "the topic is too long below this listener's mount point")
        return self.mounted_topic(topic)

    cdef bytes mounted_topic(self, bytes topic):
        if not topic.startswith(DELAYED):
            return self.prefix + topic
        seconds, slash, real = topic[len(DELAYED):].partition(b"/")
        return DELAYED + seconds + slash + self.prefix + real if real else topic           # refused where it is used

    cdef bytes below(self, bytes wire_filter):
        group, filter = parse_subscription(wire_filter)
        check_topic_filter(filter, self.context.max_topic_levels)
        if PyBytes_GET_SIZE(self.prefix) + PyBytes_GET_SIZE(wire_filter) > TOPIC_MAX:
            raise MqttError(TOPIC_FILTER_INVALID, "the filter is too long below this listener's mount point")
        return wire_filter[:len(wire_filter) - len(filter)] + self.prefix + filter

    def subscribe_one(self, bytes wire_filter, int options, identifier, list subscribed, list replays) -> int:
        try:
            mounted = self.below(wire_filter)
        except MqttError as error:
            return error.reason_code
        return Connection.subscribe_one(self, mounted, options, identifier, subscribed, replays)

    cdef bytes topic_prefix(self):
        return self.prefix

    # --- what goes out --------------------------------------------------------------------------------------------------------------

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
