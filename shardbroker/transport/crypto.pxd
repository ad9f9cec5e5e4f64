"""AEAD and HMAC of OpenSSL's libcrypto, the primitives of TLS records.

The library is looked up when this module is imported. It is the one that Python's ssl module uses, wherever that is a separate
library. Nothing is linked: a build needs no headers of OpenSSL, and a wheel contains no second OpenSSL that would need updates of
its own. Where no libcrypto is found `AVAILABLE` is False, and none of the functions below may be called.

The functions used have had the same signatures since OpenSSL 1.1, and are not deprecated in 3.
"""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

cdef enum:
    TAG_SIZE = 16                          # of all ciphers used here, bytes
    NONCE_SIZE = 12
    DIGEST_MAX = 64

cdef enum Cipher:
    AES_128_GCM
    AES_256_GCM
    CHACHA20_POLY1305
    CIPHERS                                # number of ciphers

cdef enum Digest:
    SHA256
    SHA384
    DIGESTS

cdef extern from "<dlfcn.h>" nogil:
    void* dlsym(void* library, const char* name)

cdef bint available() noexcept

# Returns a handle of the first library that is found, preferably of one that is loaded in this process already; NULL without any.
cdef void* find_library(tuple names)

cdef size_t key_size(int cipher) noexcept
cdef size_t digest_size(int digest) noexcept

# Writes digest_size() bytes to `out`. Raises MemoryError.
cdef int hmac(int digest, const uint8_t* key, size_t key_size, const uint8_t* data, size_t size, uint8_t* out) except -1


cdef class Aead:
    """One key for one direction, about 1 KB. A message is begin(), update() once per piece, then seal() or open().

    Each returns whether it succeeded; False from open() means that the message was modified.
    """
    cdef void* context                     # EVP_CIPHER_CTX
    cdef bint sealing

    cdef bint begin(self, const uint8_t* nonce, const uint8_t* known, size_t known_size) noexcept
    # `target` is `source`, or does not overlap with it.
    cdef bint update(self, uint8_t* target, const uint8_t* source, size_t size) noexcept
    cdef bint seal(self, uint8_t* tag) noexcept
    cdef bint open(self, const uint8_t* tag) noexcept

# Makes an Aead. `key` has key_size(cipher) bytes. Raises MemoryError.
cdef Aead make_aead(int cipher, const uint8_t* key, bint sealing)
