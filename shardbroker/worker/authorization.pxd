r"""Authentication and authorization of one connection, from CONNECT to each topic.

    start() -- banned, anonymous ------------------------------------> refused
       |--- no chain ---> checks ---> accepted
       \--- request --> [held until the result] --- ok ---> checks ---> accepted
                          |   ^                 \-- denied, or no result in time ---> refused
                   AUTH challenge

`checks`: the topic of the will, and the subscriptions of a resumed session. Held means that nothing is read from the socket.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.access.acl_cache cimport AclCache
from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport Channel


cdef class Authorization:
    cdef Channel channel
    cdef object gate                       # shardbroker.access.auth_client.AuthClient
    cdef readonly object client            # shardbroker.access.contract.Client; its password is dropped once sent
    cdef object packet                     # CONNECT, until it is accepted or refused
    cdef bytes client_id
    cdef bytes prefix                      # mount point, of a will whose client has disconnected
    cdef object authn                      # authentication of a listener added at run time; else None
    cdef bytes method                      # Authentication Method, None without
    cdef bytes data                        # Authentication Data for CONNACK
    cdef uint64_t conversation             # id of the request that began the enhanced authentication
    cdef uint64_t login                    # id of the pending login request; 0: none
    cdef bint challenged                   # AUTH of the client is expected
    cdef bint waits_for_hooks                   # `login` was sent to hook programs, not to the chain
    cdef bint no_match                     # decide() has applied acl.no_match
    cdef bint unsure                       # a hook program did not respond for the current packet
    cdef readonly uint64_t ends_at_ms      # expiry of the credentials; 0: none
    cdef bint superuser
    cdef object own_acl                    # rules from the authenticator
    cdef list rules                        # ClientRules that decide in this process, in order
    cdef uint32_t rules_of                 # generation of `rules`
    cdef dict hooked                       # AuthRequest -> decision of client.authorize, for the current packet; usually None
    cdef dict decided                      # AuthRequest -> bool: remote decisions for the current packet or login
    cdef set inquiries                     # pending
    cdef bint granted                      # a topic that was allowed before: it stays allowed while no back end responds

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
