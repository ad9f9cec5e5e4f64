"""Session tickets in OpenSSL's libssl: what Python's ssl module does not offer.

libssl is the one that Python's ssl module uses, looked up at run time as in shardbroker/transport/crypto.pxd; the functions used have
had the same signatures since OpenSSL 1.1.

`SSL_CTX*` is the first field of Python's object behind its header. Before it is used, what it points to must begin with the method
of a TLS server (first or second word, by version of OpenSSL): it is read through a pipe, so that no other content can crash the process.
"""

import os
import ssl

from cpython.object cimport PyObject
from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy, memset

from shardbroker.transport.crypto cimport dlsym, find_library

from shardbroker.transport.crypto import NAMES as CRYPTO

__all__ = ["KEY_BYTES", "SessionTickets"]

ctypedef void* (*ctx_of_type)(const void* connection) noexcept nogil
ctypedef int (*new_index_type)(int kind, long argl, void* argp, void* new, void* copy, void* free) noexcept nogil
ctypedef int (*set_data_type)(void* ctx, int index, void* data) noexcept nogil
ctypedef void* (*get_data_type)(const void* ctx, int index) noexcept nogil
ctypedef long (*set_callback_type)(void* ctx, int kind, void* callback) noexcept nogil
ctypedef const void* (*method_type)() noexcept nogil
ctypedef int (*init_type)(void* context, const void* cipher, void* engine, const uint8_t* key, const uint8_t* iv) noexcept nogil
ctypedef int (*hmac_init_type)(void* context, const void* key, int size, const void* digest, void* engine) noexcept nogil
ctypedef int (*random_type)(uint8_t* target, int size) noexcept nogil
ctypedef const void* (*getter_type)() noexcept nogil

cdef extern from "<unistd.h>" nogil:
    ssize_t write_bytes "write" (int fd, const void* data, size_t size)

cdef enum:
    SET_TICKET_CALLBACK = 72               # SSL_CTRL_SET_TLSEXT_TICKET_KEY_CB
    CTX_DATA = 1                           # CRYPTO_EX_INDEX_SSL_CTX
    NAME_SIZE = 16                         # of a key, sent in the clear
    SECRET_SIZE = 32                       # of AES-256, of HMAC-SHA256
    IV_SIZE = 16
    UNKNOWN = 0                            # a full handshake follows
    FAILED = -1
    GOOD = 1
    OLD = 2                                # good, and the client gets a new ticket

KEY_BYTES = NAME_SIZE + 2 * SECRET_SIZE
"""Bytes of a key: its name, the key of the cipher, the key of the MAC."""
TLS = (b"libssl.so.3", b"libssl.so.1.1")

cdef struct TicketKey:
    uint8_t name[NAME_SIZE]
    uint8_t cipher[SECRET_SIZE]
    uint8_t mac[SECRET_SIZE]

cdef struct TicketKeys:
    TicketKey now, before                  # new tickets have the first one
    bint has_before

cdef ctx_of_type ctx_of = NULL
cdef set_data_type set_data = NULL
cdef get_data_type get_data = NULL
cdef set_callback_type set_callback = NULL
cdef init_type encrypt_init = NULL
cdef init_type decrypt_init = NULL
cdef hmac_init_type hmac_init = NULL
cdef random_type random_bytes = NULL
cdef const void* server_method = NULL
cdef const void* cipher_of_tickets = NULL
cdef const void* digest_of_tickets = NULL
cdef int data_index = -1


cdef bint load() except -1:
    """Returns whether all that is needed is there."""
    global ctx_of, set_data, get_data, set_callback, encrypt_init, decrypt_init, hmac_init, random_bytes, server_method
    global cipher_of_tickets, digest_of_tickets, data_index
    cdef void* tls = find_library(TLS)
    cdef void* crypto = find_library(CRYPTO)
    if tls == NULL or crypto == NULL:
        return False
    ctx_of = <ctx_of_type>dlsym(tls, "SSL_get_SSL_CTX")
    set_data = <set_data_type>dlsym(tls, "SSL_CTX_set_ex_data")
    get_data = <get_data_type>dlsym(tls, "SSL_CTX_get_ex_data")
    set_callback = <set_callback_type>dlsym(tls, "SSL_CTX_callback_ctrl")
    encrypt_init = <init_type>dlsym(crypto, "EVP_EncryptInit_ex")
    decrypt_init = <init_type>dlsym(crypto, "EVP_DecryptInit_ex")
    hmac_init = <hmac_init_type>dlsym(crypto, "HMAC_Init_ex")
    random_bytes = <random_type>dlsym(crypto, "RAND_bytes")
    cdef method_type method = <method_type>dlsym(tls, "TLS_server_method")
    cdef getter_type cipher = <getter_type>dlsym(crypto, "EVP_aes_256_cbc")
    cdef getter_type digest = <getter_type>dlsym(crypto, "EVP_sha256")
    cdef new_index_type new_index = <new_index_type>dlsym(crypto, "CRYPTO_get_ex_new_index")
    if (
        ctx_of == NULL or set_data == NULL or get_data == NULL or set_callback == NULL or encrypt_init == NULL or decrypt_init == NULL
        or hmac_init == NULL or random_bytes == NULL or method == NULL or cipher == NULL or digest == NULL or new_index == NULL
    ):
        return False
    server_method, cipher_of_tickets, digest_of_tickets = method(), cipher(), digest()
    data_index = new_index(CTX_DATA, 0, NULL, NULL, NULL, NULL)
    return data_index >= 0


cdef bint loaded = load()


cdef void* ctx_behind(object context) except? NULL:
    """Returns the SSL_CTX of Python's context; NULL if it is not where it should be."""
    cdef void** fields = <void**>(<char*><PyObject*>context + sizeof(PyObject))
    cdef void* found[2]
    if not loaded or type(context).__basicsize__ < <Py_ssize_t>(sizeof(PyObject) + sizeof(void*)):
        return NULL
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if write_bytes(writer, fields[0], sizeof(found)) != <ssize_t>sizeof(found):
            return NULL                    # EFAULT: no address
        words = os.read(reader, sizeof(found))
    finally:
        os.close(reader)
        os.close(writer)
    memcpy(found, <const char*>words, sizeof(found))
    return fields[0] if server_method == found[0] or server_method == found[1] else NULL


cdef class SessionTickets:
    """The keys of the session tickets of some contexts. It must live as long as they do."""
    cdef TicketKeys keys
    cdef readonly bint refused             # a context could not be given the keys

    def install(self, context: ssl.SSLContext) -> bool:
        """Lets a context of a server use these keys; returns False if it cannot, and keeps its own."""
        cdef void* ctx = ctx_behind(context)
        if ctx == NULL or not set_data(ctx, data_index, &self.keys) or set_callback(ctx, SET_TICKET_CALLBACK, <void*>on_ticket) != 1:
            self.refused = True
        return not self.refused

    def change(self, now: bytes, before: bytes) -> None:
        """Replaces the keys, KEY_BYTES each; tickets of `before`, which may be empty, are still accepted."""
        assert len(now) == KEY_BYTES and len(before) in (0, KEY_BYTES)
        put_key(&self.keys.now, now)
        self.keys.has_before = bool(before)
        if before:
            put_key(&self.keys.before, before)

    def __dealloc__(self):
        memset(&self.keys, 0, sizeof(self.keys))


cdef int put_key(TicketKey* key, bytes given) except -1:
    cdef const uint8_t* data = given
    memcpy(key, data, sizeof(TicketKey))
    return 0


cdef int on_ticket(void* connection, uint8_t* name, uint8_t* iv, void* cipher, void* mac, int sealing) noexcept nogil:
    """Called by libssl for each ticket: sets the keys that it is made or read with (SSL_CTX_set_tlsext_ticket_key_cb(3))."""
    cdef TicketKeys* keys = <TicketKeys*>get_data(ctx_of(connection), data_index)
    cdef TicketKey* key
    if keys == NULL:
        return UNKNOWN
    key = &keys.now
    if sealing:
        if random_bytes(iv, IV_SIZE) != 1:
            return FAILED
        memcpy(name, key.name, NAME_SIZE)
    elif memcmp(name, key.name, NAME_SIZE) != 0:
        key = &keys.before
        if not keys.has_before or memcmp(name, key.name, NAME_SIZE) != 0:
            return UNKNOWN
    if hmac_init(mac, key.mac, SECRET_SIZE, digest_of_tickets, NULL) != 1:
        return FAILED
    if (encrypt_init if sealing else decrypt_init)(cipher, cipher_of_tickets, NULL, key.cipher, iv) != 1:
        return FAILED
    return GOOD if key == &keys.now else OLD
