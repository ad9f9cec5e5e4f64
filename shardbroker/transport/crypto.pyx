"""libcrypto at run time; see crypto.pxd."""

import ssl  # no-cython-lint: brings its libcrypto into the process

__all__ = ["AVAILABLE"]

ctypedef void* (*context_new_type)() noexcept nogil
ctypedef void (*context_free_type)(void* context) noexcept nogil
ctypedef int (*init_type)(void* context, const void* cipher, void* engine, const uint8_t* key, const uint8_t* iv, int sealing) noexcept nogil
ctypedef int (*update_type)(void* context, uint8_t* target, int* written, const uint8_t* source, int size) noexcept nogil
ctypedef int (*final_type)(void* context, uint8_t* target, int* written) noexcept nogil
ctypedef int (*ctrl_type)(void* context, int kind, int size, void* pointer) noexcept nogil
ctypedef const void* (*getter_type)() noexcept nogil
ctypedef const void* (*fetch_type)(void* library, const char* name, const char* properties) noexcept nogil
ctypedef uint8_t* (*hmac_type)(const void* digest, const void* key, int key_size, const uint8_t* data, size_t size,
                               uint8_t* out, unsigned int* written) noexcept nogil

cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* name, int flags)
    int RTLD_NOW, RTLD_LOCAL, RTLD_NOLOAD

cdef enum:
    GET_TAG = 0x10                         # EVP_CTRL_AEAD_GET_TAG
    SET_TAG = 0x11                         # EVP_CTRL_AEAD_SET_TAG

NAMES = (b"libcrypto.so.3", b"libcrypto.so.1.1")
"""OpenSSL 3 and 1.1.1, the versions that Python 3.11 and later support."""

cdef context_new_type context_new = NULL
cdef context_free_type context_free = NULL
cdef init_type cipher_init = NULL
cdef update_type cipher_update = NULL
cdef final_type cipher_final = NULL
cdef ctrl_type cipher_ctrl = NULL
cdef hmac_type one_hmac = NULL
cdef const void* ciphers[<int>CIPHERS]
cdef const void* digests[<int>DIGESTS]


cdef void* find_library(tuple names):
    cdef void* library
    for flags in (RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL):
        for name in names:
            library = dlopen(<const char*>name, flags)
            if library != NULL:
                return library
    return NULL


cdef const void* find(void* library, const char* fetcher, const char* name, const char* getter):
    """Returns an algorithm, fetched once where OpenSSL supports that: OpenSSL 3 looks up one of the older kind at each use."""
    cdef fetch_type fetch = <fetch_type>dlsym(library, fetcher)
    cdef getter_type get = <getter_type>dlsym(library, getter)
    if fetch != NULL:
        return fetch(NULL, name, NULL)
    return get() if get != NULL else NULL


cdef bint load():
    """Returns whether all that is needed is available.

    A policy of the machine may forbid a cipher: this module is then not used.
    """
    global context_new, context_free, cipher_init, cipher_update, cipher_final, cipher_ctrl, one_hmac
    cdef void* library = find_library(NAMES)
    if library == NULL:
        return False
    context_new = <context_new_type>dlsym(library, "EVP_CIPHER_CTX_new")
    context_free = <context_free_type>dlsym(library, "EVP_CIPHER_CTX_free")
    cipher_init = <init_type>dlsym(library, "EVP_CipherInit_ex")
    cipher_update = <update_type>dlsym(library, "EVP_CipherUpdate")
    cipher_final = <final_type>dlsym(library, "EVP_CipherFinal_ex")
    cipher_ctrl = <ctrl_type>dlsym(library, "EVP_CIPHER_CTX_ctrl")
    one_hmac = <hmac_type>dlsym(library, "HMAC")
    ciphers[<int>AES_128_GCM] = find(library, "EVP_CIPHER_fetch", "AES-128-GCM", "EVP_aes_128_gcm")
    ciphers[<int>AES_256_GCM] = find(library, "EVP_CIPHER_fetch", "AES-256-GCM", "EVP_aes_256_gcm")
    ciphers[<int>CHACHA20_POLY1305] = find(library, "EVP_CIPHER_fetch", "ChaCha20-Poly1305", "EVP_chacha20_poly1305")
    digests[<int>SHA256] = find(library, "EVP_MD_fetch", "SHA256", "EVP_sha256")
    digests[<int>SHA384] = find(library, "EVP_MD_fetch", "SHA384", "EVP_sha384")
    return (
        context_new != NULL and context_free != NULL and cipher_init != NULL and cipher_update != NULL and cipher_final != NULL
        and cipher_ctrl != NULL and one_hmac != NULL and ciphers[<int>AES_128_GCM] != NULL and ciphers[<int>AES_256_GCM] != NULL
        and ciphers[<int>CHACHA20_POLY1305] != NULL and digests[<int>SHA256] != NULL and digests[<int>SHA384] != NULL
    )


cdef bint loaded = load()

AVAILABLE = bool(loaded)
"""True if a suitable libcrypto was found."""


cdef bint available() noexcept:
    return loaded


cdef size_t key_size(int cipher) noexcept:
    return 16 if cipher == AES_128_GCM else 32


cdef size_t digest_size(int digest) noexcept:
    return 32 if digest == SHA256 else 48


cdef int hmac(int digest, const uint8_t* key, size_t key_size, const uint8_t* data, size_t size, uint8_t* out) except -1:
    cdef unsigned int written
    if one_hmac(digests[digest], key, <int>key_size, data, size, out, &written) == NULL:
        raise MemoryError("HMAC of libcrypto")
    return 0


cdef Aead make_aead(int cipher, const uint8_t* key, bint sealing):
    cdef Aead aead = Aead.__new__(Aead)
    aead.context = context_new()
    aead.sealing = sealing
    if aead.context == NULL or not cipher_init(aead.context, ciphers[cipher], NULL, key, NULL, sealing):
        raise MemoryError("a cipher of libcrypto")
    return aead


cdef class Aead:
    def __dealloc__(self):
        if self.context != NULL:
            context_free(self.context)

    cdef bint begin(self, const uint8_t* nonce, const uint8_t* known, size_t known_size) noexcept:
        cdef int written
        return cipher_init(self.context, NULL, NULL, NULL, nonce, self.sealing) == 1 \
            and cipher_update(self.context, NULL, &written, known, <int>known_size) == 1

    cdef bint update(self, uint8_t* target, const uint8_t* source, size_t size) noexcept:
        cdef int written
        return cipher_update(self.context, target, &written, source, <int>size) == 1

    cdef bint seal(self, uint8_t* tag) noexcept:
        cdef uint8_t[TAG_SIZE] rest        # stays empty: these ciphers have no blocks to fill
        cdef int written
        return cipher_final(self.context, rest, &written) == 1 and cipher_ctrl(self.context, GET_TAG, TAG_SIZE, tag) == 1

    cdef bint open(self, const uint8_t* tag) noexcept:
        cdef uint8_t[TAG_SIZE] rest
        cdef int written
        return cipher_ctrl(self.context, SET_TAG, TAG_SIZE, <void*>tag) == 1 and cipher_final(self.context, rest, &written) == 1
