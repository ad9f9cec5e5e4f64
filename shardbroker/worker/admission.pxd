"""Which messages may be published, and to which topic.

    PUBLISH                  packets/publish.pyx applies the checks one by one, the rewrite rule from the topic's cache entry
    will, ctl and REST API   admit() applies all of them at once
"""
from cython cimport final
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from shardbroker.pubsub.message cimport Message
from shardbroker.session.context cimport WorkerContext
from shardbroker.worker.features.delayed cimport Delays


@final
cdef class Admission:
    cdef WorkerContext context
    cdef Delays delays                     # their settings
    cdef object rewriting                  # worker.features.rewrite.Rewriting; None without rules

    # Raises MqttError for a message that may not be published. Returns the topic that it is published to, and in `at_ms` its due time.
    # Access rules and the limit of delayed messages are the caller's.
    cdef bytes admit(self, Message message, bytes username, uint64_t* at_ms)
    # Splits `$delayed/<seconds>/<topic>` into the due time and the topic; any other topic is unchanged and its time 0.
    cdef bytes take_delay(self, bytes topic, uint64_t* at_ms)
    # Returns the rewritten topic of a message; None: unchanged.
    cdef bytes rewritten(self, object rule, bytes topic, bytes client_id, bytes username)
    cdef uint64_t expires_ms(self, bint has_expiry, uint32_t expiry_s) noexcept


# $SYS/... and $event/..., and the topics that their `#` matches too: the broker alone publishes to them.
cdef inline bint is_own(const uint8_t* topic, uint32_t size) noexcept:
    return size > 3 and topic[0] == c"$" and (
        (memcmp(topic, b"$SYS", 4) == 0 and (size == 4 or topic[4] == c"/"))
        or (size > 5 and memcmp(topic, b"$event", 6) == 0 and (size == 6 or topic[6] == c"/")))


# Whether a payload with Payload Format Indicator 1 is valid UTF-8 (MQTT 5.0 §3.3.2.3.2).
cdef bint is_text(const uint8_t* payload, uint32_t size)
