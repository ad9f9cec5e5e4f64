"""AEAD and HMAC of OpenSSL's libcrypto, which TLS records are made with.

The library is looked up when this module is imported, and is the one that Python's ssl module works with wherever that is a library of
its own. Nothing is linked: a build needs no headers of OpenSSL, and a wheel brings no second OpenSSL that would have to be kept up to
date. Where no libcrypto is found `AVAILABLE` is False, and none of this may be called.

The functions used have had their signatures since OpenSSL 1.1, and are not deprecated in 3.
"""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

cdef enum:
    TAG_SIZE = 16                          # of all ciphers here, bytes
    NONCE_SIZE = 12
    DIGEST_MAX = 64

cdef enum Cipher:
    AES_128_GCM
    AES_256_GCM
    CHACHA20_POLY1305
    CIPHERS                                # how many there are

cdef enum Digest:
    SHA256
    SHA384
    DIGESTS

cdef bint available() noexcept

cdef size_t key_size(int cipher) noexcept
cdef size_t digest_size(int digest) noexcept

# digest_size() bytes at `out`. Raises MemoryError.
cdef int hmac(int digest, const uint8_t* key, size_t key_size, const uint8_t* data, size_t size, uint8_t* out) except -1


cdef class Aead:
    """One key for one direction, about 1 KB. A message is begin(), update() as often as there are pieces, then seal() or open().

    Each returns whether it went well; of open() False means that somebody changed the message.
    """
    cdef void* context                     # EVP_CIPHER_CTX
    cdef bint sealing

    cdef bint begin(self, const uint8_t* nonce, const uint8_t* known, size_t known_size) noexcept
    # `target` is `source`, or does not overlap it.
    cdef bint update(self, uint8_t* target, const uint8_t* source, size_t size) noexcept
    cdef bint seal(self, uint8_t* tag) noexcept
    cdef bint open(self, const uint8_t* tag) noexcept

# `key` has key_size(cipher) bytes. Raises MemoryError.
cdef Aead make_aead(int cipher, const uint8_t* key, bint sealing)
