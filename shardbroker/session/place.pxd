"""What a node of a cluster keeps with a session: by which grant it holds it, and which messages the session has taken.

`seen` is a shardbroker.cluster.merge.SeenIds. Its ids are those of messages with another first half: a stamp of the hybrid clock (ms
shifted by 16 bits) in place of microseconds, so that ids compare with stamps. Both orders are the same.
"""
from libc.stdint cimport uint8_t, uint16_t, uint64_t

from shardbroker.session.mqueue cimport MQueue

cdef enum Custody:                         # shardbroker.cluster.claims.SessionState
    OWNED = 0
    MOVING = 1
    STALE = 2
    GONE = 3

cdef enum Taking:
    NOT_TAKEN = 0                          # it is not for this session, or the session has had it
    TAKEN = 1
    TAKEN_BEHIND = 2                       # into `behind`


cdef class Place:
    cdef public uint8_t state              # Custody
    cdef public uint8_t peer               # MOVING, STALE, GONE: node that has, or gets, or may have merged the session; 0: unknown
    cdef public uint64_t generation        # stamp of the grant
    cdef public uint64_t stamp             # of the last connect
    cdef public uint64_t clean_stamp       # of the clean start that began it; 0: none
    cdef public uint64_t granted           # MOVING: generation of the TAKE
    cdef public object seen                # None: every message is taken
    cdef public frozenset merged           # (node, number there) of the stale sessions that were merged into this one
    cdef public set given                  # MOVING: ids of what was exported; else None
    cdef public bint mixed                 # the client may have been at another session of its id, which this one has replaced
    cdef uint16_t to_release               # so many packet ids are still to be released before they are used for QoS 2
    cdef uint16_t asked                    # so many from the next one on have had PUBREL on this connection
    cdef uint16_t answered                 # of these, so many are known to be released
    cdef bint released                     # one had PUBREL: PUBCOMP may arrive before PUBREC
    cdef MQueue behind                     # OWNED: what arrives before the tail of the former node has; sent behind it. None: nothing is held
    cdef readonly bint watched             # the router is asked about each message: `seen` is set, or the session is not owned

    cdef void doubt(self) noexcept         # the client may have packet ids of another session
    cdef void connected(self) noexcept     # PUBREL of the former connection have no answers on this one
    cdef void use(self) noexcept           # the next packet id is used
    cdef int watch(self) except -1         # sets `watched`; to be called after a change of `state` or `seen`


# Id of a message among the ids of `seen`, and the parts of the message's id; -1: it is not that of a message.
cdef object seen_id(uint64_t id_high, uint64_t id_low)
cdef int message_id(object seen, uint64_t* id_high, uint64_t* id_low) except? -2
