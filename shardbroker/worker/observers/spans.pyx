"""Spans of messages; see spans.pxd."""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython cimport final
from libc.string cimport memcmp, memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from shardbroker.session.watcher cimport WATCH_SPANS
from shardbroker.worker.observers.trace_context cimport (
    CONTEXT_ABSENT, CONTEXT_INVALID, CONTEXT_VALID, SAMPLED, find_context, with_new, with_parent, write_parent,
)

__all__ = ["Spans"]

cdef enum:
    CLIENT_MAX = 256                       # bytes of a client id and of a topic in a span: longer ones are cut
    TOPIC_MAX = 1024
    THOUSAND = 1000


cdef inline uint64_t now_ns() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


@final
cdef class Spans(Observer):
    def __init__(self, WorkerContext context not None, int workers) -> None:
        self.context = context
        self.bit = WATCH_SPANS
        self.workers = workers
        self.waiting = []
        self.pool = b""

    def configure(self, settings) -> None:
        """Applies the section `opentelemetry.traces`. Spans that wait are dropped when it is switched off."""
        if settings == self.settings:
            return
        self.settings = settings
        self.trace_all = settings.filter.trace_all
        self.ratio = min(int(settings.filter.sample_ratio * 2.0**64), 2**64 - 1)
        self.waiting_max = settings.max_queue_size
        self.per_second = max(1, settings.max_spans_per_second // self.workers)
        self.left, self.refilled_ms = self.per_second * THOUSAND, self.context.now_ms
        if not settings.enable:
            self.waiting, self.open, self.properties = [], None, None
        self.last_high = self.last_low = 0
        self.observe(settings.enable)

    def take(self, int most) -> list:
        """Removes about `most` bytes of spans, the oldest ones. Returns them, their number, whether more wait, and how many were not
        made since the last call: above the limit, and for want of room."""
        cdef list taken = []
        cdef Py_ssize_t size = 0
        for span in self.waiting:
            if size >= most:
                break
            taken.append(span)
            size += len(span)
        del self.waiting[:len(taken)]
        result = [b"".join(taken), len(taken), bool(self.waiting), self.over_limit, self.over_queue]
        self.over_limit = self.over_queue = 0
        return result

    cdef bint begin(self, Channel channel, Publication publication) noexcept:
        cdef TraceContext found
        cdef SpanHead head
        cdef uint64_t last_half = 0
        cdef Finding finding = find_context(publication.properties, publication.properties_size, &found)
        cdef int i
        self.open = None
        if finding == CONTEXT_INVALID or (finding == CONTEXT_ABSENT and not self.trace_all):
            return False
        memset(&head, 0, sizeof(head))
        if finding == CONTEXT_VALID:
            if not found.flags & SAMPLED or not self.has_room():
                return False
            memcpy(head.parent_id, found.parent_id, SPAN_ID_BYTES)
        else:
            self.take_random(found.trace_id, TRACE_ID_BYTES)
            for i in range(8):
                last_half = last_half << 8 | found.trace_id[8 + i]
            if last_half > self.ratio or not self.has_room():
                return False
            found.flags, found.state_size = SAMPLED, 0
        self.take_random(head.span_id, SPAN_ID_BYTES)
        head.kind = SPAN_PROCESS
        head.qos = publication.qos
        head.flags = SPAN_RETAIN if publication.retain else 0
        self.open = self.make(&head, channel.session.client_id, publication, &found)
        if finding == CONTEXT_VALID:
            self.properties = with_parent(publication.properties, publication.properties_size, &found, head.span_id)
        else:
            self.properties = with_new(
                publication.properties, publication.properties_size, found.trace_id, head.span_id, found.flags)
        publication.properties = <const uint8_t*>PyBytes_AS_STRING(self.properties)
        publication.properties_size = <uint32_t>PyBytes_GET_SIZE(self.properties)
        return True

    cdef void end(self) noexcept:
        if self.open is not None:
            (<SpanHead*>PyBytes_AS_STRING(self.open)).end_ns = now_ns()
            self.waiting.append(self.open)
            self.open = None

    cdef void delivered(self, Channel channel, Publication publication, uint8_t qos, bint retain, bint dup, bytes ids) noexcept:
        cdef SpanHead head
        cdef TraceContext* found = &self.context_of_last
        cdef size_t behind
        cdef bytes span
        if self.find(publication) != CONTEXT_VALID or not found.flags & SAMPLED or not self.has_room():
            return
        memset(&head, 0, sizeof(head))
        head.kind = SPAN_SEND
        head.qos = qos
        head.flags = (SPAN_DUP if dup else 0) | (SPAN_RETAIN if retain else 0)
        memcpy(head.parent_id, found.parent_id, SPAN_ID_BYTES)
        self.take_random(head.span_id, SPAN_ID_BYTES)
        span = self.make(&head, channel.session.client_id if channel.session is not None else b"", publication, found)
        (<SpanHead*>PyBytes_AS_STRING(span)).end_ns = (<SpanHead*>PyBytes_AS_STRING(span)).start_ns
        self.waiting.append(span)
        # A longer traceparent, of a later version, cannot be replaced in place: it is one that this broker has not received itself.
        if channel.version == 5 and found.size == PARENT_SIZE:
            behind = <size_t>publication.payload_size + publication.properties_size - found.at
            if ids is not None:
                behind += <size_t>PyBytes_GET_SIZE(ids)
            write_parent(channel.out.data + channel.out.end - behind, found.trace_id, head.span_id, found.flags)

    cdef Finding find(self, Publication publication) noexcept:
        cdef TraceContext* found = &self.context_of_last
        cdef uint32_t size = publication.properties_size
        if publication.id_high == self.last_high and publication.id_low == self.last_low and size == self.last_size and (
                self.finding != CONTEXT_VALID
                or memcmp(publication.properties + found.at, self.last_value, PARENT_SIZE) == 0):
            return self.finding
        self.finding = find_context(publication.properties, size, found)
        self.last_high, self.last_low, self.last_size = publication.id_high, publication.id_low, size
        if self.finding == CONTEXT_VALID:
            memcpy(self.last_value, publication.properties + found.at, PARENT_SIZE)
        return self.finding

    cdef bint has_room(self) noexcept:
        if self.left < THOUSAND:
            self.over_limit += 1
            return False
        if <uint32_t>len(self.waiting) >= self.waiting_max:
            self.over_queue += 1
            return False
        self.left -= THOUSAND
        return True

    cdef int take_random(self, uint8_t* target, int count) except -1:
        if self.pool_at + count > PyBytes_GET_SIZE(self.pool):
            self.pool, self.pool_at = os.urandom(POOL_BYTES), 0
        memcpy(target, PyBytes_AS_STRING(self.pool) + self.pool_at, count)
        target[0] |= 1                     # not an id of zeros
        self.pool_at += count
        return 0

    cdef bytes make(self, SpanHead* head, bytes client_id, Publication publication, const TraceContext* found):
        cdef bytes span
        cdef char* target
        head.trace_flags = found.flags
        head.client_size = <uint16_t>min(PyBytes_GET_SIZE(client_id), <Py_ssize_t>CLIENT_MAX)
        head.topic_size = <uint16_t>min(publication.topic_size, <uint32_t>TOPIC_MAX)
        head.state_size = <uint16_t>found.state_size
        head.payload_size = publication.payload_size
        head.start_ns = now_ns()
        memcpy(head.trace_id, found.trace_id, TRACE_ID_BYTES)
        head.id_high, head.id_low = publication.id_high, publication.id_low
        span = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>sizeof(SpanHead) + head.client_size + head.topic_size + head.state_size)
        target = PyBytes_AS_STRING(span)
        memcpy(target, head, sizeof(SpanHead))
        target += sizeof(SpanHead)
        memcpy(target, PyBytes_AS_STRING(client_id), head.client_size)
        target += head.client_size
        memcpy(target, publication.topic, head.topic_size)
        if head.state_size:
            memcpy(target + head.topic_size, publication.properties + found.state_at, head.state_size)
        return span

    cdef void tick(self) noexcept:
        cdef uint64_t now_ms = self.context.now_ms
        if now_ms > self.refilled_ms:
            self.left = min(self.left + <int64_t>(now_ms - self.refilled_ms) * self.per_second, self.per_second * THOUSAND)
        self.refilled_ms = now_ms
