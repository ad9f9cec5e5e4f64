"""Positions of streams from other nodes; see arrivals.pxd."""

from cython cimport final

__all__ = ["Stream", "StreamPositions"]


@final
cdef class Stream:
    pass


@final
cdef class StreamPositions:
    def __init__(self) -> None:
        self.streams = {}
        self.changed = []
        self.over = set()

    cdef Stream stream_of(self, uint64_t origin, uint64_t identity):
        cdef Stream stream = self.last
        if stream is not None and stream.origin == origin and stream.identity == identity:
            return stream
        stream = self.streams.get((origin, identity))
        if stream is None:
            stream = Stream.__new__(Stream)
            stream.origin = origin
            stream.identity = identity
            self.streams[origin, identity] = stream
        self.last = stream
        return stream

    cdef int move(self, Stream stream, uint64_t position) except -1:
        stream.position = position
        if not stream.changed:
            stream.changed = True
            self.changed.append(stream)
        return 0

    cdef int keep(self, uint64_t origin, set identities) except -1:
        cdef Stream stream
        for stream in list(self.streams.values()):
            if stream.origin == origin and stream.identity not in identities:
                self.move(stream, stream.position)
                self.over.add(stream)
                del self.streams[stream.origin, stream.identity]
        self.last = None
        return 0

    cdef int write(self, JournalRecorder recorder) except -1:
        """Records what has changed since the last block; without a recorder it is not to be recorded at all."""
        cdef Stream stream
        for stream in self.changed:
            stream.changed = False
            if recorder is not None:
                recorder.arrived_from(stream.origin, stream.identity, stream.position, stream in self.over)
        self.changed.clear()
        self.over.clear()
        return 0

    cdef int write_all(self, JournalRecorder recorder) except -1:
        cdef Stream stream
        for stream in self.streams.values():
            recorder.arrived_from(stream.origin, stream.identity, stream.position, False)
        return 0

    def restore(self, dict positions not None) -> None:
        """Takes the positions that the journal has: (origin, identity) -> position."""
        for (origin, identity), position in positions.items():
            self.stream_of(origin, identity).position = position

    def snapshot(self) -> dict[tuple[int, int], int]:
        """Returns all positions: (origin, identity) -> position."""
        cdef Stream stream
        return {(stream.origin, stream.identity): stream.position for stream in self.streams.values()}
