"""The abstract recorder; see journaling.pxd."""

__all__ = ["Recorder"]


cdef class Recorder:
    cdef int saved(self, Subscriber session, int version, uint64_t expiry_ms) except -1:
        raise NotImplementedError("Recorder.saved")

    cdef int opened(self, Subscriber session, bint present, int version, uint64_t expiry_ms, dict details) except -1:
        raise NotImplementedError("Recorder.opened")

    cdef int away(self, Subscriber session, int reason_code, uint64_t expires_at_ms) except -1:
        raise NotImplementedError("Recorder.away")

    cdef int ended(self, Subscriber session, int cause) except -1:
        raise NotImplementedError("Recorder.ended")

    cdef int subscribed(self, Subscriber session, Subscription subscription) except -1:
        raise NotImplementedError("Recorder.subscribed")

    cdef int unsubscribed(self, Subscriber session, bytes wire_filter) except -1:
        raise NotImplementedError("Recorder.unsubscribed")

    cdef int queued(self, Subscriber session, Delivery* slot, int priority) except -1:
        raise NotImplementedError("Recorder.queued")

    cdef int delivered(self, Subscriber session, Delivery* slot, bint from_queue) except -1:
        raise NotImplementedError("Recorder.delivered")

    cdef int packet_id_used(self, Subscriber session, uint16_t packet_id, uint8_t qos, int packet) except -1:
        raise NotImplementedError("Recorder.packet_id_used")

    cdef int acknowledged(self, Subscriber session, uint16_t packet_id, int packet, uint8_t reason_code) except -1:
        raise NotImplementedError("Recorder.acknowledged")

    cdef int dropped(self, Subscriber session, Delivery* slot, int cause) except -1:
        raise NotImplementedError("Recorder.dropped")

    cdef int received(self, Subscriber session, uint16_t packet_id, uint64_t id_high, uint64_t id_low) except -1:
        raise NotImplementedError("Recorder.received")

    cdef int released(self, Subscriber session, uint16_t packet_id, int cause) except -1:
        raise NotImplementedError("Recorder.released")

    cdef int will_set(self, Subscriber session, Message message, uint32_t delay_s, object expiry_s, dict origin) except -1:
        raise NotImplementedError("Recorder.will_set")

    cdef int will_cleared(self, Subscriber session, int cause) except -1:
        raise NotImplementedError("Recorder.will_cleared")

    cdef int will_delayed(self, Subscriber session, uint64_t at_ms) except -1:
        raise NotImplementedError("Recorder.will_delayed")

    cdef int placed(self, Subscriber session, Place place) except -1:
        raise NotImplementedError("Recorder.placed")

    cdef int replayed(self, ReplaySubscription replay) except -1:
        raise NotImplementedError("Recorder.replayed")

    cdef int published_by(self, Subscriber session) except -1:
        raise NotImplementedError("Recorder.published_by")

    cdef int captured(self, Publication publication, uint8_t captured) except -1:
        raise NotImplementedError("Recorder.captured")

    cdef int forwarded(
        self, uint64_t rings, long destination, uint64_t position, Message message, int kind, uint64_t member, int attempts,
        bytes group, bytes filter, bint until_arrived,
    ) except -1:
        raise NotImplementedError("Recorder.forwarded")

    cdef int deferred(
        self, uint64_t number, int purpose, Message message, long destination, int kind, uint64_t member, int attempts, bytes group,
        bytes filter, uint64_t at_ms,
    ) except -1:
        raise NotImplementedError("Recorder.deferred")

    cdef int deferred_done(self, uint64_t number) except -1:
        raise NotImplementedError("Recorder.deferred_done")
