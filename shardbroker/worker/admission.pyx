"""Which messages may be published; see admission.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8

from cython cimport final
from shardbroker.mqtt.spec cimport (
    NOT_AUTHORIZED, PAYLOAD_FORMAT_INVALID, QOS_NOT_SUPPORTED, RETAIN_NOT_SUPPORTED, TOPIC_NAME_INVALID,
)
from shardbroker.mqtt.topics cimport is_topic_name

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_name
from shardbroker.worker.features.delayed import DELAYED, parse_delayed
from shardbroker.worker.features.rewrite import Rewriting

__all__ = ["OWN_TOPICS", "Admission"]

OWN_TOPICS = "topics below $SYS/ and $event/ are reserved"


@final
cdef class Admission:
    """context: clock and settings. delays: settings of delayed messages."""

    def __init__(self, WorkerContext context not None, Delays delays not None):
        self.context = context
        self.delays = delays

    def configure(self, rules) -> bool:
        """Applies rewrite.rules. Returns whether cache entries of topics may have another rule now."""
        if not rules and self.rewriting is None:
            return False
        self.rewriting = Rewriting(rules) if rules else None
        return True

    cdef bytes admit(self, Message message, bytes username, uint64_t* at_ms):
        cdef bytes topic, changed
        cdef WorkerContext context = self.context
        if message.qos > context.max_qos:
            raise MqttError(QOS_NOT_SUPPORTED, f"QoS {message.qos} exceeds mqtt.max_qos_allowed ({context.max_qos})")
        if message.retain and not context.retain_available:
            raise MqttError(RETAIN_NOT_SUPPORTED, "RETAIN is not available (mqtt.retain_available)")
        topic = self.take_delay(message.topic, at_ms)
        check_topic_name(topic, context.max_topic_levels)
        rule = None if self.rewriting is None else self.rewriting.of_topic(topic)
        if rule is not None:
            changed = self.rewritten(rule, topic, message.client_id or b"", username)
            topic = topic if changed is None else changed
        if message.payload_format and not is_text(
                message.block + message.topic_size + message.properties_size, message.payload_size):
            raise MqttError(PAYLOAD_FORMAT_INVALID, "payload is not valid UTF-8 although Payload Format Indicator is 1")
        if is_own(<const uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>PyBytes_GET_SIZE(topic)):
            raise MqttError(NOT_AUTHORIZED, OWN_TOPICS)
        return topic

    cdef bytes take_delay(self, bytes topic, uint64_t* at_ms):
        at_ms[0] = 0
        if not topic.startswith(DELAYED):
            return topic
        if not self.delays.settings.enable:
            raise MqttError(TOPIC_NAME_INVALID, "delayed messages are disabled (delayed.enable)")
        at_ms[0], topic = parse_delayed(topic, self.context.now_ms)
        check_topic_name(topic, self.context.max_topic_levels)
        return topic

    cdef bytes rewritten(self, object rule, bytes topic, bytes client_id, bytes username):
        cdef bytes changed = rule.apply(topic, client_id, username)
        if changed is None or not is_topic_name(
                <const uint8_t*>PyBytes_AS_STRING(changed), <uint32_t>PyBytes_GET_SIZE(changed), self.context.max_topic_levels):
            return None
        return changed

    cdef uint64_t expires_ms(self, bint has_expiry, uint32_t expiry_s) noexcept:
        cdef uint64_t left_ms = <uint64_t>expiry_s * 1000
        if not has_expiry:
            left_ms = self.context.message_expiry_ms
            return self.context.now_ms + left_ms if left_ms else 0
        if self.context.message_expiry_ms and left_ms > self.context.message_expiry_ms:
            left_ms = self.context.message_expiry_ms
        return self.context.now_ms + left_ms


cdef bint is_text(const uint8_t* payload, uint32_t size):
    try:
        PyUnicode_DecodeUTF8(<const char*>payload, size, "strict")
    except UnicodeDecodeError:
        return False
    return True
