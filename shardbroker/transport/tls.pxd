"""TLS records after the handshake (RFC 8446 §5; for TLS 1.2 RFC 5246 §6.2 with RFC 5288 and RFC 7905).

    in:   records of the peer, cut anywhere -> the plaintext in them, in place
    out:  plaintext, in pieces -> records, each sealed from where its bytes lie -> the socket

The handshake is OpenSSL's, through Python's ssl module. After it there remain two keys and two counters. These can be handed to
another process, by pack() and unpack(), which is not possible for an SSL object. Ciphers and hashes are libcrypto's.

A record:    type | 3 | 3 | length, 2 bytes | [ nonce, 8 bytes: TLS 1.2 with AES ] | ciphertext | tag, 16 bytes
TLS 1.3:     the outer type is always 23, the real one is the last byte of the plaintext that is not 0

Invariants: each counter counts the records made with its key, so no nonce is used twice. `kept` holds sealed records that the socket did
not take; until they are sent only an alert is sealed. `partial` holds the start of one incomplete record.
"""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.mqtt.buffer cimport Buffer
from shardbroker.transport.crypto cimport CHACHA20_POLY1305, Aead

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef enum:
    HEADER_SIZE = 5
    PLAIN_MAX = 16384                      # RFC 8446 §5.1, bytes; a record that is sent may have less, see `longest`
    SEALED_MAX = 16640                     # RFC 8446 §5.2: 256 bytes more
    RECORD_MAX = 16645                     # with the header
    EXPLICIT_SIZE = 8                      # explicit part of the nonce: TLS 1.2 with AES, bytes


cdef packed struct Keys:                   # of one direction
    uint64_t sequence                      # number of records so far
    uint8_t secret[48]                     # TLS 1.3: the secret that the next key is derived from
    uint8_t key[32]
    uint8_t iv[12]                         # TLS 1.2 with AES: 4 bytes


cdef class Records:
    """One end of one connection."""
    cdef uint8_t cipher                    # Cipher
    cdef uint8_t digest                    # Digest
    cdef bint older                        # TLS 1.2
    cdef Keys incoming, outgoing
    cdef Aead opener, sealer               # made on first use
    cdef Buffer kept
    cdef uint8_t* partial
    cdef readonly size_t partial_size
    cdef uint8_t handshake[5]              # an incomplete KeyUpdate
    cdef uint8_t handshake_size
    cdef readonly bint ended               # the peer sends nothing more: close_notify or another alert
    cdef readonly bint closed              # this end sends nothing more: its alert is in `kept`, or sent
    cdef bint must_update                  # the next record sent is a KeyUpdate
    cdef uint32_t updates                  # updates of the peer's keys
    cdef uint64_t received                 # number of records from the peer
    cdef readonly uint32_t longest         # plaintext in a record that is sent, bytes: max_fragment_length of RFC 6066 or PLAIN_MAX

    # Turns records into plaintext in place; returns its size, at `data`, which begins with the bytes of `partial`. An incomplete
    # record is kept there. Raises TlsRecordError; the alert for it waits to be sent then.
    cdef ssize_t receive(self, uint8_t* data, size_t size) except -1
    # Sends like sendmsg(2): returns the number of plaintext bytes taken (sent, or kept), or -1 with errno. EAGAIN: nothing is taken
    # before the kept records are sent. Without parts, only the kept records are sent.
    cdef ssize_t send(self, int fd, const iovec* parts, size_t count) noexcept
    # Returns whether bytes wait to be sent.
    cdef inline bint waiting(self) noexcept:
        return self.kept.end != self.kept.start or (self.must_update and not self.closed)
    # Queues close_notify, once.
    cdef int close(self) except -1

    cdef int end_with(self, uint8_t level, uint8_t alert) except -1
    cdef ssize_t open_record(self, uint8_t* record, size_t length, uint8_t* kind) except -1
    cdef int take_control(self, uint8_t kind, const uint8_t* data, size_t size) except -1
    cdef int take_handshake(self, const uint8_t* data, size_t size) except -1
    cdef ssize_t seal_record(self, uint8_t* target, uint8_t kind, const iovec* parts, size_t skip, size_t size) noexcept
    cdef ssize_t seal_update(self, uint8_t* target) noexcept
    cdef bint keep(self, const uint8_t* data, size_t size) noexcept
    cdef int keep_partial(self, const uint8_t* data, size_t size) except -1
    cdef bint make_sealer(self) noexcept
    cdef int put_scratch(self, ssize_t size) except -1
    cdef void make_nonce(self, const Keys* keys, const uint8_t* explicit, uint8_t* nonce) noexcept
    cdef size_t make_known(self, const Keys* keys, const uint8_t* header, size_t size, uint8_t* known) noexcept

    # Returns the number of bytes between header and ciphertext.
    cdef inline size_t before(self) noexcept:
        return EXPLICIT_SIZE if self.older and self.cipher != CHACHA20_POLY1305 else 0
