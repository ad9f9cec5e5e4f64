"""One destination of messages; see outlet.pxd."""

__all__ = ["Outlet"]


cdef class Outlet:
    cdef bint room_for(self, uint64_t size) except -1:
        raise NotImplementedError("Outlet.room_for")

    cdef int64_t put(self, RecordHeader* header, Publication publication, bytes group, bytes filter) except -2:
        raise NotImplementedError("Outlet.put")

    cdef int commit(self) except -1:
        raise NotImplementedError("Outlet.commit")

    cdef int commit_to(self, uint64_t end) except -1:
        raise NotImplementedError("Outlet.commit_to")

    cdef uint64_t end(self) except? 0:
        raise NotImplementedError("Outlet.end")

    cdef bint secured(self, uint64_t end) except -1:
        raise NotImplementedError("Outlet.secured")

    cdef uint64_t identity(self) noexcept:
        return 0
