"""An observer without effect; see watcher.pxd."""

__all__ = ["Watcher"]


cdef class Watcher:
    cdef void received(self, object channel, uint8_t first, const uint8_t* body, uint32_t size) noexcept:
        pass

    cdef void published(self, object channel, const PublishView* view) noexcept:
        pass

    cdef void publishes(self, object channel, const PublishView* view, Publication publication, bint wanted) noexcept:
        pass

    cdef void sent(
        self, object link, Publication publication, uint8_t qos, bint retain, bint dup, uint16_t packet_id, bytes ids,
    ) noexcept:
        pass

    cdef bint begins(self, object channel, Publication publication) noexcept:
        return False

    cdef void ended(self) noexcept:
        pass

    cdef void acked(self, object link, uint8_t first, uint16_t packet_id, uint8_t reason_code, bytes codes) noexcept:
        pass

    cdef void replied(self, object channel, bytes packet) noexcept:
        pass

    cdef void status_changed(self, int kind, object channel, bytes client_id, int reason_code, int side, str detail) noexcept:
        pass

    cdef void denied(self, object channel, str action, bytes topic) noexcept:
        pass

    cdef void routed(self, Publication publication, bint wanted) noexcept:
        pass

    cdef void queued(self, object whom, Publication publication, uint8_t qos) noexcept:
        pass

    cdef void dropped(self, object whom, const uint8_t* topic, uint32_t topic_size, str why) noexcept:
        pass

    cdef void acknowledged(self, object session, const Delivery* delivery) noexcept:
        pass

    cdef void forwarded(self, long worker, Publication publication) noexcept:
        pass

    cdef void arrived(self, int worker, Publication publication) noexcept:
        pass

    cdef void tick(self) noexcept:
        pass

    def configure(self, settings) -> None:
        """Settings have changed."""
