"""Destinations of routes: 32 bits in route tables, in tables of exclusive subscriptions and in journals.

    destination    kind u8 | number u24           a destination of kind WORKER is the number of the worker

Invariants: the encoding is defined in this file alone, and journals store it, so the number of a kind never changes. A kind unknown
to a reader is not a worker.
"""
from libc.stdint cimport uint8_t

cpdef enum DestinationKind:
    WORKER = 0                             # number: the worker's
    NODE = 1                               # number: that of a cluster node
    SINK = 2                               # number: that of a sink
    STORE = 0x7F                           # number: see below; in journals, never in a route table

cdef enum:
    NUMBER_BITS = 24
    FEED = 0x02 << NUMBER_BITS             # the destination: number 0 of kind SINK, rules, which read the publisher's journal
    KEPT = 0x02 << NUMBER_BITS | 1         # the destination: number 1 of kind SINK, streams, which read it as well
    RETAINED_STORE = 0x7F << NUMBER_BITS   # the destination: number 0 of kind STORE, the store of retained messages

cdef inline uint8_t kind_of(long destination) noexcept:
    return <uint8_t>(destination >> NUMBER_BITS)

cdef inline long number_of(long destination) noexcept:
    return destination & ((1 << NUMBER_BITS) - 1)
