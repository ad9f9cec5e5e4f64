"""One connection as plain values, and back: all of its state that is neither in its session nor found out again.

Values that are what a new connection begins with are left out. What is not here: output fence (at level `machine` nothing moves until
all output may be sent), pending requests to integrations (nothing moves until they are answered), permissions looked up (they are
looked up again).
"""
from shardbroker.session.session cimport Session
from shardbroker.worker.connection cimport Connection
from shardbroker.worker.one_pass cimport Worker

# Why this connection cannot move now, but will be able to; None: it can. One that is ending stays behind.
cdef str reason_to_wait(Connection connection)
cdef bint stays_behind(Connection connection) noexcept
cdef dict to_values(Connection connection)
# A connection in the tables of the worker; it owns the descriptor. session: None before CONNACK. Raises ValueError, TypeError, KeyError.
cdef Connection from_values(Worker worker, dict values, int fd, Session session)
