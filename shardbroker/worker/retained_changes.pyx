"""Retained messages to be stored; see retained_changes.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize

from cython cimport final
from shardbroker.worker.disk cimport DISK_LIMIT
from shm.counters cimport RETAINED_DROPPED, RETAINED_ERRNO_COUNT

from shardbroker.stores.retained import RetainedDeletion, RetainedMessage, RetainedStoreRefused

__all__ = ["RetainedChanges"]

RETRY_MS = 100
"""Between two tries to store retained messages while the disk refuses."""

MESSAGE_BYTES = 200
"""What a retained message takes in memory beside its texts, while it waits for the disk."""


@final
cdef class RetainedChanges:
    """context: clock, counters and recorder. store: None without retained messages. settings: section `retainer`."""

    def __init__(self, WorkerContext context not None, store, settings):
        self.context = context
        self.store = store
        self.settings = settings
        self.changes = []

    def configure(self, settings) -> None:
        """Applies the section `retainer`."""
        self.settings = settings
        self.store.max_messages = settings.max_messages
        self.store.max_bytes = settings.max_total_bytes

    cdef int retain(self, Publication publication) except -1:
        cdef bytes topic
        if self.store is None:
            return 0
        if publication.unrepeatable and publication.qos and self.context.recorder is not None:
            self.outlets.put_retained(publication)
        topic = PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size)
        if self.retry_ms:
            self.waiting += MESSAGE_BYTES + publication.topic_size + publication.properties_size + publication.payload_size
        if publication.payload_size == 0:
            if self.store.is_replicated:
                id = publication.id_high.to_bytes(8, "big") + publication.id_low.to_bytes(8, "big")
                self.changes.append(RetainedDeletion(topic, id, self.context.now_ms))
            else:
                self.changes.append(topic)     # [MQTT-3.3.1-6] [MQTT-3.3.1-7]
            return 0
        if self.settings.max_payload_size and publication.payload_size > self.settings.max_payload_size:
            self.context.count(RETAINED_DROPPED)
            return 0
        self.changes.append(RetainedMessage(
            topic=topic,
            payload=PyBytes_FromStringAndSize(<const char*>publication.payload, publication.payload_size),
            qos=publication.qos,
            properties=PyBytes_FromStringAndSize(<const char*>publication.properties, publication.properties_size),
            message_id=publication.id_high.to_bytes(8, "big") + publication.id_low.to_bytes(8, "big"),
            created_ms=self.context.now_ms,
            expires_ms=publication.expires_ms,
            client_id=publication.client_id or b"",
        ))
        return 0

    cdef int commit(self) except -1:
        cdef list operations = self.changes
        if self.context.now_ms < self.retry_ms:
            return 0
        self.changes = []
        try:
            self.context.gauge(RETAINED_DROPPED, self.store.update(operations))
        except RetainedStoreRefused as error:
            self.retry_ms = self.context.now_ms + RETRY_MS
            if self.keeps_refused(error.number):
                self.changes = operations
            else:
                self.context.gauge(RETAINED_DROPPED, len(operations))
            return 0
        if self.retry_ms:
            self.retry_ms = self.waiting = 0
            self.context.counters[<int>RETAINED_ERRNO_COUNT] = 0
            self.check_disk()
        return 0

    cdef bint is_behind(self) noexcept:
        return self.retry_ms != 0 and len(self.changes) != 0

    cdef bint keeps_refused(self, int error) except -1:
        self.context.counters[<int>RETAINED_ERRNO_COUNT] = <uint64_t>error
        if self.context.recorder is None or self.disk is None:
            return False
        self.check_disk()
        return not self.disk.goes_on

    cdef int check_disk(self) except -1:
        if self.disk is not None and self.context.recorder is not None:
            self.context.disk_full = self.disk.stage == DISK_LIMIT or self.waiting > self.disk.limit
        return 0
