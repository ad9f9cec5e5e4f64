"""Rules for topic names and filters (MQTT 5.0 §4.7, §4.8.2), on borrowed bytes."""
from libc.stdint cimport uint8_t, uint32_t

# Returns whether the text is well-formed UTF-8 without surrogates and without U+0000 [MQTT-1.5.4-1] [MQTT-1.5.4-2].
cdef bint is_utf8(const uint8_t* text, uint32_t size) noexcept
# Returns whether a message may be published to the topic: UTF-8, at least one byte, no wildcard, at most max_levels levels.
cdef bint is_topic_name(const uint8_t* topic, uint32_t size, uint32_t max_levels) noexcept
