from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum Outcome:
    NEED_MORE = 0
    FOUND = 1                              # the client id is there; it may be empty
    NOT_CONNECT = 2
    TOO_LARGE = 3                          # the announced length is over the limit
    UNCLEAR = 4                            # left to any worker to refuse properly

# `client_id` points into `data`. max_packet: bytes, header included. `*length` is written for FOUND only.
cdef int peek(const uint8_t* data, size_t size, uint32_t max_packet, const uint8_t** client_id, uint32_t* length) noexcept
# Returns the protocol level of the CONNECT (bridge bit left out), or 0 before that byte.
cdef int protocol_level(const uint8_t* data, size_t size) noexcept
