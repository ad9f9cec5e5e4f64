"""A raw MQTT client on a blocking socket: sends what it is told, right or wrong, and reports what comes."""

import contextlib
import itertools
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tests.harness import wire
from tests.harness.wire import Connack, Disconnect, Packet, Pingresp, Publish, Suback, Unsuback, Will

TIMEOUT_S = 5.0
"""How long a packet that has to come may take: long enough for a busy CI machine, short enough to notice."""
QUIET_S = 0.3
"""How long `expect_none` listens, where no fence can prove that nothing comes."""

P = TypeVar("P", bound=Packet)
Address = tuple[str, int]

_fences = itertools.count(1)


class Closed(AssertionError):
    """The broker closed the connection where a packet was expected."""


class Client:
    """One connection to a broker.

    Packets come out of `recv` in the order of arrival. While a method waits for an answer (SUBACK, PUBACK,
    PINGRESP, ...) other packets are put aside, still in order, for the next `recv`.

    With `auto_ack` (the default) PUBLISH packets are acknowledged as they are taken off the socket, and the
    PUBREL of a QoS 2 delivery is answered and not reported. Without it every packet is reported as it is.
    `dial` makes the socket, or what acts as one, where it is no plain TCP connection.
    """

    def __init__(
        self,
        address: Address,
        version: int = 5,
        client_id: str = "",
        *,
        clean: bool = True,
        keepalive: int = 60,
        will: Will | None = None,
        username: str | None = None,
        password: str | None = None,
        properties: wire.PropertiesLike = None,
        connect: bool = True,
        auto_ack: bool = True,
        timeout: float = TIMEOUT_S,
        dial: Callable[[], Any] | None = None,
    ) -> None:
        self.address = address
        self.version = version
        self.client_id = client_id
        self.auto_ack = auto_ack
        self.timeout = timeout
        self.connack: Connack | None = None
        self._connect_packet = wire.connect(
            client_id,
            version,
            clean=clean,
            keepalive=keepalive,
            will=will,
            username=username,
            password=password,
            properties=properties,
        )
        self._received = bytearray()
        self._inbox: deque[Packet] = deque()
        self._packet_ids = itertools.cycle(range(1, 65536))
        self._ended = False
        self._fence_topic = ""
        self.socket = socket.create_connection(address, timeout) if dial is None else dial()
        if self.socket.family != socket.AF_UNIX:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if connect:
            try:
                self.connect()
            except BaseException:
                self.socket.close()
                raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- bytes ---

    def send_raw(self, data: bytes) -> None:
        """Sends bytes; a connection that the broker has already closed is found out by the next read."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self._ended = True

    def _read(self, deadline: float) -> Packet | None:
        """Next packet off the socket, acknowledged if asked for; None at the deadline; Closed at the end."""
        while True:
            found = wire.parse(bytes(self._received), self.version)
            if found:
                del self._received[: found[1]]
                return found[0]
            left = deadline - time.monotonic()
            self.socket.settimeout(max(left, 0.001))
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                return None
            except ConnectionError:
                data = b""
            if not data:
                self._ended = True
                rest = f" within a packet: {self._received.hex(' ')}" if self._received else ""
                raise Closed(f"{self.client_id!r}: connection closed by the broker{rest}")
            self._received += data

    def _next(self, deadline: float) -> Packet | None:
        """Like _read, with acknowledgements done."""
        while True:
            packet = self._read(deadline)
            if packet is None or not self.auto_ack:
                return packet
            if isinstance(packet, wire.Pubrel):
                self.send_raw(wire.pubcomp(packet.packet_id))
                continue
            if isinstance(packet, Publish) and packet.packet_id is not None:
                kind = wire.PUBACK if packet.qos == 1 else wire.PUBREC
                self.send_raw(wire.ack(kind, packet.packet_id))
            return packet

    # --- receiving ---

    def recv(self, timeout: float | None = None) -> Packet | None:
        """The next packet, or None if none comes in time. Raises Closed at the end of the connection."""
        if self._inbox:
            return self._inbox.popleft()
        return self._next(time.monotonic() + (self.timeout if timeout is None else timeout))

    def expect(self, kind: type[P], timeout: float | None = None, **fields: Any) -> P:
        """The next packet, which has to be of this type and to have these fields."""
        packet = self.recv(timeout)
        assert isinstance(packet, kind), f"{self.client_id!r}: expected {kind.__name__} {fields}, got {packet}"
        for name, value in fields.items():
            got = getattr(packet, name)
            assert got == value, f"{self.client_id!r}: {name} is {got!r}, expected {value!r} in {packet}"
        return packet

    def expect_messages(self, *payloads: bytes, timeout: float | None = None) -> list[Publish]:
        """Takes one PUBLISH per payload, in any order, and returns them in the order of arrival."""
        got = [self.expect(Publish, timeout) for _ in payloads]
        assert sorted(one.payload for one in got) == sorted(payloads)
        return got

    def expect_none(self, seconds: float = QUIET_S) -> None:
        """Nothing comes for so long. `fence(publisher)` is faster and surer where there is a publisher."""
        packet = self.recv(seconds)
        assert packet is None, f"{self.client_id!r}: expected nothing, got {packet}"

    def expect_close(self, timeout: float | None = None, ignore: tuple[type[Packet], ...] = ()) -> Disconnect | None:
        """The broker closes the connection; returns the DISCONNECT that came before, if one did.

        Anything else that comes fails the test, except packets of the types in `ignore`.
        """
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        last: Disconnect | None = None
        try:
            while True:
                packet = self._inbox.popleft() if self._inbox else self._next(deadline)
                assert packet is not None, f"{self.client_id!r}: the connection is still open"
                if isinstance(packet, ignore):
                    continue
                assert last is None, f"{self.client_id!r}: {packet} after DISCONNECT"
                assert isinstance(packet, Disconnect), f"{self.client_id!r}: expected the end, got {packet}"
                last = packet
        except Closed:
            assert not self._received, f"half a packet before the end: {self._received.hex(' ')}"
            return last
        finally:
            self.close()

    def _wait(self, wanted: Callable[[Packet], bool], what: str) -> Packet:
        """The first packet that is wanted; those before it stay in the inbox."""
        for index, packet in enumerate(self._inbox):
            if wanted(packet):
                del self._inbox[index]
                return packet
        deadline = time.monotonic() + self.timeout
        while True:
            got = self._next(deadline)
            assert got is not None, f"{self.client_id!r}: no {what} came; inbox: {list(self._inbox)}"
            if wanted(got):
                return got
            self._inbox.append(got)

    def _wait_ack(self, kind: type[P], packet_id: int) -> P:
        found = self._wait(lambda p: isinstance(p, kind) and p.packet_id == packet_id, kind.__name__)  # type: ignore[attr-defined]
        assert isinstance(found, kind)
        return found

    # --- sending ---

    def connect(self, expect_code: int | None = 0) -> Connack:
        """Sends CONNECT and takes the CONNACK, which must come first; `expect_code` None accepts any code."""
        self.send_raw(self._connect_packet)
        self.connack = self.expect(Connack)
        if expect_code is not None:
            assert self.connack.code == expect_code, f"{self.client_id!r}: {self.connack}"
        assigned = self.connack.properties.get("assigned_client_identifier")
        self.client_id = self.client_id or assigned or ""
        return self.connack

    def next_id(self) -> int:
        return next(self._packet_ids)

    def subscribe(
        self,
        topic_filter: str | Iterable[tuple[str, int]],
        qos: int = 0,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        properties: wire.PropertiesLike = None,
        packet_id: int | None = None,
        check: bool = True,
    ) -> Suback:
        """Subscribes to a filter, or to a list of (filter, options byte), and returns the SUBACK.

        With `check` every filter must have been granted.
        """
        if isinstance(topic_filter, str):
            bits = wire.options(qos, no_local, retain_as_published, retain_handling)
            filters = [(topic_filter, bits)]
        else:
            filters = list(topic_filter)
        packet_id = packet_id or self.next_id()
        self.send_raw(wire.subscribe(packet_id, filters, version=self.version, properties=properties))
        suback = self._wait_ack(Suback, packet_id)
        assert len(suback.codes) == len(filters)
        assert not check or max(suback.codes) <= 2, f"refused: {suback}"
        return suback

    def unsubscribe(self, *filters: str, packet_id: int | None = None, properties: wire.PropertiesLike = None) -> Unsuback:
        packet_id = packet_id or self.next_id()
        self.send_raw(wire.unsubscribe(packet_id, filters, version=self.version, properties=properties))
        return self._wait_ack(Unsuback, packet_id)

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: wire.PropertiesLike = None,
        packet_id: int | None = None,
        dup: bool = False,
        wait: bool = True,
    ) -> wire.Ack | None:
        """Publishes; with `wait` goes through the whole QoS 1 or 2 exchange and returns the last ack.

        A PUBREC with an error code ends the exchange and is returned. Without `wait` only PUBLISH is sent.
        """
        if qos and packet_id is None:
            packet_id = self.next_id()
        raw = payload.encode() if isinstance(payload, str) else payload
        self.send_raw(
            wire.publish(
                topic,
                raw,
                version=self.version,
                qos=qos,
                retain=retain,
                dup=dup,
                packet_id=packet_id,
                properties=properties,
            )
        )
        if not wait or not qos or packet_id is None:
            return None
        if qos == 1:
            return self._wait_ack(wire.Puback, packet_id)
        received = self._wait_ack(wire.Pubrec, packet_id)
        return received if received.code >= 0x80 else self.release(packet_id)

    def release(self, packet_id: int) -> wire.Pubcomp:
        """Sends PUBREL and returns the PUBCOMP."""
        self.send_raw(wire.pubrel(packet_id))
        return self._wait_ack(wire.Pubcomp, packet_id)

    def ack(self, message: Publish) -> None:
        """First acknowledgement of a delivery by its QoS: PUBACK or PUBREC (for auto_ack=False)."""
        assert message.packet_id is not None
        self.send_raw(wire.ack(wire.PUBACK if message.qos == 1 else wire.PUBREC, message.packet_id))

    def ping(self) -> None:
        """PINGREQ and PINGRESP: whatever this connection sent before has been handled."""
        self.send_raw(wire.pingreq())
        self._wait(lambda p: isinstance(p, Pingresp), "PINGRESP")

    def fence(self, publisher: "Client | None" = None, qos: int = 0) -> None:
        """Orders things without sleeping. What came in the meantime waits in the inbox.

        Without `publisher`: a ping. With it: a marker message goes from the publisher to this client on the
        path of its other messages, so what it published before at this QoS has arrived, if it was ever to
        (MQTT 5.0 §4.6). This client stays subscribed to the marker's topic.
        """
        if publisher is None:
            self.ping()
            return
        if not self._fence_topic:
            self._fence_topic = f"fence/{id(self):x}/{time.monotonic_ns():x}"
            self.subscribe(self._fence_topic, 2)
        mark = str(next(_fences)).encode()
        publisher.publish(self._fence_topic, mark, qos, wait=publisher is not self)

        def is_mark(packet: Packet) -> bool:
            return isinstance(packet, Publish) and (packet.topic, packet.payload) == (self._fence_topic, mark)

        self._wait(is_mark, "fence marker")

    def messages_from(self, publisher: "Client", qos: int = 0) -> list[Publish]:
        """All messages that came, once this publisher's earlier ones have arrived (see `fence`)."""
        self.fence(publisher, qos)
        found = list(self._inbox)
        self._inbox.clear()
        assert all(isinstance(one, Publish) for one in found), f"{self.client_id!r}: got {found}"
        return [one for one in found if isinstance(one, Publish)]

    def expect_nothing_from(self, publisher: "Client", qos: int = 0) -> None:
        """Nothing that the publisher sent before is on its way here, and nothing is in the inbox."""
        self.fence(publisher, qos)
        assert not self._inbox, f"{self.client_id!r}: expected nothing, got {list(self._inbox)}"

    # --- ends ---

    def disconnect(self, code: int | None = None, properties: wire.PropertiesLike = None) -> None:
        """DISCONNECT, then waits until the broker has closed: it has then finished with this connection."""
        self.send_raw(wire.disconnect(version=self.version, code=code, properties=properties))
        self._drain()

    def _drain(self) -> None:
        deadline = time.monotonic() + self.timeout
        try:
            self.socket.shutdown(socket.SHUT_WR)
            while not self._ended:
                self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
                self._ended = not self.socket.recv(65536)
        except OSError:
            pass
        self.close()

    def drop(self) -> None:
        """Ends the connection without DISCONNECT, by FIN, and waits until the broker has closed its side."""
        self._drain()

    def cut(self) -> None:
        """Aborts the connection without DISCONNECT: a reset, as when a machine is gone."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Closes the socket; says nothing to the broker. May be called twice."""
        self._ended = True
        self.socket.close()
