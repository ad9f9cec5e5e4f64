"""Layers of a connection before its first MQTT byte: PROXY header, TLS handshake, WebSocket upgrade. Bytes in, bytes out.

    socket -> [ PROXY header ] -> [ TLS ] -> [ HTTP upgrade, frames ] -> the start of a CONNECT, for `peek`

One Opening serves one connection of a listener that has any of these layers; a plain TCP connection has no Opening. It ends with
the hand-over. The worker receives the frames of a WebSocket unparsed, since it decodes frames itself, and of TLS the keys. With a
cipher that only OpenSSL speaks, TLS stays in this process, and a Pump carries the plaintext.
"""

import ssl
from collections.abc import Callable
from typing import Any

from acceptor.proxy import parse_proxy_header
from acceptor.refusal import Refused
from acceptor.secrets import KeyLog, Secrets
from acceptor.tls import certificate_names
from acceptor.upgrade import Upgrade
from shardbroker.transport.tls import Records, TlsRecordError
from shardbroker.transport.websocket import Framing, WebSocketError
from shm.counters import Counter

__all__ = ["PROXY", "READY", "TLS", "UPGRADE", "Opening"]

PROXY, TLS, UPGRADE, READY = range(4)
"""The layer that the next bytes belong to; READY: MQTT."""

PLAIN_MAX = 16384
"""Plaintext of one TLS record, bytes: RFC 8446 §5.1."""


class Opening:
    """`listener`: `shardbroker.config.listeners.Listener`; `context` returns the current TLS context, which writes to `keylog`."""

    def __init__(self, listener: Any, context: Callable[[], ssl.SSLContext] | None, keylog: KeyLog) -> None:
        self._listener = listener
        self._context = context
        self._header = bytearray()
        self._upgrade: Upgrade | None = None
        self._framing: Framing | None = None
        self._output: list[bytes] = []
        self.layer = READY
        self.peer = ""
        """Client address of the PROXY header, "address:port"; empty without one."""
        self.common_name = self.distinguished_name = ""
        self.tls: ssl.SSLObject | None = None
        """Set during the handshake, and longer where `records` cannot replace it."""
        self.records: Records | None = None
        self._secrets = Secrets(keylog)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.mqtt = bytearray()
        """MQTT bytes so far."""
        self.frames = bytearray()
        """The same bytes in their frames, for the worker."""
        self._next_layer(-1)

    @property
    def for_worker(self) -> bytes:
        """Returns the bytes that the worker begins with."""
        return bytes(self.mqtt if self._framing is None else self.frames)

    @property
    def kept(self) -> int:
        """Returns the bytes held for this connection, less those in OpenSSL."""
        return (
            len(self.mqtt) + len(self.frames) + len(self._header) + (self.records.partial_size if self.records is not None else 0)
        )

    def receive(self, data: bytes) -> None:
        """Processes bytes from the socket; take_output() has the response. Raises Refused."""
        if self.layer == PROXY:
            data = self._take_proxy(data)
            if self.layer == PROXY or not data:
                return
        if self._context is None:
            self._above_tls(data)
        elif self.records is None:
            self._through_tls(data)
        else:
            self._through_records(data)

    def take_output(self) -> bytes:
        """Returns and removes the bytes to send."""
        self._flush_tls()
        output = b"".join(self._output)
        self._output.clear()
        return output

    def extra(self) -> dict[str, Any]:
        """Returns the facts for the worker that plain connections do not have."""
        extra: dict[str, Any] = {}
        if self.records is not None:
            extra["tls"] = self.records.pack()
        if self._framing is not None:
            extra["websocket"] = self._listener.websocket.max_frame_size
        if self.common_name:
            extra["cn"] = self.common_name
        if self.distinguished_name:
            extra["dn"] = self.distinguished_name
        names = {"cn": self.common_name, "dn": self.distinguished_name}
        for key, setting in (
            ("username", self._listener.peer_cert_as_username),
            ("client_id", self._listener.peer_cert_as_clientid),
        ):
            if setting != "disabled":
                extra[key] = names[setting].encode()  # empty: there is no such name, and the worker refuses the connection
        return extra

    # --- the layers, from the socket up -------------------------------------------------------------------------------------

    def _next_layer(self, done: int) -> None:
        if done < PROXY and self._listener.proxy_protocol:
            self.layer = PROXY
        elif done < TLS and self._context is not None:
            self.layer = TLS
        elif done < UPGRADE and self._listener.over_websocket:
            self.layer = UPGRADE
            self._upgrade = Upgrade(self._listener.websocket)
        else:
            self.layer = READY

    def _take_proxy(self, data: bytes) -> bytes:
        self._header += data
        header = parse_proxy_header(bytes(self._header))
        if header is None:
            return b""
        rest = bytes(self._header[header.size :])
        self._header.clear()
        self.peer = header.peer
        self.common_name = header.common_name
        self._next_layer(PROXY)
        return rest

    def _through_tls(self, data: bytes) -> None:
        if self.tls is None:  # made with the first bytes: a silent client costs nothing
            assert self._context is not None
            self.tls = self._context().wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.incoming.write(data)
        try:
            if self.layer == TLS:
                self._secrets.note_input(data)
                self._shake_hands()
                if self.records is not None:
                    self._through_records(self.incoming.read())
                    return
            while self.incoming.pending or self.tls.pending():
                plain = self.tls.read(PLAIN_MAX)
                if not plain:
                    if not self.mqtt:
                        raise Refused("closed by the peer", Counter.CLIENT_CLOSED_RESET, "tls")
                    break  # a client that does not read the answer: its last bytes count, and the end of its socket follows
                self._above_tls(plain)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise Refused(_tls_words(error), Counter.CLIENT_CLOSED_TLS, "tls") from None

    def _shake_hands(self) -> None:
        """Performs one step of the handshake. Raises ssl.SSLError, SSLWantReadError among them."""
        assert self.tls is not None
        output = b""
        try:
            self._secrets.step(self.tls)
        finally:
            output = self.outgoing.read()
            self._secrets.note_output(output)
            self._output.append(output)
        self._note_certificate()
        self._next_layer(TLS)
        self.records = self._secrets.records(self.tls, output)
        if self.records is not None:
            self.tls = None

    def _through_records(self, data: bytes) -> None:
        assert self.records is not None
        try:
            plain = self.records.decode(data)
        except TlsRecordError as error:
            raise Refused(str(error), Counter.CLIENT_CLOSED_TLS, "tls") from None
        if plain:
            self._above_tls(plain)
        if self.records.ended and not self.mqtt:  # bytes before the end of TLS count, and the end of the socket follows
            raise Refused("closed by the peer", Counter.CLIENT_CLOSED_RESET, "tls")

    def _note_certificate(self) -> None:
        assert self.tls is not None
        common, distinguished = certificate_names(self.tls.getpeercert())
        if distinguished:
            self.common_name, self.distinguished_name = common, distinguished

    def _above_tls(self, data: bytes) -> None:
        if self._upgrade is not None:
            done = self._upgrade.receive(data)
            if done is None:
                return
            self._upgrade = None
            self._framing = Framing(self._listener.websocket.max_frame_size)
            self._next_layer(UPGRADE)
            answer, data = done
            self._send(answer)
        if self._framing is None:
            self.mqtt += data
            return
        self.frames += data
        try:
            self.mqtt += self._framing.decode(data)
        except WebSocketError as error:
            answer = self._framing.close_frame(error.code)
            raise Refused(f"{error} ({error.code})", Counter.CLIENT_CLOSED_WEBSOCKET, "websocket", answer) from None
        if self._framing.close_code:
            answer = self._framing.close_frame(self._framing.close_code)
            raise Refused("closed by the peer", Counter.CLIENT_CLOSED_RESET, "websocket", answer)

    def _send(self, data: bytes) -> None:
        if self.records is not None:
            self.records.encode(data)
        elif self.tls is not None:
            self.tls.write(data)
        else:
            self._output.append(data)

    def _flush_tls(self) -> None:
        if self.records is not None:
            self._output.append(self.records.take_output())
        elif self.tls is not None:
            self._output.append(self.outgoing.read())

    def wrap(self, mqtt: bytes) -> bytes:
        """Returns MQTT bytes wrapped in the layers of this connection."""
        self._send(mqtt if self._framing is None else self._framing.frame(mqtt))
        return self.take_output()

    def last_words(self, refused: Refused) -> bytes:
        """Returns the last bytes for the peer: an alert, an HTTP answer, a Close frame."""
        if refused.answer:
            try:
                self._send(refused.answer)
            except ssl.SSLError:
                pass  # TLS is what went wrong
        return self.take_output()


def _tls_words(error: ssl.SSLError) -> str:
    text = str(error.reason or error).replace("_", " ").lower()
    verify = getattr(error, "verify_message", None)
    return f"{text}: {verify}" if verify else text
