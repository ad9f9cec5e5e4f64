"""What is reported about sessions in a cluster; see session_claims.pxd."""

__all__ = ["SessionClaims"]


cdef class SessionClaims:
    cdef int connect(self, object channel, object packet, bytes client_id) except -1:
        raise NotImplementedError("SessionClaims.connect")

    cdef int abandoned(self, object channel) except -1:
        raise NotImplementedError("SessionClaims.abandoned")

    cdef int disconnected(self, Session session) except -1:
        raise NotImplementedError("SessionClaims.disconnected")

    cdef int ended(self, Session session) except -1:
        raise NotImplementedError("SessionClaims.ended")

    cdef int takes(self, Session session, Publication publication, int qos) except -1:
        raise NotImplementedError("SessionClaims.takes")

    cdef list leaving(self):
        raise NotImplementedError("SessionClaims.leaving")
