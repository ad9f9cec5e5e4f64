"""The trace context of a message: its user properties `traceparent` and `tracestate` (W3C Trace Context, MQTT 5.0 §3.3.2.3.7).

    traceparent   00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
                  version   trace id (16 bytes)    parent id (8)    flags: 1 sampled, 2 random

Properties are those of a Publication: without a length in front, and checked by the codec or by another node. Nothing here relies on
that: each length is compared with what is left, and an unknown property ends the search.
"""
from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    TRACE_ID_BYTES = 16
    SPAN_ID_BYTES = 8
    PARENT_SIZE = 55                       # of a traceparent of version 00, and the least one of a later version
    SAMPLED = 1                            # flags of a traceparent
    RANDOM_ID = 2
    SEARCHED_MAX = 4096                    # bytes of properties in which a context is looked for: a search costs 1 ns for each
    STATE_MAX = 512                        # bytes of a tracestate, as many as W3C asks for; a longer one is forwarded, not exported

cdef enum Finding:
    CONTEXT_ABSENT = 0
    CONTEXT_VALID = 1
    CONTEXT_INVALID = 2                    # traceparent twice, or one that W3C rules out


cdef struct TraceContext:
    uint32_t at, size                      # value of traceparent within the properties
    uint32_t state_at, state_size          # value of the first tracestate; size 0: nothing to export
    uint8_t flags
    uint8_t trace_id[TRACE_ID_BYTES]
    uint8_t parent_id[SPAN_ID_BYTES]


# Looks for a context; `found` is filled if it is CONTEXT_VALID.
cdef Finding find_context(const uint8_t* properties, uint32_t size, TraceContext* found) noexcept
# Writes a traceparent of version 00: PARENT_SIZE bytes.
cdef void write_parent(uint8_t* target, const uint8_t* trace_id, const uint8_t* span_id, uint8_t flags) noexcept
# Returns a copy of properties whose traceparent names another span; everything else is unchanged, and in the same order.
cdef bytes with_parent(const uint8_t* properties, uint32_t size, const TraceContext* found, const uint8_t* span_id)
# Returns a copy with a traceparent in front.
cdef bytes with_new(const uint8_t* properties, uint32_t size, const uint8_t* trace_id, const uint8_t* span_id, uint8_t flags)
