r"""Authentication of one connection, from CONNECT to CONNACK, and again where the client begins a re-authentication.

    start() -- banned, anonymous ------------------------------------> refused
       |--- no chain ---> subscriptions ---> checks ---> accepted
       \--- request --> [held until the result] --- ok ---> checks ---> accepted
                          |   ^                 \-- denied, or no result in time ---> refused
                   AUTH challenge

`subscriptions`: those of auto_subscribe.sources; the result of a chain has them. `checks`: the topic of the will, and the subscriptions of a resumed session. Held means that nothing is read from the socket.
A login without an authentication method ends with CONNACK; what it has found out about the client is in Authorization.
"""
from libc.stdint cimport uint64_t

from shardbroker.worker.authorization cimport Authorization
from shardbroker.worker.channel cimport Channel


cdef class Login:
    cdef Channel channel
    cdef Authorization access              # what the client may do
    cdef object gate                       # shardbroker.access.auth_client.AuthClient
    cdef object packet                     # CONNECT, until it is accepted or refused
    cdef object authn                      # authentication of a listener added at run time; else None
    cdef bytes method                      # Authentication Method, None without
    cdef bytes data                        # Authentication Data for CONNACK
    cdef uint64_t conversation             # id of the request that began the enhanced authentication
    cdef uint64_t request                  # id of the pending request; 0: none
    cdef bint challenged                   # AUTH of the client is expected
    cdef bint waits_for_hooks              # `request` was sent to hook programs, not to the chain
    cdef bint waits_for_subscriptions      # `request` asks for nothing else

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
    cdef int find_subscriptions(self) except -1
    cdef int on_subscriptions(self, object result) except -1
    cdef int decided(self, int reason_code, bint is_anonymous) except -1
    cdef int challenge(self, bytes data) except -1
    cdef int reauthenticated(self) except -1
    cdef int finish_login(self) except -1
    cdef int accepted(self) except -1          # CONNACK is sent, or the client was refused
    cdef int note_will(self) except -1
