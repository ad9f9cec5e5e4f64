"""The members of the cluster in one segment, as the process link-0 sees them, for all processes of this broker.

    | header | copy 0: totals, row of node id 0, ... of node id 255 | copy 1: the same |

The version counts the changes. Version v is in copy v & 1: a change is written into the other copy, and then the version grows. So
a process that is killed while it writes changes nothing, and a reader whose version is the same before and after has read one state.

Invariants: link-0 is the only writer of copies and version; the supervisor writes the rest of the header before any process starts.
"""
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef enum:
    VIEW_ROWS = 256                        # node ids are 1 to 250
    VIEW_TEXT = 255                        # bytes of a name or an address

cdef struct ViewRow:
    uint64_t incarnation
    uint64_t is_new                        # grows when nothing that was known of the id holds any more
    uint64_t gone                          # grows when the node has left, or is no member any more
    uint64_t acked                         # position of this node's route log that the peer has stored
    uint64_t lag                           # entries of this node's route log that it has not stored
    int64_t skew_ms                        # by which its clock is ahead of this node's
    uint8_t is_member
    uint8_t link                           # shardbroker.cluster.view.LinkState
    uint8_t routes                         # shardbroker.cluster.view.RouteState
    uint8_t name_size
    uint8_t address_size
    uint8_t unused[3]
    uint8_t uuid[16]                       # of the node's data directory
    uint8_t name[256]
    uint8_t address[256]

cdef struct ViewTotals:
    uint64_t epoch
    uint8_t isolated
    uint8_t state                          # shardbroker.cluster.view.NodeState, of this node
    uint8_t joined_late
    uint8_t unused[53]


cdef class ViewSegment:
    cdef uint8_t* base
    cdef object mapping
    cdef readonly str name

    cdef int map(self, str name, object mapping) except -1
    cdef ViewTotals* totals(self, uint64_t version) noexcept
    cdef ViewRow* row(self, uint64_t version, int node) noexcept
    cdef uint64_t version(self) noexcept
    # Returns the LinkState of a node; 0 (DOWN) for an unknown one. `node` is 0 to 255.
    cdef int link_state(self, int node) noexcept
    # Has the node of this id proved itself since this broker started, and not left? `node` is 0 to 255.
    cdef bint is_member(self, int node) noexcept
