"""Rules for topic names and filters; see topics.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memchr

from shardbroker.mqtt.spec cimport TOPIC_FILTER_INVALID, TOPIC_NAME_INVALID

from shardbroker.mqtt.errors import MqttError

__all__ = [
    "EXCLUSIVE", "OF_JOURNALS", "REPLAY", "STREAM", "STREAM_SINCE", "check_topic_filter", "check_topic_name", "covers", "filter_has_wildcard", "matches", "parse_subscription",
]

cdef enum:
    TOPIC_MAX = 65535                      # bytes: the length field has two (MQTT 5.0 §1.5.4)

SHARE = b"$share/"
QUEUE = b"$queue/"
QUEUE_GROUP = b"$queue"
EXCLUSIVE = b"$exclusive/"
REPLAY = b"$replay/"
STREAM = b"$stream/"
STREAM_SINCE = b"$s/"
PREFIXES = (SHARE, QUEUE, EXCLUSIVE, REPLAY, STREAM, STREAM_SINCE)
OF_JOURNALS = (REPLAY, STREAM, STREAM_SINCE)
"""Prefixes of subscriptions that journals are read for."""


cdef bint is_utf8(const uint8_t* text, uint32_t size) noexcept:
    cdef uint32_t i = 0, rest
    cdef uint8_t c, low, high
    while i < size:
        c = text[i]
        if c < 0x80:
            if c == 0:
                return False               # [MQTT-1.5.4-2]
            i += 1
            continue
        # The bounds of the second byte exclude overlong forms, surrogates and code points above U+10FFFF [MQTT-1.5.4-1].
        low, high = 0x80, 0xBF
        if 0xC2 <= c <= 0xDF:
            rest = 1
        elif 0xE0 <= c <= 0xEF:
            rest = 2
            if c == 0xE0:
                low = 0xA0
            elif c == 0xED:
                high = 0x9F
        elif 0xF0 <= c <= 0xF4:
            rest = 3
            if c == 0xF0:
                low = 0x90
            elif c == 0xF4:
                high = 0x8F
        else:
            return False
        if i + rest >= size or not low <= text[i + 1] <= high:
            return False
        for k in range(2, rest + 1):
            if text[i + k] & 0xC0 != 0x80:
                return False
        i += rest + 1
    return True


cdef uint32_t level_count(const uint8_t* topic, uint32_t size) noexcept:
    cdef uint32_t levels = 1, i
    for i in range(size):
        levels += topic[i] == c"/"
    return levels


cdef bint is_topic_name(const uint8_t* topic, uint32_t size, uint32_t max_levels) noexcept:
    return (
        0 < size <= <uint32_t>TOPIC_MAX and memchr(topic, c"+", size) == NULL and memchr(topic, c"#", size) == NULL
        and is_utf8(topic, size) and (not max_levels or level_count(topic, size) <= max_levels)
    )


def check_topic_name(bytes topic not None, uint32_t max_levels=128) -> None:
    """Raises MqttError 0x90 unless the topic is valid for a PUBLISH. max_levels 0: no limit."""
    if not is_topic_name(<const uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>PyBytes_GET_SIZE(topic), max_levels):
        raise MqttError(
            TOPIC_NAME_INVALID, f"not a topic name of up to {max_levels} levels and {TOPIC_MAX} bytes: {topic[:100]!r}", "MQTT-4.7.1-1")


def check_topic_filter(bytes filter not None, uint32_t max_levels=128) -> None:
    """Raises MqttError 0x8F unless the filter is valid for a SUBSCRIBE. max_levels 0: no limit."""
    cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(filter)
    cdef uint32_t size = <uint32_t>PyBytes_GET_SIZE(filter), i
    cdef bint good = 0 < size <= <uint32_t>TOPIC_MAX and is_utf8(text, size)       # [MQTT-4.7.3-1] [MQTT-4.7.3-3]
    if good and max_levels and level_count(text, size) > max_levels:
        raise MqttError(TOPIC_FILTER_INVALID, f"a filter of more than {max_levels} levels")
    for i in range(size if good else 0):
        if text[i] == c"#":
            # [MQTT-4.7.1-1] of 5.0, [MQTT-4.7.1-2] of 3.1.1
            good = good and i == size - 1 and (i == 0 or text[i - 1] == c"/")
        elif text[i] == c"+":
            # [MQTT-4.7.1-2] of 5.0, [MQTT-4.7.1-3] of 3.1.1
            good = good and (i == 0 or text[i - 1] == c"/") and (i == size - 1 or text[i + 1] == c"/")
    if not good:
        raise MqttError(TOPIC_FILTER_INVALID, f"not a topic filter: {filter[:100]!r}", "MQTT-4.7.1-1")


def filter_has_wildcard(bytes filter not None) -> bool:
    return b"+" in filter or b"#" in filter


def parse_subscription(bytes filter not None) -> tuple:
    """Returns (group, filter) of a filter in SUBSCRIBE; group is None if the subscription is not shared (MQTT 5.0 §4.8.2).

    `$queue/<filter>` is EMQX's short form: the group is then b"$queue". `$exclusive/<filter>` is a filter that one session alone
    may hold, and `$replay/<period>/<filter>`, `$stream/<name>/<filter>` and `$s/<period>/<filter>` are those that journals are
    read for. The filter of `$stream/<name>` is not in its text, which is returned as it is. Raises MqttError 0x8F.
    """
    if filter.startswith(QUEUE):
        group, real = QUEUE_GROUP, filter[len(QUEUE):]
    elif filter.startswith(SHARE):
        group, slash, real = filter[len(SHARE):].partition(b"/")
        if not group or not slash or b"+" in group or b"#" in group:
            # [MQTT-4.8.2-1] [MQTT-4.8.2-2]
            raise MqttError(TOPIC_FILTER_INVALID, f"not a shared subscription: {filter[:100]!r}", "MQTT-4.8.2-1")
    elif filter.startswith(EXCLUSIVE):
        real = filter[len(EXCLUSIVE):]
        if not real or real.startswith(PREFIXES):
            raise MqttError(TOPIC_FILTER_INVALID, f"not an exclusive subscription: {filter[:100]!r}")
        return None, real
    elif filter.startswith((REPLAY, STREAM_SINCE)):
        _, period, real = filter.split(b"/", 2) if filter.count(b"/") > 1 else (filter, b"", b"")
        if not period or not real or real.startswith(PREFIXES):
            what = "a replay: must be $replay" if filter.startswith(REPLAY) else "a stream: must be $s"
            raise MqttError(TOPIC_FILTER_INVALID, f"not {what}/<period>/<filter>, got {filter[:100]!r}")
        return None, real
    elif filter.startswith(STREAM):
        name, slash, real = filter[len(STREAM):].partition(b"/")
        if not name or b"+" in name or b"#" in name or (slash and not real) or real.startswith(PREFIXES):
            raise MqttError(
                TOPIC_FILTER_INVALID, f"not a stream: must be $stream/<name> or $stream/<name>/<filter>, got {filter[:100]!r}")
        return None, real or filter
    else:
        return None, filter
    if real.startswith(OF_JOURNALS):
        raise MqttError(TOPIC_FILTER_INVALID, f"a replay or a stream cannot be shared: {filter[:100]!r}")
    if not real:
        raise MqttError(TOPIC_FILTER_INVALID, f"a shared subscription without a filter: {filter[:100]!r}", "MQTT-4.8.2-2")
    return group, real


def matches(bytes filter not None, bytes topic not None) -> bool:
    """Returns whether a filter matches a topic, compared literally and level by level [MQTT-4.7.3-4]."""
    if topic.startswith(b"$") and filter[:1] in (b"#", b"+"):
        return False                       # [MQTT-4.7.2-1]
    levels, words = filter.split(b"/"), topic.split(b"/")
    for i, level in enumerate(levels):
        if level == b"#":
            return True
        if i >= len(words) or level not in (b"+", words[i]):
            return False
    return len(levels) == len(words)


def covers(bytes outer not None, bytes inner not None) -> bool:
    """Returns whether the filter `outer` matches each topic that the filter `inner` matches."""
    if inner.startswith(b"$") and outer[:1] in (b"#", b"+"):
        return False                       # [MQTT-4.7.2-1]
    if outer == b"+/#":
        return True                        # each topic has a first level
    levels, words = outer.split(b"/"), inner.split(b"/")
    for i, level in enumerate(levels):
        if level == b"#":
            return True
        if i >= len(words) or words[i] == b"#" or level not in (b"+", words[i]):
            return False
    # `a/#` matches `a` too, but `a` does not match `a/b`.
    return len(levels) == len(words)
