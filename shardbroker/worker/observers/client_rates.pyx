"""Client rates; see client_rates.pxd."""

from heapq import nlargest

from cython cimport final

from shardbroker.session.context cimport WorkerContext
from shardbroker.session.watcher cimport WATCH_RATES

__all__ = ["ClientCount", "ClientRates"]

cdef enum:
    WINDOW_MS = 2000
    ASKED_MS = 10000                       # counting ends when the last command is older
    CLIENTS_MAX = 50000                    # of one window, some 10 MB; further clients are counted as left out


@final
cdef class ClientCount:
    pass


@final
cdef class ClientRates(Observer):
    def __init__(self, WorkerContext context not None) -> None:
        self.context = context
        self.bit = WATCH_RATES

    cdef void sent(self, bytes client_id, Publication publication) noexcept:
        cdef ClientCount count = self.count_of(client_id)
        if count is not None:
            count.messages_out += 1
            count.bytes_out += <uint64_t>publication.topic_size + publication.properties_size + publication.payload_size

    cdef void routed(self, Publication publication) noexcept:
        cdef ClientCount count
        if publication.client_id:
            count = self.count_of(publication.client_id)
            if count is not None:
                count.messages_in += 1
                count.bytes_in += <uint64_t>publication.topic_size + publication.properties_size + publication.payload_size

    cdef ClientCount count_of(self, bytes client_id):
        cdef ClientCount count = self.window.get(client_id)
        if count is None:
            if len(self.window) >= CLIENTS_MAX:
                self.left_out += 1
                return None
            count = ClientCount.__new__(ClientCount)
            self.window[client_id] = count
        return count

    def loudest(self, int most) -> dict | None:
        """Returns the clients with most messages, received and sent together, in the last complete window, and its duration.

        Counting begins with the first call; None until a window is complete.
        """
        cdef ClientCount count
        self.asked_ms = self.context.now_ms
        if self.window is None:
            self.window, self.previous, self.left_out = {}, None, 0
            self.began_ms = self.context.now_ms
            self.observe(True)
        self.rotate()
        if self.previous is None:
            return None
        rows = [[client_id, count.messages_in, count.bytes_in, count.messages_out, count.bytes_out]
                for client_id, count in self.previous.items()]
        return {"lasted_ms": self.lasted_ms, "left_out": self.left_out,
                "rows": nlargest(most, rows, key=lambda row: (row[1] + row[3], row[2] + row[4]))}

    cdef int rotate(self) except -1:
        cdef uint64_t now_ms = self.context.now_ms
        if now_ms - self.began_ms < <uint64_t>WINDOW_MS:
            return 0
        self.previous, self.window = self.window, {}
        self.lasted_ms, self.began_ms = now_ms - self.began_ms, now_ms
        return 0

    cdef void tick(self) noexcept:
        if self.context.now_ms - self.asked_ms > <uint64_t>ASKED_MS:
            self.window = self.previous = None
            self.observe(False)
        else:
            self.rotate()
