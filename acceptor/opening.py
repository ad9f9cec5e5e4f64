"""What a connection goes through before its first MQTT byte: PROXY header, TLS handshake, WebSocket upgrade. Bytes in, bytes out.

    socket -> [ PROXY header ] -> [ TLS ] -> [ HTTP upgrade, frames ] -> the start of a CONNECT, for `peek`

One Opening serves one connection of a listener that has any of these layers; a plain TCP connection has none. It ends with the
hand-over: what the worker gets of a WebSocket are the frames as they came, since the worker takes them apart itself.
"""

import ssl
from collections.abc import Callable
from typing import Any

from shardbroker.mqtt.websocket import Framing, WebSocketError
from shm.counters import Counter

from acceptor.proxy import parse_proxy_header
from acceptor.refusal import Refused
from acceptor.tls import certificate_names
from acceptor.upgrade import Upgrade

__all__ = ["PROXY", "READY", "TLS", "UPGRADE", "Opening"]

PROXY, TLS, UPGRADE, READY = range(4)
"""The layer whose bytes come next; READY: MQTT."""

PLAIN_MAX = 16384
"""Plaintext of one TLS record, bytes: RFC 8446 §5.1."""


class Opening:
    """`listener`: `shardbroker.config.listeners.Listener`; `context`: makes the TLS context that is valid now."""

    def __init__(self, listener: Any, context: Callable[[], ssl.SSLContext] | None) -> None:
        self._listener = listener
        self._context = context
        self._header = bytearray()
        self._upgrade: Upgrade | None = None
        self._framing: Framing | None = None
        self._output: list[bytes] = []
        self.layer = READY
        self.peer = ""
        """Of the PROXY header, "address:port"; empty if there was none in it."""
        self.common_name = self.distinguished_name = ""
        self.tls: ssl.SSLObject | None = None
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.mqtt = bytearray()
        """MQTT bytes so far."""
        self.frames = bytearray()
        """What the worker gets in their place, if they came in frames."""
        self._next_layer(-1)

    @property
    def for_worker(self) -> bytes:
        """The bytes that the worker begins with."""
        return bytes(self.mqtt if self._framing is None else self.frames)

    @property
    def kept(self) -> int:
        """Bytes held for this connection, less those in OpenSSL."""
        return len(self.mqtt) + len(self.frames) + len(self._header)

    def receive(self, data: bytes) -> None:
        """Bytes from the socket. What is to be sent is in take_output(). Raises Refused."""
        if self.layer == PROXY:
            data = self._take_proxy(data)
            if self.layer == PROXY or not data:
                return
        if self._context is None:
            self._above_tls(data)
        else:
            self._through_tls(data)

    def take_output(self) -> bytes:
        """What is to be sent now."""
        if self.tls is not None:
            self._flush_tls()
        output = b"".join(self._output)
        self._output.clear()
        return output

    def extra(self) -> dict[str, Any]:
        """What the worker must know that plain connections do not have."""
        extra: dict[str, Any] = {}
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
            if names.get(setting):
                extra[key] = names[setting].encode()
        return extra

    # --- the layers, from the socket up -------------------------------------------------------------------------------------

    def _next_layer(self, done: int) -> None:
        has = {
            PROXY: self._listener.proxy_protocol,
            TLS: self._context is not None,
            UPGRADE: self._listener.over_websocket,
            READY: True,
        }
        self.layer = next(layer for layer in (PROXY, TLS, UPGRADE, READY) if layer > done and has[layer])
        if self.layer == UPGRADE:
            self._upgrade = Upgrade(self._listener.websocket)

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
        if self.tls is None:  # made with the first bytes: who says nothing costs nothing
            assert self._context is not None
            self.tls = self._context().wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.incoming.write(data)
        try:
            if self.layer == TLS:
                self.tls.do_handshake()
                self._note_certificate()
                self._next_layer(TLS)
            while self.incoming.pending or self.tls.pending():
                plain = self.tls.read(PLAIN_MAX)
                if not plain:
                    raise Refused("closed by the peer", Counter.CLIENT_CLOSED_RESET, "tls")
                self._above_tls(plain)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise Refused(_tls_words(error), Counter.CLIENT_CLOSED_TLS, "tls") from None

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
        if self.tls is None:
            self._output.append(data)
        else:
            self.tls.write(data)

    def _flush_tls(self) -> None:
        output = self.outgoing.read()
        if output:
            self._output.append(output)

    def wrap(self, mqtt: bytes) -> bytes:
        """MQTT bytes as they go over this connection's wire."""
        self._send(mqtt if self._framing is None else self._framing.frame(mqtt))
        return self.take_output()

    def last_words(self, refused: Refused) -> bytes:
        """What is to be sent before the connection is closed: an alert, an HTTP answer, a Close frame."""
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
