"""The processes link-1 and above: they drive `shardbroker.cluster.data` with sockets, rings, the spool and the clock.

    pass   wait -> frames into rings of workers -> commit -> positions and ranges of rings to peers -> sockets

Everything that has to outlive the process is in shared memory or in the spool, so it may be killed at any time. The view comes from
link-0 (shm/view.pxd), which also hands over accepted connections.
"""

import errno
import os
import secrets
import select
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Any

from shardbroker.cluster.data import DataChannel
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import Identity
from shardbroker.cluster.messages import FRAME_BYTES_MAX, Bye, Data, Hello
from shardbroker.cluster.outbound import Level, Outbound, OutboundSettings
from shardbroker.cluster.outputs import Close, Dial, Output, Refused, Send
from shardbroker.cluster.view import LinkState
from shardbroker.config.listeners import parse_address
from shardbroker.link.distribution import BODY_MAX, Contents, Distribution
from shardbroker.link.frames import FrameType, preface
from shardbroker.link.identity import CookieError, own_identity, read_cookie
from shardbroker.link.lanes import PeerInbox
from shardbroker.link.sockets import check_certificate, prepare, take_sockets, tls_contexts
from shardbroker.link.spool import DiskSpool, SyncThread, spooled_nodes
from shardbroker.link.streams import decode_message, encode_message
from shardbroker.link.wire import Wire
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import Line, log_line, of_process
from shardbroker.stores.link_reports import ERROR_MAX, REPORT_MS, write_report
from shm.counters import Counters, ProcessState
from shm.epochs import Epochs
from shm.ring import Inbox
from shm.roles import LINK, Place
from shm.routes import RouteTable
from shm.spill import spill_path
from shm.topology import PEER_INBOX, Topology
from shm.view import ViewSegment

__all__ = ["DataProcess", "Setup", "run"]

TICK_MS, IDLE_TICK_MS = 50, 100
"""Interval of what is due by the clock, and the same if nothing has happened since the last tick."""
PENDING_MAX = 256 << 10
"""Bytes that wait in a connection above which no more ranges are taken from the rings."""
MORE_BYTES = 128 << 10
"""After a range of so many bytes its ring probably has more: no wait before the next pass."""
READS_A_PASS = 4
"""Reads of 256 KB from one connection before the others get their turn."""
FRAMES_A_PASS = 64
"""Frames taken from one connection before the others get their turn."""
DRAIN_MS = 2_000
"""How long a process that ends sends what peers still take; the rest goes to the spool."""
REPEAT_MS = 60_000
"""Interval between two log lines of the same kind about one address."""


@dataclass
class Setup:
    """What a data process is made of."""

    me: Identity
    cookie: bytes
    channel: int
    """Number of the process."""
    level: Level
    distribution: Distribution
    bell: int
    """Own doorbell."""
    doorbells: tuple[int, ...]
    """Of the workers."""
    inbox_of: Callable[[int], str]
    """Path of the rings to a node."""
    nodes: Callable[[], dict[int, Any]]
    """Rows of the view (shm.view.ViewNode) by node id."""
    version: Callable[[], int]
    """Version of the view."""
    take_sockets: Callable[[], list[socket.socket]]
    """Accepted connections, with nothing but the preface read."""
    accept_fd: int
    """Readable if there are some."""
    spool_dir: Path
    spill_dir: Path
    log: Callable[[str, Line], None]
    settings: OutboundSettings = field(default_factory=OutboundSettings)
    left_over: tuple[tuple[int, Path, Path], ...] = ()
    """Rings of a killed broker: node id, path, and the directory of spilled records."""
    prepare: Callable[[socket.socket], None] = lambda sock: sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    """Sets the options of a socket."""
    client_tls: ssl.SSLContext | None = None
    server_tls: ssl.SSLContext | None = None
    connect_timeout_ms: int = 5_000
    refuses_data: Callable[[], bool] = lambda: False
    """Whether workers are ending: what arrives stays with its sender."""
    lags: Callable[[int], None] = lambda nodes: None
    """Called when it changes of how many nodes with a signal link messages may be missing here."""
    ticked: Callable[[int], None] = lambda now_ms: None
    """Called every 50 ms or so."""
    report: Callable[[dict[int, dict[str, Any]], dict[str, str]], None] = lambda links, errors: None
    """Called each second: state of each peer by node id, last error by address."""


class _Link:
    """A connection: being opened, then in use."""

    def __init__(self, number: int, sock: socket.socket, address: str, deadline_ms: int) -> None:
        self.number, self.sock, self.address, self.deadline_ms = number, sock, address, deadline_ms
        self.fd = sock.fileno()
        self.preface = b""
        """Dialling side: what of the preface is not sent."""
        self.is_connecting = bool(address)
        self.wire: Wire | None = None
        """None until it is connected and the TLS handshake is complete."""
        self.mask = -1
        self.large: tuple[int, int, int, Path, Any] | None = None
        """Contents of a spilled record that arrive: stream, position, size, path, file."""
        self.refuses = False
        """DATA of this connection is dropped from now on, since the stream has a gap."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class DataProcess:
    """One data process."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._sync = SyncThread(setup.bell) if setup.level == Level.MACHINE else None
        self._spools: dict[int, DiskSpool] = {}
        self._inboxes: dict[int, PeerInbox] = {}
        self._inode: dict[int, int] = {}
        self._rows: dict[int, Any] = {}
        self._version = -1
        self._links: dict[int, _Link] = {}
        self._by_fd: dict[int, _Link] = {}
        self._next_number = 1
        self._spills = 0
        self._unread: set[int] = set()
        """Connections with frames that are received and not taken, or that are not read."""
        self._resolver = ThreadPoolExecutor(1, "resolve")
        self._resolved: list[tuple[str, Any]] = []
        self._logged: dict[tuple[str, str], int] = {}
        self._failing: set[int] = set()
        self._errors: dict[str, str] = {}
        """Address of a peer without a connection to the last error."""
        self._report_ms = 0
        self._next_tick_ms = 0
        self._is_idle = False
        self._lagging = -1
        """What `Setup.lags` was called with last."""
        self._more = False
        """A ring may have more than the last pass has sent."""
        self._epoll = select.epoll()
        self._epoll.register(setup.bell, select.EPOLLIN)
        self._epoll.register(setup.accept_fd, select.EPOLLIN)
        self.core = DataChannel(
            setup.me, setup.cookie, setup.channel, self._make_outbound, setup.distribution, Random(),
            partial(secrets.token_bytes, 16),
        )  # fmt: skip
        for node in sorted({*spooled_nodes(setup.spool_dir, setup.channel), *(node for node, _, _ in setup.left_over)}):
            self.core.add_peer(node, "")
        now_ms = _now_ms()
        self._take_view(now_ms)
        self._note_lag(now_ms)

    # --- peers ---------------------------------------------------------------------------------------------------------

    def _make_outbound(self, node: int) -> Outbound:
        setup = self.setup
        spool = self._spools[node] = DiskSpool(setup.spool_dir / str(node) / str(setup.channel), self._sync, setup.log)
        outbound = Outbound(spool, setup.settings, _now_ms())
        for of, path, spill_dir in setup.left_over:
            if of != node:
                continue
            try:
                rings = PeerInbox(str(path), spill_dir).rings
            except FileNotFoundError:
                continue  # a predecessor of this process has moved them, and the supervisor has removed them
            except (OSError, ValueError) as error:
                setup.log("error", log_line("peer rings not read", path=path, reason=error))
                continue
            for ring in rings:
                if ring.head != ring.released:
                    outbound.add_ring(ring, is_left_over=True)
        return outbound

    @property
    def is_ready(self) -> bool:
        """Returns whether rings of a killed broker are in the spool, so that they may be removed."""
        return not any(peer.outbound.has_left_over for peer in self.core.peers.values())

    def _take_view(self, now_ms: int) -> None:
        """Takes what has changed in the view, and rings that were created."""
        version = self.setup.version()
        if version != self._version:
            self._version = version
            for node, row in self.setup.nodes().items():
                before = self._rows.get(node)
                self._rows[node] = row
                if before is not None and row.gone > before.gone:
                    self._execute(self.core.gone(node, now_ms), now_ms)
                if row.is_member and (before is None or _identity(before) != _identity(row)):
                    is_new = before is not None and row.is_new > before.is_new
                    self._execute(self.core.set_peer(node, row.address, row.incarnation, is_new, now_ms), now_ms)
                if row.is_member and before is not None and row.link == LinkState.UP != before.link:
                    self._hurry(node, row.address, now_ms)
                if not row.is_member and not row.gone:
                    self.core.add_peer(node, row.address)  # an earlier broker knew it: messages for it wait in the spool
        for node, row in self._rows.items():
            if row.is_member or not row.gone:
                self._attach(node, now_ms)

    def _hurry(self, node: int, address: str, now_ms: int) -> None:
        """Dials a peer whose signal link is up again. An attempt that began during a split would go on only with its next SYN."""
        for link in [*self._links.values()]:
            if link.address == address and link.is_connecting:
                self._drop(link, now_ms)
        self.core.hurry(node, now_ms)

    def _attach(self, node: int, now_ms: int) -> None:
        path = self.setup.inbox_of(node)
        try:
            inode = os.stat(path).st_ino
            if self._inode.get(node) == inode:
                return
            inbox = PeerInbox(path, self.setup.spill_dir, self.setup.doorbells)
        except FileNotFoundError:
            return
        self._inode[node], self._inboxes[node] = inode, inbox
        self._execute(self.core.add_rings(node, inbox.rings), now_ms)

    # --- the pass ------------------------------------------------------------------------------------------------------

    def run(self, stops: Callable[[], bool]) -> None:
        """Serves until `stops` returns True, then sends what peers take in time; the rest is in the spool when it returns."""
        while not stops():
            self.one_pass(IDLE_TICK_MS)
        deadline_ms = _now_ms() + DRAIN_MS
        while not self.core.is_drained and _now_ms() < deadline_ms:
            self.one_pass(10)
        self.close()

    def close(self) -> None:
        """Ends all connections, and moves what the rings have to the spool."""
        now_ms = _now_ms()
        for link in [*self._links.values()]:
            self._drop(link, now_ms)
        later_ms = now_ms + self.setup.settings.grace_ms
        for peer in self.core.peers.values():
            peer.outbound.tick(later_ms)
        while self._sync is not None and any(spool.synced < spool.head for spool in self._spools.values()):
            for spool in self._spools.values():
                spool.start_sync()
            time.sleep(0.001)
            if _now_ms() > later_ms + DRAIN_MS:
                break
        if self._sync is not None:
            self._sync.close(DRAIN_MS / 1000)
        for spool in self._spools.values():
            spool.close()
        self._epoll.close()
        self._resolver.shutdown(wait=False, cancel_futures=True)

    def one_pass(self, timeout_ms: int) -> None:
        """Waits for something to do, at most so long, and does it."""
        now_ms = _now_ms()
        wait_ms = 0 if self._more or self._resolved else max(0, min(timeout_ms, self._next_tick_ms - now_ms))
        if wait_ms and self._unread and any(self._can_take(number) for number in self._unread):
            wait_ms = 0
        if wait_ms:
            for node, inbox in self._inboxes.items():
                inbox.sleep()
                if inbox.fresh():
                    self.core.touch(node)
                    wait_ms = 0
        events = self._epoll.poll(wait_ms / 1000)
        now_ms = _now_ms()
        self._more = False
        distribution = self.setup.distribution
        distribution.pass_us = time.monotonic_ns() // 1000 & 0xFFFFFFFF
        for node, inbox in self._inboxes.items():
            inbox.awake()
            if inbox.fresh():
                self.core.touch(node)
        for fd, mask in events:
            if (link := self._by_fd.get(fd)) is not None:
                self._serve(link, mask, now_ms)
            elif fd == self.setup.bell:
                with suppress(BlockingIOError):
                    os.eventfd_read(fd)
            elif fd == self.setup.accept_fd:
                for sock in self.setup.take_sockets():
                    self._start(sock, "", now_ms)
        for number in [*self._unread]:
            if (link := self._links.get(number)) is not None:
                self._take_frames(link, now_ms)
                if link.wire is not None and link.wire.secure and number not in self._unread:
                    self._receive(link, now_ms)
            else:
                self._unread.discard(number)
        distribution.commit()
        if now_ms >= self._next_tick_ms:
            self._next_tick_ms = now_ms + (IDLE_TICK_MS if self._is_idle else TICK_MS)
            self._is_idle = True
            outputs = self._tick(now_ms)
        else:
            outputs = self.core.turn(now_ms, self._writable)
        if events or outputs:
            self._is_idle = False
        distribution.commit()  # what waited for room
        self._execute(outputs, now_ms)
        if self._sync is not None:
            for spool in self._spools.values():
                spool.start_sync()

    def _tick(self, now_ms: int) -> list[Output]:
        self.setup.ticked(now_ms)
        self._take_view(now_ms)
        if now_ms - self._report_ms >= REPORT_MS:
            self._report(now_ms)
        while self._resolved:
            self._connect(*self._resolved.pop(), now_ms)
        for link in [*self._links.values()]:
            if link.wire is None and now_ms >= link.deadline_ms:
                self._drop(link, now_ms)
        for node, peer in self.core.peers.items():
            if peer.outbound.spool_failing != (node in self._failing):
                self._failing ^= {node}
                if peer.outbound.spool_failing:
                    self.setup.log("error", log_line("spool full", node_id=node))
        outputs = self.core.tick(now_ms, self._writable)
        self._note_lag(now_ms)
        return outputs

    def _note_lag(self, now_ms: int) -> None:
        """Says of how many nodes messages may be missing; at each tick, and when a connection has ended."""
        linked = [node for node, row in self._rows.items() if row.is_member and row.link >= LinkState.SYNCING]
        lagging = sum(self.core.peers[node].is_lagging(now_ms) for node in linked)
        if lagging != self._lagging:
            self._lagging = lagging
            self.setup.lags(lagging)

    def _note_error(self, address: str, text: str) -> None:
        if any(peer.address == address for peer in self.core.peers.values()):
            self._errors[address] = text[:ERROR_MAX]

    def _report(self, now_ms: int) -> None:
        self._report_ms = now_ms
        peers = self.core.peers.values()
        broken = {peer.address for peer in peers if peer.connection is None}
        self._errors = {address: text for address, text in self._errors.items() if address in broken}
        links = {}
        for peer in peers:
            links[peer.node_id] = {"connected": peer.connection is not None, "spool_bytes": self._spools[peer.node_id].bytes}
        self.setup.report(links, self._errors)

    def _writable(self, number: int) -> bool:
        link = self._links.get(number)
        return link is not None and link.wire is not None and link.wire.pending < PENDING_MAX and not link.wire.unfolding

    def _can_take(self, number: int) -> bool:
        return number not in self._links or self.core.is_reading(number)

    # --- outputs -------------------------------------------------------------------------------------------------------

    def _execute(self, outputs: Iterable[Output], now_ms: int) -> None:
        touched: dict[int, _Link] = {}
        for output in outputs:
            match output:
                case Send(number, message):
                    link = self._links.get(number)
                    if link is None or link.wire is None:
                        continue
                    touched[number] = link
                    if isinstance(message, Data):
                        self._send_data(link.wire, message)
                        if message.records.size >= MORE_BYTES and (peer := self.core.peer_of(number)) is not None:
                            self._more = True
                            self.core.touch(peer.node_id)
                    else:
                        link.wire.send(encode_message(message))
                case Close(number, reason, text):
                    if (link := self._links.get(number)) is not None:
                        if text:
                            self._note_error(link.address, f"{reason.name.lower()}: {text}")
                            self._repeated(
                                link.address, "warning",
                                log_line("data connection closed", address=link.address, reason=reason.name.lower(), detail=text),
                                now_ms,
                            )  # fmt: skip
                        if link.wire is not None:
                            link.wire.send(encode_message(Bye(reason, text)))
                            link.wire.flush()
                        self._remove(link)
                        self._note_lag(now_ms)
                        touched.pop(number, None)
                case Dial(address, _):
                    self._dial(address, now_ms)
                case Refused(address, reason, text):
                    if reason != ByeReason.UNKNOWN_PEER:
                        self._note_error(address, f"refused: {_reason(reason)}: {text}")
                        line = log_line("data connection refused", address=address, reason=_reason(reason), detail=text)
                        self._repeated(address, "warning", line, now_ms)
        for link in touched.values():
            self._flush(link, now_ms)

    @staticmethod
    def _send_data(wire: Wire, data: Data) -> None:
        stream, start, end, records = data
        if records.file is not None:  # type: ignore[attr-defined]
            try:
                wire.send_contents(stream, end, records.file)  # type: ignore[attr-defined]
            except OSError:
                # The file is gone: an earlier link process had the acknowledgement of the peer.
                wire.send_data(stream, start, end, None)
                return
        wire.send_data(stream, start, end, records)

    def _flush(self, link: _Link, now_ms: int) -> None:
        assert link.wire is not None
        done = link.wire.flush()
        if link.wire.ended:
            self._drop(link, now_ms)
            return
        self._watch(link, select.EPOLLIN if link.number not in self._unread else 0, done)

    def _watch(self, link: _Link, readable: int, done: bool) -> None:
        mask = readable | (0 if done else select.EPOLLOUT)
        if mask != link.mask:
            link.mask = mask
            self._epoll.modify(link.fd, mask)

    def _repeated(self, address: str, level: str, line: Line, now_ms: int) -> None:
        key = address, line.partition(" reason=")[0]
        if now_ms - self._logged.get(key, -REPEAT_MS) >= REPEAT_MS:
            self._logged[key] = now_ms
            self.setup.log(level, line)

    # --- connections ---------------------------------------------------------------------------------------------------

    def _dial(self, address: str, now_ms: int) -> None:
        host, port = parse_address(address)
        try:
            ip_address(host.partition("%")[0])
        except ValueError:
            self._resolver.submit(self._resolve, address, host, port)
            return
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        self._connect(address, found[0], now_ms)

    def _resolve(self, address: str, host: str, port: int) -> None:
        """Runs in a thread."""
        try:
            self._resolved.append((address, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]))
        except OSError:
            self._resolved.append((address, None))
        os.eventfd_write(self.setup.bell, 1)

    def _connect(self, address: str, found: Any, now_ms: int) -> None:
        if found is None:
            self.core.failed(address, now_ms)
            return
        family, kind, protocol, _, target = found
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError:
            self.core.failed(address, now_ms)
            return
        sock.setblocking(False)
        result = sock.connect_ex(target)
        if result not in (0, errno.EINPROGRESS):
            sock.close()
            self.core.failed(address, now_ms)
            return
        self._start(sock, address, now_ms)

    def _start(self, sock: socket.socket, address: str, now_ms: int) -> None:
        """Takes a new socket: `address` is the dialled one, or empty."""
        sock.setblocking(False)
        self.setup.prepare(sock)
        link = _Link(self._next_number, sock, address, now_ms + self.setup.connect_timeout_ms)
        self._next_number += 1
        self._links[link.number] = self._by_fd[link.fd] = link
        if address:
            link.preface = preface(self.setup.channel)
            link.mask = select.EPOLLOUT
        else:
            link.mask = select.EPOLLIN
        self._epoll.register(link.fd, link.mask)
        if not address:
            self._go_on(link, now_ms)

    def _go_on(self, link: _Link, now_ms: int) -> None:
        """Continues with the opening of a connection."""
        context = self.setup.client_tls if link.address else self.setup.server_tls
        try:
            if link.is_connecting:
                if error := link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(error, "connect")
                link.preface = link.preface[link.sock.send(link.preface) :]
                if link.preface:
                    return
                link.is_connecting = False
            if context is not None:
                if not isinstance(link.sock, ssl.SSLSocket):
                    self._epoll.unregister(link.fd)
                    link.sock = context.wrap_socket(
                        link.sock, server_side=not link.address, do_handshake_on_connect=False, suppress_ragged_eofs=True
                    )
                    self._epoll.register(link.fd, link.mask)
                link.sock.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(link, select.EPOLLIN, True)
            return
        except (BlockingIOError, ssl.SSLWantWriteError):
            self._watch(link, 0, False)
            return
        except OSError:
            self._drop(link, now_ms)
            return
        link.wire = Wire(link.sock)
        self._watch(link, select.EPOLLIN, True)
        self._execute(self.core.opened(link.number, link.address, now_ms), now_ms)

    def _remove(self, link: _Link) -> None:
        self._links.pop(link.number, None)
        self._unread.discard(link.number)
        if self._by_fd.pop(link.fd, None) is not None:
            with suppress(OSError):
                self._epoll.unregister(link.fd)
        if link.large is not None:
            link.large[4].close()
            link.large[3].unlink(missing_ok=True)
            link.large = None
        if link.wire is not None:
            link.wire.close()
        link.sock.close()

    def _drop(self, link: _Link, now_ms: int) -> None:
        """Takes the end of a connection."""
        self._remove(link)
        if link.wire is None and link.address:
            self.core.failed(link.address, now_ms)
        else:
            self.core.closed(link.number, now_ms)
            self._note_lag(now_ms)

    # --- frames --------------------------------------------------------------------------------------------------------

    def _serve(self, link: _Link, mask: int, now_ms: int) -> None:
        """Takes what epoll has reported of a connection."""
        if link.wire is None:
            self._go_on(link, now_ms)
            return
        if mask & select.EPOLLOUT:
            self._flush(link, now_ms)
            if (peer := self.core.peer_of(link.number)) is not None:
                self.core.touch(peer.node_id)
        if mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and link.number not in self._unread:
            self._receive(link, now_ms)
        elif mask & (select.EPOLLHUP | select.EPOLLERR) and link.number in self._links:
            self._drop(link, now_ms)

    def _receive(self, link: _Link, now_ms: int) -> None:
        """Reads a connection a few times; over TLS as long as there is something, of which epoll may not know."""
        reads = 0
        while link.wire is not None and link.number in self._links:
            more = link.wire.receive()
            self._take_frames(link, now_ms)
            reads += 1
            if not more or link.number in self._unread or (reads >= READS_A_PASS and not link.wire.secure):
                return

    def _take_frames(self, link: _Link, now_ms: int) -> None:
        """Takes whole frames of a connection, as long as its peer may send."""
        wire, number = link.wire, link.number
        if wire is None:
            return
        try:
            for _ in range(FRAMES_A_PASS):
                if not self.core.is_reading(number):
                    self._stop_reading(link)
                    return
                if (frame := wire.take()) is None:
                    break
                if frame.type == FrameType.DATA or frame.type == FrameType.LARGE:
                    self._take_records(link, frame, now_ms)
                else:
                    self._take_message(link, frame, now_ms)
                if number not in self._links:
                    return
            else:
                self._stop_reading(link)
                return
        except PeerFault as fault:
            self._execute(self.core.refuse(number, fault, now_ms), now_ms)
            return
        if wire.ended:
            self._drop(link, now_ms)
        elif number in self._unread:
            self._unread.discard(number)
            self._watch(link, select.EPOLLIN, wire.is_empty)

    def _stop_reading(self, link: _Link) -> None:
        if link.number not in self._unread:
            self._unread.add(link.number)
            assert link.wire is not None
            self._watch(link, 0, link.wire.is_empty)

    def _take_message(self, link: _Link, frame: Any, now_ms: int) -> None:
        message = decode_message(frame.type, frame.body)
        if isinstance(message, Hello) and isinstance(link.sock, ssl.SSLSocket):
            check_certificate(link.sock.getpeercert(), message.name)
        self._execute(self.core.received(link.number, message, now_ms), now_ms)
        if link.number in self._links and self.core.peer_of(link.number) is not None:
            assert link.wire is not None
            link.wire.limit = FRAME_BYTES_MAX

    def _take_records(self, link: _Link, frame: Any, now_ms: int) -> None:
        peer = self.core.peer_of(link.number)
        if peer is None:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, "DATA: must follow HELLO and WELCOME")
        if link.refuses or self.setup.refuses_data():
            link.refuses = True
            return
        if frame.type == FrameType.LARGE:
            self._take_contents(link, frame)
            return
        if link.large is not None:
            stream, position, size, path, file = link.large
            if (stream, position) != (frame.lane, frame.ack) or file.tell() != size:
                raise PeerFault(ByeReason.PROTOCOL_ERROR, f"LARGE: {file.tell()} of {size} bytes before DATA up to {frame.ack}")
            file.close()
            link.large = None
            self.setup.distribution.contents = Contents(path, size)
        data = Data(frame.lane, frame.position, frame.ack, frame.records())
        self._execute(self.core.received(link.number, data, now_ms), now_ms)
        self.setup.distribution.contents = None

    def _take_contents(self, link: _Link, frame: Any) -> None:
        """Takes a part of the contents of a spilled record."""
        stream, position, size, part = frame.lane, frame.position, frame.ack, frame.view()
        if link.large is None:
            if not 0 < size <= BODY_MAX:
                raise PeerFault(ByeReason.LIMIT, f"LARGE size: must be 1 to {BODY_MAX}, got {size}")
            self._spills += 1
            path = spill_path(self.setup.spill_dir, f"link-{self.setup.channel}-{os.getpid()}-in-{self._spills}".encode())
            try:
                link.large = stream, position, size, path, path.open("wb", buffering=0)
            except OSError as error:
                raise PeerFault(ByeReason.LIMIT, f"LARGE: not stored, {error.strerror}") from error
        of, at, whole, _, file = link.large
        if (of, at, whole) != (stream, position, size) or not 0 < len(part) <= size - file.tell():
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"LARGE: {len(part)} bytes of stream {stream} at {position} do not continue")
        try:
            if file.write(part) != len(part):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise PeerFault(ByeReason.LIMIT, f"LARGE: not stored, {error.strerror}") from error


def _identity(row: Any) -> tuple[Any, ...]:
    return row.is_member, row.incarnation, row.address, row.is_new, row.gone


def _reason(reason: int) -> str:
    return ByeReason(reason).name.lower() if reason in [*ByeReason] else str(reason)


def run(topology: Topology, number: int) -> None:
    """Serves as data process `number` until SIGTERM."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda caught, _: stopped.append(caught))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when to stop this process
    place = topology.places_of(LINK)[number]
    counters = Counters.attach(topology.counters_name)
    counters.set_state(place.slot, ProcessState.STARTING)
    log = Log(topology.settings.log.level)
    try:
        process = DataProcess(_setup(topology, number, place, counters, log))
    except (CookieError, OSError) as error:
        sys.exit(f"{place.title}: {error}")
    is_ready = False

    def stops() -> bool:
        nonlocal is_ready
        if not is_ready and process.is_ready:
            is_ready = True
            counters.set_state(place.slot, ProcessState.READY)
        return bool(stopped)

    process.run(stops)
    log.close()
    counters.set_state(place.slot, ProcessState.DOWN)


def _setup(topology: Topology, number: int, place: Place, counters: Counters, log: Log) -> Setup:
    """Returns what a data process of a broker is made of. Raises CookieError, OSError."""
    cluster, level = topology.settings.cluster, topology.settings.durability.level
    machine = level == "machine"
    view = ViewSegment.attach(topology.view_name)
    workers = range(topology.workers)
    inboxes = [Inbox.attach(topology.inbox_name(worker)) for worker in workers]
    bells = topology.doorbells[: topology.workers]
    routes, epochs = RouteTable(topology.routes_dir), Epochs.attach(topology.epochs_name)
    distribution = Distribution(routes, epochs, inboxes, place.slot, bells, topology.spill_dir, machine)
    client_tls, server_tls = tls_contexts(cluster.tls)
    sockets = socket.socket(fileno=os.dup(topology.receiving_ends("sockets", number)[0]))
    sockets.setblocking(False)
    settings = OutboundSettings(
        Level.MACHINE if machine else Level.PROCESS,
        int(cluster.link.grace * 1000),
        int(cluster.link.stall * 1000),
        int(cluster.spool.bytes),
    )

    def ticked(now_ms: int) -> None:
        counters.beat(place.slot, now_ms)
        log.flush()

    return Setup(
        own_identity(topology, view),
        read_cookie(Path(cluster.cookie_file)),
        number,
        settings.level,
        distribution,
        topology.doorbells[place.slot],
        bells,
        lambda node: topology.peer_inbox_name(node, number),
        lambda: view.read().nodes,
        view.version_now,
        lambda: take_sockets(sockets),
        sockets.fileno(),
        topology.spool_dir,
        topology.spill_dir,
        lambda level, line: log.add(level, of_process(place.title, line)),
        settings,
        tuple(_left_over(topology, number)),
        lambda sock: prepare(sock, cluster.link),
        client_tls,
        server_tls,
        int(cluster.link.connect_timeout * 1000),
        lambda: any(counters.state(worker) == ProcessState.DRAINED for worker in workers),
        partial(counters.set_lagging, place.slot),
        ticked,
        lambda links, errors: write_report(topology.link_report(number), links=links, errors=errors),
    )


def _left_over(topology: Topology, number: int) -> Iterable[tuple[int, Path, Path]]:
    """Yields rings of killed brokers, oldest first. Their number of link processes may have been another one."""
    for one in topology.left_over:
        for name in one.peers:
            node, _, link = Path(name).name.removeprefix(PEER_INBOX).partition("-")
            if node.isdecimal() and link.isdecimal() and 1 + (int(link) - 1) % (topology.links - 1) == number:
                yield int(node), Path(name), one.spill_dir
