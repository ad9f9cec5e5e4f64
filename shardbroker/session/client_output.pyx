"""Writing PUBLISH packets to a client (MQTT 3.1.1 §3.3, 5.0 §3.3); see client_output.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from shardbroker.hooks.masks cimport HOOK_MESSAGE_DELIVERED
from shardbroker.mqtt.codec cimport varint_size, write_varint
from shardbroker.mqtt.spec cimport MESSAGE_EXPIRY_INTERVAL, PUBLISH_FIRST, TOPIC_ALIAS
from shardbroker.session.watcher cimport unlikely
from shm.counters cimport (
    DELIVERY_DROPPED_TOO_LARGE, MESSAGES_QOS0_SENT, MESSAGES_SENT, PACKETS_PUBLISH_SENT, PACKETS_SENT,
)

__all__ = ["ClientOutput"]

cdef enum:
    ALIASES_OUT = 256                      # topics for each connection: bounds the memory that a client can fill
    ALIAS_TOPIC_MAX = 1024                 # bytes of a topic that gets one: likewise


cdef class ClientOutput(Timed):
    cdef int failed(self, object error) except -1:
        raise error                        # there is no socket that could be closed

    cdef void touch(self) noexcept:
        pass

    cdef bint relieve(self) noexcept:
        return False

    cdef dict registry_fields(self):
        return {}

    cdef int write_publish(self, Publication publication, uint8_t qos, bint retain, bint dup, uint16_t packet_id, bytes ids) except -1:
        cdef uint32_t topic_size = publication.topic_size, properties = 0, ids_size = 0, remaining
        cdef uint32_t expiry_s = 0, alias = 0
        cdef bint alias_known = False
        cdef uint64_t left_ms
        cdef uint64_t* counters = self.context.counters
        cdef uint8_t* target
        if self.version == 5:
            if self.alias_maximum:
                alias = self.outgoing_alias(publication, &alias_known)
                if alias_known:
                    topic_size = 0
            if ids is not None:
                ids_size = <uint32_t>PyBytes_GET_SIZE(ids)
            properties = publication.properties_size + ids_size
            if alias:
                properties += 3
            if publication.expires_ms:
                # The remaining time, rounded up: a message that has not expired is not sent with 0 [MQTT-3.3.2-6].
                left_ms = publication.expires_ms - self.context.now_ms if publication.expires_ms > self.context.now_ms else 0
                expiry_s = <uint32_t>((left_ms + 999) // 1000)
                properties += 5
        remaining = 2 + topic_size + (2 if qos else 0) + publication.payload_size
        if self.version == 5:
            remaining += varint_size(properties) + properties
        if self.max_packet and 1 + varint_size(remaining) + remaining > self.max_packet:
            self.context.delivery_dropped(self, publication, DELIVERY_DROPPED_TOO_LARGE, "too_large")
            if alias and not alias_known:
                del self.aliases_out[PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size)]
            return 0
        target = self.out.reserve(1 + varint_size(remaining) + remaining)
        target[0] = PUBLISH_FIRST | (dup << 3) | (qos << 1) | retain
        target = write_varint(target + 1, remaining)
        target[0] = topic_size >> 8
        target[1] = topic_size & 0xFF
        memcpy(target + 2, publication.topic, topic_size)
        target += 2 + topic_size
        if qos:
            target[0] = packet_id >> 8
            target[1] = packet_id & 0xFF
            target += 2
        if self.version == 5:
            target = write_varint(target, properties)
            if expiry_s or publication.expires_ms:
                target[0] = MESSAGE_EXPIRY_INTERVAL
                target[1] = expiry_s >> 24
                target[2] = (expiry_s >> 16) & 0xFF
                target[3] = (expiry_s >> 8) & 0xFF
                target[4] = expiry_s & 0xFF
                target += 5
            if alias:
                target[0] = TOPIC_ALIAS
                target[1] = alias >> 8
                target[2] = alias & 0xFF
                target += 3
            if publication.properties_size:
                memcpy(target, publication.properties, publication.properties_size)
                target += publication.properties_size
            if ids_size:
                memcpy(target, PyBytes_AS_STRING(ids), ids_size)
                target += ids_size
        if publication.payload_size:
            memcpy(target, publication.payload, publication.payload_size)
        counters[<int>PACKETS_SENT] += 1
        counters[<int>PACKETS_PUBLISH_SENT] += 1
        counters[<int>MESSAGES_SENT] += 1
        counters[<int>MESSAGES_QOS0_SENT + qos] += 1
        self.touch()
        if unlikely(self.context.watch):
            self.context.watcher.sent(self, publication, qos, retain, dup, packet_id, ids)
        if self.context.hooks & HOOK_MESSAGE_DELIVERED and not dup:
            self.context.delivered(self, publication, qos, retain)
        return 1

    cdef uint32_t outgoing_alias(self, Publication publication, bint* known) except? 0:
        """The alias of this topic for this client, or 0 once its Topic Alias Maximum is used up [MQTT-3.1.2-26]."""
        cdef bytes topic
        if publication.topic_size > ALIAS_TOPIC_MAX:
            return 0
        topic = PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size)
        if self.aliases_out is None:
            self.aliases_out = {}
        alias = self.aliases_out.get(topic)
        if alias is not None:
            known[0] = True
            return alias
        if len(self.aliases_out) >= self.alias_maximum or len(self.aliases_out) >= ALIASES_OUT:
            return 0
        self.aliases_out[topic] = len(self.aliases_out) + 1
        return <uint32_t>len(self.aliases_out)
