"""TLS records; see tls.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, EIO, ENOMEM, errno
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset

from shardbroker.transport.crypto cimport (
    AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305, CIPHERS, DIGEST_MAX, DIGESTS, NONCE_SIZE, SHA256, SHA384, TAG_SIZE, available, digest_size, hmac,
    key_size, make_aead,
)

__all__ = ["Records", "TlsRecordError"]

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void* buffer, size_t size, int flags)
    int MSG_NOSIGNAL, MSG_DONTWAIT

cdef enum:                                 # record types
    CHANGE_CIPHER_SPEC = 20
    ALERT = 21
    HANDSHAKE = 22
    DATA = 23

cdef enum:                                 # alerts, RFC 8446 §6
    CLOSE_NOTIFY = 0
    UNEXPECTED_MESSAGE = 10
    BAD_RECORD_MAC = 20
    RECORD_OVERFLOW = 22
    ILLEGAL_PARAMETER = 47
    DECODE_ERROR = 50
    NO_RENEGOTIATION = 100
    WARNING = 1                            # level
    FATAL = 2

cdef enum:
    IMPLICIT_SIZE = 4                      # bytes of the nonce that are not sent
    KNOWN_MAX = 13                         # authenticated beside the plaintext, bytes
    OVERHEAD_MAX = 32                      # header, nonce, type and tag, bytes
    KEY_UPDATE = 24                        # a handshake message of 5 bytes: type | 0 | 0 | 1 | whether the receiver updates too
    KEY_UPDATE_SIZE = 5
    SCRATCH_RECORDS = 4                    # sealed at once; records that the socket does not take are kept
    SCRATCH_SIZE = 4 * (16384 + 32) + 64
    LABEL_MAX = 64

cdef enum:
    REKEY_RECORDS = 16777216               # RFC 8446 §5.5: a key of AES-GCM is good for 2^24.5 records
    UPDATES_FREE = 32                      # key updates of the peer that are always allowed, as in BoringSSL,
    RECORDS_FOR_UPDATE = 8                 # and one more per this many records: deriving a key costs more than receiving its record

cdef packed struct Packed:
    uint8_t cipher
    uint8_t digest
    uint8_t older
    Keys incoming
    Keys outgoing
    uint16_t longest

SUITES = {
    "TLS_AES_128_GCM_SHA256": (AES_128_GCM, SHA256),
    "TLS_AES_256_GCM_SHA384": (AES_256_GCM, SHA384),
    "TLS_CHACHA20_POLY1305_SHA256": (CHACHA20_POLY1305, SHA256),
}
"""The cipher suites of TLS 1.3, under the names of the standard."""

OLDER_ENDS = {
    "AES128-GCM-SHA256": (AES_128_GCM, SHA256),
    "AES256-GCM-SHA384": (AES_256_GCM, SHA384),
    "CHACHA20-POLY1305": (CHACHA20_POLY1305, SHA256),
}
"""The ends of OpenSSL's names of TLS 1.2 suites; the part before is the key exchange. Others (CBC, CCM) are not supported here."""

ALERTS = {
    BAD_RECORD_MAC: "a record that fails authentication",
    RECORD_OVERFLOW: "a record that is too long",
    UNEXPECTED_MESSAGE: "a message that is not allowed after the handshake",
    ILLEGAL_PARAMETER: "a KeyUpdate with an unknown request",
    DECODE_ERROR: "a record that cannot be read",
    NO_RENEGOTIATION: "renegotiation",
}

cdef uint8_t[SCRATCH_SIZE] scratch         # sealed records to be sent: one thread uses it, and it is empty between calls


class TlsRecordError(Exception):
    """A violation of TLS by the peer; the text names the rule."""


cdef class Records:
    """The records of a connection, made by `after_handshake` or `after_older_handshake`, or by `unpack` from another process."""

    def __cinit__(self):
        self.kept = Buffer.__new__(Buffer)
        self.longest = PLAIN_MAX

    def __dealloc__(self):
        free(self.partial)
        memset(&self.incoming, 0, sizeof(Keys))
        memset(&self.outgoing, 0, sizeof(Keys))

    # --- in -------------------------------------------------------------------------------------------------------------------

    cdef ssize_t receive(self, uint8_t* data, size_t size) except -1:
        cdef size_t at = 0, plain = 0, length
        cdef ssize_t got
        cdef uint8_t kind
        while size - at >= HEADER_SIZE and not self.ended:
            length = <size_t>data[at + 3] << 8 | data[at + 4]
            # The version is authenticated with the rest of the header. Its first byte shows early that this is no record.
            if data[at] < CHANGE_CIPHER_SPEC or data[at] > DATA or data[at + 1] != 3:
                self.fail(DECODE_ERROR)
            if length > SEALED_MAX:
                self.fail(RECORD_OVERFLOW)
            if size - at < HEADER_SIZE + length:
                break
            got = self.open_record(data + at, length, &kind)
            self.received += 1
            at += HEADER_SIZE
            if kind == DATA and not self.handshake_size:
                memmove(data + plain, data + at + self.before(), <size_t>got)
                plain += <size_t>got
            else:
                self.take_control(kind, data + at + self.before(), <size_t>got)
            at += length
        self.keep_partial(data + at, 0 if self.ended else size - at)
        return <ssize_t>plain

    cdef ssize_t open_record(self, uint8_t* record, size_t length, uint8_t* kind) except -1:
        """Decrypts a record in place: the plaintext begins before() bytes after the header. Returns the size of the plaintext."""
        cdef uint8_t[NONCE_SIZE] nonce
        cdef uint8_t[KNOWN_MAX] known
        cdef uint8_t* body = record + HEADER_SIZE + self.before()
        cdef size_t extra = self.before() + TAG_SIZE + (0 if self.older else 1)
        cdef size_t size
        # A TLS 1.3 peer may send change_cipher_spec, but not after its Finished.
        if not self.older and record[0] != DATA:
            self.fail(UNEXPECTED_MESSAGE)
        if length < extra:
            self.fail(DECODE_ERROR)
        size = length - self.before() - TAG_SIZE
        if self.opener is None:
            self.opener = make_aead(self.cipher, self.incoming.key, False)
        self.make_nonce(&self.incoming, record + HEADER_SIZE, nonce)
        if not (self.opener.begin(nonce, known, self.make_known(&self.incoming, record, size, known))
                and self.opener.update(body, body, size) and self.opener.open(body + size)):
            self.fail(BAD_RECORD_MAC)
        self.incoming.sequence += 1
        kind[0] = record[0]
        if not self.older:
            while size and not body[size - 1]:
                size -= 1                  # padding
            if not size:
                self.fail(UNEXPECTED_MESSAGE)
            size -= 1
            kind[0] = body[size]
        if size > PLAIN_MAX:
            self.fail(RECORD_OVERFLOW)
        return <ssize_t>size

    cdef int take_control(self, uint8_t kind, const uint8_t* data, size_t size) except -1:
        if kind == ALERT and size == 2 and not self.handshake_size:
            # Any alert ends the peer's data: a mere warning is followed by close_notify. RFC 8446 §6.1
            self.ended = True
        elif kind == HANDSHAKE and not self.older and size:
            self.take_handshake(data, size)
        elif kind == HANDSHAKE and self.older:
            self.fail(NO_RENEGOTIATION)
        else:
            self.fail(UNEXPECTED_MESSAGE)
        return 0

    cdef int take_handshake(self, const uint8_t* data, size_t size) except -1:
        """Takes a KeyUpdate, the only message allowed here; its record must end with it (RFC 8446 §5.1)."""
        if self.handshake_size + size > KEY_UPDATE_SIZE:
            self.fail(UNEXPECTED_MESSAGE)
        memcpy(self.handshake + self.handshake_size, data, size)
        self.handshake_size += <uint8_t>size
        if self.handshake[0] != KEY_UPDATE:
            self.fail(UNEXPECTED_MESSAGE)
        if self.handshake_size < KEY_UPDATE_SIZE:
            return 0
        if self.handshake[1] or self.handshake[2] or self.handshake[3] != 1:
            self.fail(DECODE_ERROR)
        if self.handshake[4] > 1:
            self.fail(ILLEGAL_PARAMETER)
        self.handshake_size = 0
        self.updates += 1
        if self.updates > UPDATES_FREE + self.received // RECORDS_FOR_UPDATE:
            self.fail(UNEXPECTED_MESSAGE)
        next_keys(self.cipher, self.digest, &self.incoming)
        self.opener = None
        if self.handshake[4]:
            self.must_update = True
        return 0

    cdef int keep_partial(self, const uint8_t* data, size_t size) except -1:
        cdef uint8_t* room = NULL
        if size:
            room = <uint8_t*>realloc(self.partial, size)
            if room == NULL:
                raise MemoryError(f"no memory for {size} bytes of a TLS record")
            memcpy(room, data, size)
        else:
            free(self.partial)
        self.partial = room
        self.partial_size = size
        return 0

    def fail(self, int alert):
        """Queues an alert for the peer, and raises TlsRecordError."""
        self.ended = True
        self.end_with(FATAL, <uint8_t>alert)
        raise TlsRecordError(ALERTS[alert])

    # --- out ------------------------------------------------------------------------------------------------------------------

    cdef ssize_t send(self, int fd, const iovec* parts, size_t count) noexcept:
        cdef size_t total = 0, done = 0, size, filled, i
        cdef int _
        cdef ssize_t sent, sealed
        if self.kept.pending():
            sent = send(fd, self.kept.data + self.kept.start, self.kept.pending(), MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent < 0:
                return -1
            self.kept.consume(<size_t>sent)
            if self.kept.pending():
                (&errno)[0] = EAGAIN
                return -1
        for i in range(count):
            total += parts[i].iov_len
        if self.closed:
            return <ssize_t>total          # nothing follows an alert of this end
        while done < total or self.must_update:
            filled = 0
            if self.must_update:
                sealed = self.seal_update(scratch)
                if sealed < 0:
                    return -1
                filled = <size_t>sealed
            for _ in range(SCRATCH_RECORDS):
                size = min(total - done, <size_t>self.longest)
                if not size:
                    break
                sealed = self.seal_record(scratch + filled, DATA, parts, done, size)
                if sealed < 0:
                    return -1
                filled += <size_t>sealed
                done += size
            sent = send(fd, scratch, filled, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent < 0:
                if errno != EAGAIN and errno != EINTR:
                    return -1
                sent = 0
            if <size_t>sent < filled:
                # A sealed record must be sent unchanged.
                if not self.keep(scratch + sent, filled - <size_t>sent):
                    return -1
                break
        return <ssize_t>done

    cdef ssize_t seal_record(self, uint8_t* target, uint8_t kind, const iovec* parts, size_t skip, size_t size) noexcept:
        """Seals `size` bytes that begin `skip` bytes into `parts`; returns the size of the record, or -1 with errno."""
        cdef uint8_t[NONCE_SIZE] nonce
        cdef uint8_t[KNOWN_MAX] known
        cdef uint8_t* body = target + HEADER_SIZE + self.before()
        cdef size_t length = self.before() + size + TAG_SIZE + (0 if self.older else 1)
        cdef size_t here, left = size
        cdef bint good
        (&errno)[0] = EIO
        if self.sealer is None and not self.make_sealer():
            (&errno)[0] = ENOMEM
            return -1
        target[0] = kind if self.older else DATA
        target[1] = target[2] = 3
        target[3] = <uint8_t>(length >> 8)
        target[4] = <uint8_t>(length & 0xFF)
        if self.before():
            put_number(target + HEADER_SIZE, self.outgoing.sequence)
        self.make_nonce(&self.outgoing, target + HEADER_SIZE, nonce)
        good = self.sealer.begin(nonce, known, self.make_known(&self.outgoing, target, size, known))
        while left and good:
            if skip >= parts.iov_len:
                skip -= parts.iov_len
                parts += 1
                continue
            here = min(parts.iov_len - skip, left)
            good = self.sealer.update(body, <const uint8_t*>parts.iov_base + skip, here)
            body += here
            left -= here
            skip += here
        if not self.older:
            good = good and self.sealer.update(body, &kind, 1)
            body += 1
        if not good or not self.sealer.seal(body):
            return -1
        self.outgoing.sequence += 1
        if self.outgoing.sequence >= REKEY_RECORDS and not self.older:
            self.must_update = True
        return <ssize_t>(HEADER_SIZE + length)

    cdef ssize_t seal_update(self, uint8_t* target) noexcept:
        """Seals a KeyUpdate, the last record of its key."""
        cdef uint8_t[KEY_UPDATE_SIZE] message
        cdef iovec part
        cdef ssize_t sealed
        message[0] = KEY_UPDATE
        message[1] = message[2] = message[4] = 0
        message[3] = 1
        part.iov_base = message
        part.iov_len = KEY_UPDATE_SIZE
        sealed = self.seal_record(target, HANDSHAKE, &part, 0, KEY_UPDATE_SIZE)
        if sealed < 0:
            return -1
        try:
            next_keys(self.cipher, self.digest, &self.outgoing)
        except MemoryError:
            (&errno)[0] = ENOMEM
            return -1
        self.sealer = None
        self.must_update = False
        return sealed

    cdef bint make_sealer(self) noexcept:
        try:
            self.sealer = make_aead(self.cipher, self.outgoing.key, True)
        except MemoryError:
            return False
        return True

    cdef bint keep(self, const uint8_t* data, size_t size) noexcept:
        try:
            self.kept.append(data, size)
        except MemoryError:
            (&errno)[0] = ENOMEM
            return False
        return True

    cdef int close(self) except -1:
        return self.end_with(WARNING, CLOSE_NOTIFY)

    cdef int end_with(self, uint8_t level, uint8_t alert) except -1:
        cdef uint8_t[2] message
        cdef uint8_t[2 + OVERHEAD_MAX] record
        cdef iovec part
        cdef ssize_t sealed
        if self.closed:
            return 0
        self.closed = True
        message[0] = level
        message[1] = alert
        part.iov_base = message
        part.iov_len = 2
        sealed = self.seal_record(record, ALERT, &part, 0, 2)
        if sealed > 0:
            self.kept.append(record, <size_t>sealed)
        return 0

    # --- what both directions share -------------------------------------------------------------------------------------------

    cdef void make_nonce(self, const Keys* keys, const uint8_t* explicit, uint8_t* nonce) noexcept:
        cdef uint8_t[8] number
        cdef int i
        memcpy(nonce, keys.iv, NONCE_SIZE)
        if self.before():
            memcpy(nonce + IMPLICIT_SIZE, explicit, EXPLICIT_SIZE)
            return
        put_number(number, keys.sequence)
        for i in range(8):
            nonce[NONCE_SIZE - 8 + i] ^= number[i]

    cdef size_t make_known(self, const Keys* keys, const uint8_t* header, size_t size, uint8_t* known) noexcept:
        """Writes the data that is authenticated beside `size` bytes of plaintext; returns its size in bytes.

        TLS 1.3: the header as it is on the wire (RFC 8446 §5.2). TLS 1.2: the counter, and the header with the length of the
        plaintext (RFC 5246 §6.2.3.3).
        """
        if not self.older:
            memcpy(known, header, HEADER_SIZE)
            return HEADER_SIZE
        put_number(known, keys.sequence)
        memcpy(known + 8, header, 3)
        known[11] = <uint8_t>(size >> 8)
        known[12] = <uint8_t>(size & 0xFF)
        return KNOWN_MAX

    # --- where they come from, and where they go ------------------------------------------------------------------------------

    @staticmethod
    def after_handshake(str suite, bytes peer_secret not None, bytes own_secret not None, uint64_t sent):
        """Makes the records of TLS 1.3 from the application traffic secrets of both ends; None if the suite is not supported.

        `sent`: records that this end has made with its secret already (tickets).
        """
        cdef Records records = Records.__new__(Records)
        if not loaded_for(SUITES, suite, records) or len(peer_secret) != len(own_secret) or <size_t>len(own_secret) != digest_size(records.digest):
            return None
        memcpy(records.incoming.secret, PyBytes_AS_STRING(peer_secret), PyBytes_GET_SIZE(peer_secret))
        memcpy(records.outgoing.secret, PyBytes_AS_STRING(own_secret), PyBytes_GET_SIZE(own_secret))
        derive(records.cipher, records.digest, &records.incoming)
        derive(records.cipher, records.digest, &records.outgoing)
        records.outgoing.sequence = sent
        return records

    @staticmethod
    def after_older_handshake(str suite, bytes master not None, bytes client_random not None, bytes server_random not None, bint server):
        """Makes the records of TLS 1.2 from the master secret; None if the suite is not supported.

        `server`: this end is the server.
        """
        cdef Records records = Records.__new__(Records)
        cdef Keys* client
        cdef Keys* server_keys
        cdef const uint8_t* at
        cdef size_t key, iv
        ends = next((end for end in OLDER_ENDS if suite.endswith(end)), "")
        if not loaded_for(OLDER_ENDS, ends, records):
            return None
        records.older = True
        key = key_size(records.cipher)
        iv = NONCE_SIZE if records.cipher == CHACHA20_POLY1305 else IMPLICIT_SIZE
        block = expand_older(records.digest, master, b"key expansion" + server_random + client_random, 2 * (key + iv))
        at = <const uint8_t*>PyBytes_AS_STRING(block)
        if server:
            client = &records.incoming
            server_keys = &records.outgoing
        else:
            client = &records.outgoing
            server_keys = &records.incoming
        memcpy(client.key, at, key)
        memcpy(server_keys.key, at + key, key)
        memcpy(client.iv, at + 2 * key, iv)
        memcpy(server_keys.iv, at + 2 * key + iv, iv)
        # Finished of each end is the first record with its key.
        records.incoming.sequence = records.outgoing.sequence = 1
        return records

    def send_at_most(self, uint32_t longest) -> None:
        """Limits the plaintext of each record that is sent, bytes: 512, 1024, 2048 or 4096, as negotiated (RFC 6066 §4)."""
        if not 0 < longest <= PLAIN_MAX:
            raise ValueError(f"longest: must be 1 to {PLAIN_MAX} bytes, got {longest}")
        self.longest = longest

    def pack(self) -> bytes:
        """Returns the state for `unpack` in another process. No record may be kept, and this end must not be used afterwards."""
        cdef Packed packed
        packed.cipher = self.cipher
        packed.digest = self.digest
        packed.older = self.older
        packed.incoming = self.incoming
        packed.outgoing = self.outgoing
        packed.longest = <uint16_t>self.longest
        return PyBytes_FromStringAndSize(<char*>&packed, sizeof(packed)) + self.cut_short()

    @staticmethod
    def unpack(bytes state not None) -> Records:
        cdef Records records = Records.__new__(Records)
        cdef const Packed* packed = <const Packed*>PyBytes_AS_STRING(state)
        cdef size_t size = PyBytes_GET_SIZE(state)
        if (size < sizeof(Packed) or size > sizeof(Packed) + RECORD_MAX or packed.cipher >= CIPHERS or packed.digest >= DIGESTS
                or not 0 < packed.longest <= PLAIN_MAX or not available()):
            raise ValueError("not the state of a TLS connection")
        records.cipher = packed.cipher
        records.digest = packed.digest
        records.older = packed.older
        records.incoming = packed.incoming
        records.outgoing = packed.outgoing
        records.longest = packed.longest
        records.keep_partial(<const uint8_t*>packed + sizeof(Packed), size - sizeof(Packed))
        return records

    def image(self) -> list:
        """Returns the whole state for `from_image` in another process, at any moment. This end must not be used afterwards."""
        return [
            self.pack(), bytes(self.kept), self.handshake[:self.handshake_size], self.ended, self.closed, self.must_update, self.updates,
            self.received,
        ]

    @staticmethod
    def from_image(list image not None) -> Records:
        """Raises ValueError, TypeError."""
        cdef Records records
        packed, kept, handshake, ended, closed, must_update, updates, received = image
        if len(handshake) >= KEY_UPDATE_SIZE:
            raise ValueError("not the state of a TLS connection")
        records = Records.unpack(packed)
        if kept:
            records.kept.append(PyBytes_AS_STRING(kept), PyBytes_GET_SIZE(kept))
        memcpy(records.handshake, PyBytes_AS_STRING(handshake), PyBytes_GET_SIZE(handshake))
        records.handshake_size = <uint8_t>PyBytes_GET_SIZE(handshake)
        records.ended, records.closed, records.must_update = ended, closed, must_update
        records.updates, records.received = updates, received
        return records

    # --- slow-path forms ------------------------------------------------------------------------------------------------------

    def cut_short(self) -> bytes:
        """Returns the received part of an incomplete record."""
        return PyBytes_FromStringAndSize(<char*>self.partial, self.partial_size)

    def decode(self, bytes data not None) -> bytes:
        """Returns the plaintext of the bytes that the peer sent next. Raises TlsRecordError."""
        cdef bytearray own = bytearray(self.cut_short() + data)
        cdef ssize_t plain = self.receive(<uint8_t*>own, len(own))
        return bytes(own[:plain])

    def encode(self, bytes data not None) -> None:
        """Seals data; the records wait for take_output()."""
        cdef uint8_t* source = <uint8_t*>PyBytes_AS_STRING(data)
        cdef size_t at
        cdef iovec part
        part.iov_base = source
        part.iov_len = PyBytes_GET_SIZE(data)
        if self.must_update:
            self.put_scratch(self.seal_update(scratch))
        for at in range(0, part.iov_len, self.longest):
            self.put_scratch(self.seal_record(scratch, DATA, &part, at, min(part.iov_len - at, <size_t>self.longest)))

    cdef int put_scratch(self, ssize_t size) except -1:
        if size < 0:
            raise MemoryError("a record of TLS")
        return self.kept.append(scratch, <size_t>size)

    def take_output(self) -> bytes:
        """Returns the records that wait to be sent."""
        cdef bytes output
        if self.must_update and not self.closed:
            self.put_scratch(self.seal_update(scratch))
        output = bytes(self.kept)
        self.kept.clear()
        return output


cdef bint loaded_for(dict suites, str name, Records records) except -1:
    if not available() or name not in suites:
        return False
    records.cipher, records.digest = suites[name]
    return True


cdef void put_number(uint8_t* target, uint64_t number) noexcept:
    cdef int i
    for i in range(8):
        target[i] = <uint8_t>((number >> (56 - 8 * i)) & 0xFF)


cdef int expand(int digest, const uint8_t* secret, bytes label, uint8_t* target, size_t size) except -1:
    """Computes HKDF-Expand-Label of RFC 8446 §7.1 with an empty context. All outputs needed here fit into one block of the hash."""
    cdef uint8_t[LABEL_MAX] info
    cdef uint8_t[DIGEST_MAX] block
    cdef bytes whole = b"tls13 " + label
    cdef size_t length = PyBytes_GET_SIZE(whole)
    info[0] = 0
    info[1] = <uint8_t>size
    info[2] = <uint8_t>length
    memcpy(info + 3, PyBytes_AS_STRING(whole), length)
    info[3 + length] = 0
    info[4 + length] = 1                   # the first block
    hmac(digest, secret, digest_size(digest), info, 5 + length, block)
    memcpy(target, block, size)
    return 0


cdef int derive(int cipher, int digest, Keys* keys) except -1:
    """Derives key and IV from the secret, RFC 8446 §7.3."""
    expand(digest, keys.secret, b"key", keys.key, key_size(cipher))
    expand(digest, keys.secret, b"iv", keys.iv, NONCE_SIZE)
    keys.sequence = 0
    return 0


cdef int next_keys(int cipher, int digest, Keys* keys) except -1:
    """Replaces the secret and the keys by the next ones, RFC 8446 §7.2."""
    cdef uint8_t[DIGEST_MAX] secret
    expand(digest, keys.secret, b"traffic upd", secret, digest_size(digest))
    memcpy(keys.secret, secret, digest_size(digest))
    return derive(cipher, digest, keys)


cdef bytes expand_older(int digest, bytes secret, bytes seed, size_t size):
    """Computes the PRF of TLS 1.2, RFC 5246 §5; `seed` begins with the label."""
    cdef bytes a = seed, output = b""
    while <size_t>len(output) < size:
        a = hmac_of(digest, secret, a)
        output += hmac_of(digest, secret, a + seed)
    return output[:size]


cdef bytes hmac_of(int digest, bytes key, bytes data):
    cdef uint8_t[DIGEST_MAX] out
    hmac(digest, <const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key),
         <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), out)
    return out[:digest_size(digest)]
