"""Authorization of one connection: who the client is, and what it may do.

    PUBLISH    may_publish()                 ALLOWED, DENIED, or UNKNOWN while a back end decides
    SUBSCRIBE  prepare(), may_subscribe()    rules of all filters first, then each filter
    will       of_will(), check_will()       once the connection is closed
    changes    recheck(), check_ban()        rules, users and bans

A topic is decided by hooks, by the rules in this process, or by an Inquiry to back ends, during which reading is suspended.
"""
from libc.stdint cimport uint32_t, uint64_t

from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport Channel


cdef class Authorization:
    cdef Channel channel
    cdef object gate                       # shardbroker.access.auth_client.AuthClient
    cdef public object login               # shardbroker.worker.login.Login, until CONNACK or for re-authentications; None otherwise
    cdef readonly object client            # shardbroker.access.contract.Client; its password is dropped once sent
    cdef readonly list subscriptions       # [topic filter, QoS] of auto_subscribe.sources; None: not found out
    cdef bytes client_id
    cdef bytes prefix                      # mount point, of a will whose client has disconnected
    cdef readonly uint64_t ends_at_ms      # expiry of the credentials; 0: none
    cdef bint superuser
    cdef object own_acl                    # rules from the authenticator
    cdef list rules                        # ClientRules that decide in this process, in order
    cdef uint32_t rules_of                 # generation of `rules`
    cdef bint no_match                     # decide() has applied acl.no_match
    cdef str source                        # what decided last: of client.check_authz_complete
    cdef bint unsure                       # a hook program did not respond for the current packet
    cdef dict hooked                       # AuthRequest -> decision of client.authorize, for the current packet; usually None
    cdef dict decided                      # AuthRequest -> bool: remote decisions for the current packet or login
    cdef set inquiries                     # pending
    cdef bint granted                      # a topic that was allowed before: it stays allowed while no back end responds

    cdef int work_out_rules(self) except -1
    cdef bint unchecked(self) except -1
    cdef list topics_of(self, Session session)
    cdef list unknown_of(self, list requests)
    cdef object decide(self, object request)
    cdef int decided_of(self, object request, bint allowed) except -1
    cdef int drop_denied(self, Session session) except -1
    cdef object will_request(self, bytes topic, int qos, bint retain)
    cdef int report_denied(self, str action, bytes topic) except -1


# Returns the identity of a connection for back ends and hook callbacks.
cdef object client_of(Channel channel, bytes client_id, bytes password)


cdef class Inquiry:
    cdef Authorization access
    cdef list open                         # requests to be sent
    cdef list sent                         # requests sent
    cdef bint of_hooks                     # sent to hook programs, not to sources
    cdef object then                       # called once all are decided
    cdef uint64_t id

    cdef bint send(self) except -1
    cdef int answer(self, object decisions, bint failed) except -1
    cdef int answer_hooks(self, object decisions, bint unsure) except -1
