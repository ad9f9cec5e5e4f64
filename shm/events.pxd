"""Events that workers send to the manager through its inbox: connects, disconnects and refusals of clients.

    EventHeader | client id | detail | user name
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shm.address cimport PeerAddress

cdef enum:
    EVENT_CONNECTED = 1
    EVENT_DISCONNECTED = 2
    EVENT_DENIED = 3                       # an action that the client is not authorized for
    EVENT_FLAPPING = 4                     # a client reconnected too often, and is banned
    EVENT_REFUSED = 5                      # a client closed or refused before it was connected
    DETAIL_MAX = 400                       # bytes of free text
    EVENT_EXPIRY_NEVER = 0xFFFFFFFF        # seconds, MQTT 5.0 §3.1.2.11.2

cdef packed struct EventHeader:
    uint8_t kind
    uint8_t reason_code
    uint8_t side                           # which side ended the connection: index into SIDES
    uint8_t version
    uint32_t keepalive_s
    uint64_t at_ms                         # Unix ms
    PeerAddress peer
    uint8_t clean_start
    uint32_t expiry_s                      # Session Expiry Interval in force; EVENT_EXPIRY_NEVER: it does not expire
    uint16_t listener                      # its place in the topology
    uint16_t client_size
    uint16_t detail_size
    uint16_t username_size

# Copies the header of an event. Raises EventError if it is truncated.
cdef int check(const uint8_t* data, size_t size, EventHeader* header) except -1
