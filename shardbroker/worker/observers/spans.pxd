"""Spans of messages for OpenTelemetry, while `opentelemetry.traces.enable` is on.

    PUBLISH of a client -> begin() -> router ... -> end()     span process_message
    PUBLISH to a client -> delivered()                        span send_published_message
    `waiting` <- command `spans` of the manager, each opentelemetry.traces.scheduled_delay

A message with a sampled `traceparent` has spans. Its property names the span of the receipt from then on, wherever the message
travels: rings, other nodes, queues, journals. In what is sent to a subscriber it names the span of that delivery. One that is not
traced, for whatever reason, is forwarded as it was.

    span    SpanHead | client id | topic | tracestate         the order of bytes of this machine; telemetry/spans.py reads it

Spans wait here, as bytes, until the manager takes them: no more than `waiting_max`, and no more new ones than `per_second`. The others
are counted. No thread, no clock but the one call for a time, and no other process is needed to make one.
"""
from cython cimport final
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.session.context cimport WorkerContext
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.observers.observer cimport Observer
from shardbroker.worker.observers.trace_context cimport PARENT_SIZE, SPAN_ID_BYTES, TRACE_ID_BYTES, Finding, TraceContext

cdef enum SpanKind:
    SPAN_PROCESS = 1                       # process_message
    SPAN_SEND = 2                          # send_published_message

cdef enum SpanFlag:
    SPAN_DUP = 1
    SPAN_RETAIN = 2

cdef enum:
    POOL_BYTES = 2048                      # random bytes that are taken from the kernel at a time: a call costs 1 µs


cdef struct SpanHead:                      # 80 bytes, without gaps
    uint8_t kind, flags, qos, trace_flags
    uint16_t client_size, topic_size, state_size, reserved
    uint32_t payload_size
    uint64_t start_ns, end_ns              # Unix time
    uint8_t trace_id[TRACE_ID_BYTES]
    uint8_t span_id[SPAN_ID_BYTES]
    uint8_t parent_id[SPAN_ID_BYTES]       # 0: the span is the first of its trace
    uint64_t id_high, id_low               # of the message


@final
cdef class Spans(Observer):
    cdef object settings                   # section `opentelemetry.traces`, compared as a whole
    cdef int workers                       # of this node, each of which has a share of the limit
    cdef bint trace_all
    cdef uint64_t ratio                    # traces that begin here: those whose last 8 bytes are less or equal
    cdef uint32_t waiting_max
    cdef int64_t per_second                # of this worker
    cdef int64_t left                      # thousandths of spans that may begin until the next refill
    cdef uint64_t refilled_ms
    cdef list waiting                      # bytes of a span each, oldest first
    cdef bytes open                        # the span between begin() and end()
    cdef bytes properties                  # of the message in between: `publication` borrows them
    cdef uint64_t over_limit, over_queue   # spans that were not made, since the last take()
    cdef bytes pool                        # random bytes
    cdef int pool_at
    # The last message that was sent, with its context: one for many subscribers is searched once.
    cdef Finding finding
    cdef TraceContext context_of_last
    cdef uint64_t last_high, last_low
    cdef uint32_t last_size
    cdef uint8_t last_value[PARENT_SIZE]

    # Begins the span of a message that a client has published, and puts it into the message. False: it is not traced.
    cdef bint begin(self, Channel channel, Publication publication) noexcept
    cdef void end(self) noexcept
    # A PUBLISH was written to the end of the client's output.
    cdef void delivered(self, Channel channel, Publication publication, uint8_t qos, bint retain, bint dup, bytes ids) noexcept
    cdef void tick(self) noexcept
    # Whether one more span may be made; else it is counted.
    cdef bint has_room(self) noexcept
    cdef Finding find(self, Publication publication) noexcept
    cdef int take_random(self, uint8_t* target, int count) except -1
    # The span, without its end.
    cdef bytes make(self, SpanHead* head, bytes client_id, Publication publication, const TraceContext* found)
