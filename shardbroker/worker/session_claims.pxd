"""What the router and connections report about sessions in a cluster; worker/cluster_sessions.pyx implements it.

CONNECT is accepted only once its node has the right to the session (shardbroker/cluster/claims.py). Until then the connection is not
read, and `Channel.claiming` is set.
"""
from shardbroker.pubsub.message cimport Publication
from shardbroker.session.session cimport Session


cdef class SessionClaims:
    # A client is authenticated: it is accepted or refused now or later.
    cdef int connect(self, object channel, object packet, bytes client_id) except -1
    # Its connection has ended before that.
    cdef int abandoned(self, object channel) except -1
    # The connection of a session has ended; the session has ended.
    cdef int disconnected(self, Session session) except -1
    cdef int ended(self, Session session) except -1
    # What becomes of a message for a session with Place.watched: a Taking of session/place.pxd.
    cdef int takes(self, Session session, Publication publication, int qos) except -1
    # Sessions of the journal beside those of the router.
    cdef list leaving(self)
