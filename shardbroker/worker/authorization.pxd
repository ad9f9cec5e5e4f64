r"""What one connection is allowed: from CONNECT over the result about it to every topic it asks for.

    start() -- banned, anonymous ------------------------------------> refused
       |--- no chain ---> checks ---> accepted
       \--- asked ---> [held until the result] --- ok ---> checks ---> accepted
                          |   ^                 \-- denied, no result in time ---> refused
                   AUTH challenge

`checks`: the topic of the will, and the subscriptions of a resumed session. Suspended means that nothing is read from it.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.access.acl_cache cimport AclCache
from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport Channel


cdef class Authorization:
    cdef Channel channel
    cdef object gate                       # shardbroker.access.auth_client.AuthClient
    cdef readonly object client            # shardbroker.access.contract.Client, without the password once that was sent
    cdef object packet                     # CONNECT, until it is accepted or refused
    cdef bytes client_id
    cdef bytes prefix                      # mount point, of the topic of a will whose client is gone
    cdef object authn                      # authentication of a listener that was added since the start; else None
    cdef bytes method                      # Authentication Method, None without
    cdef bytes data                        # Authentication Data for CONNACK
    cdef uint64_t conversation             # id of the request that began an enhanced authentication
    cdef uint64_t login                    # id of the request under way about who this is; 0: none
    cdef bint challenged                   # an AUTH of the client is expected
    cdef bint waits_for_hooks                   # `login` went to programs behind hooks, not to the chain
    cdef bint no_match                     # decide() has applied acl.no_match
    cdef bint unsure                       # one of them has not answered about the packet in hand
    cdef readonly uint64_t ends_at_ms      # its credentials end then, 0: they do not
    cdef bint superuser
    cdef object own_acl                    # as the authenticator gave it
    cdef list rules                        # ClientRules that decide here, in order
    cdef uint32_t rules_of                 # generation that they were worked out for
    cdef dict hooked                       # AuthRequest -> what callbacks of client.authorize have said, for the packet in hand; None mostly
    cdef dict decided                      # AuthRequest -> bool: what the packet in hand, or the login, has asked for
    cdef set inquiries                     # under way
    cdef bint granted                      # it asks again what was allowed once: it stays so while no back end says anything else

    cdef bint banned(self) except -1
    cdef bint take_name(self, bytes username) except -1
    cdef bint hooks_decide(self) except -1
    cdef bint query_hooks(self) except -1
    cdef int on_hooks_result(self, object result) except -1
    cdef int query_chain(self) except -1
    cdef int query_login(self, object kind, list details) except -1
    cdef int login_failed(self, str text) except -1
    cdef int logged_in(self, list details) except -1
    cdef int denied(self, int reason_code, str text) except -1
    cdef int challenge(self, bytes data) except -1
    cdef int reauthenticated(self) except -1
    cdef int finish_login(self) except -1
    cdef int work_out_rules(self) except -1
    cdef bint unchecked(self) except -1
    cdef list topics_of(self, Session session)
    cdef list unknown_of(self, list requests)
    cdef object decide(self, object request)
    cdef int drop_denied(self, Session session) except -1
    cdef object will_request(self, bytes topic, int qos, bint retain)
    cdef int note_will(self) except -1
    cdef int report_denied(self, str action, bytes topic) except -1


# Who is behind a connection, as back ends and callbacks of hooks are told.
cdef object client_of(Channel channel, bytes client_id, bytes password)


cdef class Inquiry:
    cdef Authorization access
    cdef list open                         # requests that are still to be asked
    cdef list asked                        # those under way
    cdef bint of_hooks                     # they went to programs behind hooks, not to sources
    cdef object then                       # called once all are decided
    cdef uint64_t id

    cdef bint send(self) except -1
    cdef int answer(self, object decisions, bint failed) except -1
    cdef int answer_hooks(self, object decisions, bint unsure) except -1
