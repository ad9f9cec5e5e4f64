"""The process link-0: drives `shardbroker.cluster.signals` with sockets, the clock, routes in LMDB and the view in shared memory.

It accepts all connections of other nodes, and hands those for data to the link process that their preface names. Everything that
has to outlive it is in shared memory, so it may die at any time: connections are opened again, and routes continue at their
positions.
"""

import asyncio
import os
import secrets
import signal
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from shardbroker import __version__
from shardbroker.access.stores import StoreError
from shardbroker.cluster.core import CoreView, decode_view
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import CALLS, FEATURE_ACCESS, FEATURE_RETAINED, FEATURE_SESSIONS, FEATURES, JOIN
from shardbroker.cluster.messages import (
    FRAME_BYTES_MAX,
    Bye,
    Hello,
    Load,
    OfTable,
    RetainedMessages,
    RouteAck,
    RoutesFrom,
    TableNumber,
)
from shardbroker.cluster.outputs import Arrived, Close, Dial, Established, Gone, Output, Refused, RetainedArrived, Send, SubackDue
from shardbroker.cluster.rlog import SubackWait
from shardbroker.cluster.signals import UNPROVED_MAX, Signals
from shardbroker.cluster.view import SIGNALS, LinkState, ViewSettings
from shardbroker.link.access import AccessLink
from shardbroker.link.codec import decode, encode
from shardbroker.link.frames import PREFACE_BYTES, Frame, FrameReader, channel_of
from shardbroker.link.identity import CookieError, own_identity, read_cookie
from shardbroker.link.retained import RetainedLink
from shardbroker.link.routes import open_peer_routes, open_routes
from shardbroker.link.session_channel import Budget, Packed
from shardbroker.link.sessions import PeerQueue, SessionDispatcher
from shardbroker.link.sockets import JOINS, MARK, check_certificate, dial, give_socket, prepare, tls_contexts
from shardbroker.link.stored_routes import StoredRoutes
from shardbroker.link.subacks import MESSAGE_BYTES, decode_request, encode_answer
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import Line, log_line, of_process
from shardbroker.stores.evacuation import read_evacuation
from shardbroker.stores.files import Stamp, stamp_of
from shardbroker.stores.link_reports import ERROR_MAX, REPORT_MS, write_report
from shardbroker.stores.retained import RetainedStoreRefused
from shm.counters import Counter, Counters, ProcessState
from shm.ring import Inbox
from shm.roles import CLUSTER, LINK, WORKER
from shm.topology import Topology
from shm.view import ViewNode, ViewSegment

__all__ = ["run"]

READY_POLL_S = 0.02
"""Interval of looks at the state of workers at the start."""
TICK_S = 0.1
"""Interval of pings, timeouts and dials: a lost connection is opened again within 200 ms."""
RELEASE_S = 0.01
"""Interval of looks at SUBACKs that wait for longer than the first of them."""
REJOIN_MS = 50
"""Spread of the first dials of a process that replaces another, whose peers wait."""
REJOIN_VIEW_MS = 1_000
"""A process that replaces another shows the workers no view without the nodes that were linked, for at most so long: sessions at
these nodes would be new ones, to be merged later."""
ACCEPTS = 64
"""Connections accepted in a row."""
ACCEPT_PAUSE_S = 0.1
"""Pause after an error of accept, such as too many open files."""
OUTPUT_MAX = 32 << 20
"""Bytes that wait for one peer; the windows of routes are below it, so a peer above it does not keep to the protocol."""
WRITE_BYTES = 1 << 20
"""Bytes in the buffer of a connection up to which messages of sessions follow: pings must not wait behind more of them."""
REQUESTS_A_TURN = 256
"""SUBACKs taken from one worker before the others get their turn."""
ANSWERS_MAX = 100_000
"""Answers that wait for one worker; a further one drops the oldest, whose SUBACK the worker then sends by itself."""
SKEW_STEP_MS = 500
"""Steps in which the difference of two clocks is published: each change is a new version of the view."""
REPEAT_MS = 60_000
"""Interval between two log lines of the same kind about one address."""
ADDRESSES_MAX = 1_000
"""Addresses whose last log line is remembered."""


def run(topology: Topology) -> None:
    """Serves until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    log = Log(topology.settings.log.level)
    try:
        store = _open_store(topology, log)
        if not _await_routes(topology):
            return
        process = _SignalProcess(topology, log, store)
    except (CookieError, OSError, RetainedStoreRefused, StoreError) as error:
        sys.exit(f"link-0: {error}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(process.serve())


def _open_store(topology: Topology, log: Log) -> StoredRoutes:
    """Returns the routes of peers. Those that the disk has are in the table, with rings to their nodes, before a worker serves.
    Raises OSError."""
    counters = Counters.attach(topology.counters_name)
    place = topology.places_of(LINK)[0]
    counters.set_state(place.slot, ProcessState.STARTING)
    store = open_peer_routes(
        topology, lambda level, line: log.add(level, of_process(place.title, line)), topology.doorbells[place.slot],
        is_new=not ViewSegment.attach(topology.view_name).version_now(), beat=lambda: counters.beat(place.slot, _now_ms()),
    )  # fmt: skip
    for node_id in store.peers:
        _make_rings(topology, node_id)
    log.flush()
    return store


def _make_rings(topology: Topology, node_id: int) -> None:
    """Creates the rings from each worker to a peer, before any route can lead there. Raises OSError."""
    for number in range(1, topology.links):
        path = Path(topology.peer_inbox_name(node_id, number))
        if path.exists():
            continue
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)  # left by a process that was killed
        Inbox.create(str(new), topology.workers, topology.peer_ring_bytes).close()
        new.rename(path)


def _read_core(topology: Topology) -> tuple[Stamp | None, CoreView | None]:
    """Returns the members by the core, those that an earlier broker knew if it was not reached yet; None: there is no core."""
    if not topology.settings.cluster.has_core:
        return None, None
    stamp = stamp_of(topology.core_file)
    for path in (topology.core_file, topology.core_copy):
        with suppress(FileNotFoundError, ValueError):
            view = decode_view(path.read_bytes())
            return (stamp, view) if path == topology.core_file else (None, view._replace(is_current=False))
    return None, CoreView()


def _address_of(core: CoreView | None, node_id: int, uuid: bytes, known: str) -> str:
    """Returns the address of a node by the core, which may have another one than before."""
    node = core.node(node_id) if core is not None else None
    return node.address if node is not None and node.uuid == uuid else known


def _await_routes(topology: Topology) -> bool:
    """Waits until all workers have the routes of their recovered sessions in the table. Returns False on SIGTERM, which is blocked.

    Peers replace what they know of this node by what its table has at the moment of the connection: messages for a session that is
    not recovered by then would find no subscriber.
    """
    counters = Counters.attach(topology.counters_name)
    slot = topology.slot_of(LINK)
    workers = [place.slot for place in topology.places_of(WORKER)]
    while not counters.serving and any(counters.state(worker) != ProcessState.READY for worker in workers):
        counters.beat(slot, _now_ms())
        if signal.sigtimedwait({signal.SIGTERM}, READY_POLL_S) is not None:
            counters.set_state(slot, ProcessState.DOWN)
            return False
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return True


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


class _Connection(asyncio.Protocol):
    """One connection of the signal channel."""

    transport: asyncio.Transport

    def __init__(self, process: "_SignalProcess", number: int, address: str) -> None:
        self.number = number
        self.address = address
        """The dialled address, or empty."""
        self.reader = FrameReader()
        self.name = ""
        """Name of the node, once it is proved."""
        self.progress = 0
        """Bytes that the transport has taken from its buffer; the clock of `send_timeout` starts with each change."""
        self.progress_ms = _now_ms()
        self._written = 0
        self._process = process
        self._sessions = PeerQueue(process.budget)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._process.on_opened(self)

    def data_received(self, data: bytes) -> None:
        self._process.on_bytes(self, data)

    def resume_writing(self) -> None:
        self.send_sessions()

    def connection_lost(self, error: Exception | None) -> None:
        self._sessions.close()
        self._process.on_lost(self, str(error) if error is not None else "closed by the peer")

    def write(self, frame: bytes) -> None:
        if not self.transport.is_closing():
            self._written += len(frame)
            # uvloop raises for a transport that it has closed and that is not closing (uvloop#506): connection_lost() follows.
            with suppress(RuntimeError):
                self.transport.write(frame)

    def write_session(self, message: Packed) -> bool:
        """Sends a message of sessions, in order with the others of them. Returns False if there is no room for it."""
        if self.transport.is_closing() or self._sessions.is_full or not self._sessions.put(message):
            return False
        self.send_sessions()
        return True

    def send_sessions(self) -> None:
        """Sends messages of sessions as far as the buffer of the connection has room for them."""
        while self._sessions and self.transport.get_write_buffer_size() < WRITE_BYTES:
            self.write(self._sessions.next_frame())

    def is_stuck(self, now_ms: int, limit_s: float) -> bool:
        """Returns whether the peer has taken nothing of what waits for it, or too much waits."""
        waiting = self.transport.get_write_buffer_size()
        progress = self._written - waiting
        if not waiting or progress != self.progress:
            self.progress, self.progress_ms = progress, now_ms
        return waiting > OUTPUT_MAX or self._sessions.is_full or now_ms - self.progress_ms >= limit_s * 1000


class _SignalProcess:
    def __init__(self, topology: Topology, log: Log, store: StoredRoutes) -> None:
        self._topology = topology
        self._cluster = cluster = topology.settings.cluster
        self._counters = Counters.attach(topology.counters_name)
        self._place = topology.places_of(LINK)[0]
        self._slot = self._counters.slot(self._place.slot)
        self._log = log
        self._view = ViewSegment.attach(topology.view_name)
        self._client, self._server = tls_contexts(cluster.tls)
        self._inbox = Inbox.attach(topology.inbox_name(self._place.slot))
        self._bell = topology.doorbells[self._place.slot]
        before = self._view.read()
        self._store = store
        self._acks: deque[tuple[int, int, RouteAck | RoutesFrom]] = deque()
        """Messages that acknowledge routes: the number of changes that have to be secured, the connection, the message."""
        now_ms = _now_ms()
        self._core_stamp, core = _read_core(topology)
        self._lease_ms = int((cluster.lease - 1) * 1000)
        """A lease that was not renewed for so long may be lost."""
        self._signals = Signals(
            own_identity(topology, self._view),
            read_cookie(Path(cluster.cookie_file)),
            cluster.static.seeds,
            open_routes(topology),
            store,
            Random(),
            partial(secrets.token_bytes, 16),
            now_ms,
            ViewSettings(
                suspect_ms=int(cluster.suspect * 1000),
                ping_ms=min(500, int(cluster.suspect * 250)),
                join_timeout_ms=int(cluster.join_timeout * 1000),
                **({"first_dial_ms": REJOIN_MS} if before.version else {}),
            ),
            SubackWait(is_local=cluster.suback == "local"),
            auth_timeout_ms=int(cluster.link.auth_timeout * 1000),
            core=core,
            features=FEATURES | (FEATURE_SESSIONS if cluster.registry == "on" else 0),
        )
        self._nodes: dict[int, ViewNode] = dict(before.nodes)
        for node_id, node in before.nodes.items():
            if node.is_member:
                address = _address_of(core, node_id, node.uuid, node.address)
                self._signals.view.restore(node_id, node.name, address, node.uuid, node.incarnation)
        for node_id, peer in store.peers.items():
            address = _address_of(core, node_id, peer.uuid, peer.address)
            self._signals.view.restore(node_id, peer.name, address, peer.uuid, peer.incarnation, is_proved=False)
        linked = [node_id for node_id, node in before.nodes.items() if node.is_member and node.link == LinkState.UP]
        self._awaited = {*linked} if before.version else set()
        """Nodes without which no view is shown until `_view_ms`."""
        self._view_ms = now_ms + REJOIN_VIEW_MS
        self._published: tuple[Any, ...] = ()
        self._publishes = False
        self._numbers = count(1)
        self._connections: dict[int, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeted = 0
        self._tickets = count(1)
        self._held: dict[int, tuple[int, int]] = {}
        """Ticket of a held SUBACK to the worker and its ticket."""
        self._release: asyncio.TimerHandle | None = None
        self._states: dict[str, LinkState] = {}
        self._logged: dict[tuple[str, str], int] = {}
        self._serves = False
        self.budget = Budget()
        self._worker_slots = [place.slot for place in topology.places_of(WORKER)]
        self._sessions = SessionDispatcher(
            topology.receiving_ends("sessions", 0), topology.division.owners, self.budget, self._to_connection, self._is_starting
        )
        self._retained = RetainedLink(
            topology, self._send_retained, self._fail_retained, partial(self._slot.add, Counter.RETAINED_DROPPED), self._add
        )
        self._access = AccessLink(topology, self._counters, self._send_retained, self._fail_retained, self._add)
        self._errors: dict[str, str] = {}
        """Address of a peer that is not linked to the last error."""
        self._report_ms = now_ms
        self._totals = self._counters.totals()
        self._dropped = 0
        """Messages of sessions that were dropped, as far as they are in the log."""
        self._dropped_ms = now_ms - REPEAT_MS

    async def serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides when to stop this process
        self._listener = socket.socket(fileno=os.dup(self._topology.link_socket))
        self._listener.setblocking(False)
        self._handoffs = [socket.socket(fileno=os.dup(end)) for end in self._topology.sending_ends("sockets", 0)]
        (calls,) = self._topology.sending_ends("calls", 0)
        self._calls = socket.socket(fileno=os.dup(calls))
        self._workers = [_Worker(end, worker, self) for worker, end in enumerate(self._topology.receiving_ends("subacks", 0))]
        self._sessions.start(loop)
        self._look_at_core(_now_ms())
        self._drop_strangers()
        self._follow()
        self._publish()
        loop.add_reader(self._bell, self._on_bell)
        self._inbox.go_to_sleep()
        loop.add_reader(self._listener, self._accept)
        self._failed: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(self._on_error)
        for serving in (self._retained.run(), *self._access.runs()):
            self._start(serving)
        ticking = asyncio.create_task(self._tick())
        stopping = asyncio.create_task(stop.wait())
        waiting: list[asyncio.Future[Any]] = [ticking, stopping, self._failed]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # an error ends the process, and the supervisor starts another
        for task in [ticking, *self._tasks]:
            task.cancel()
        loop.remove_reader(self._listener)
        for connection in self._connections.values():
            connection.transport.close()
        await asyncio.sleep(0)
        self._retained.close()
        self._access.close()
        self._store.close()
        self._log.close()
        self._counters.set_state(self._place.slot, ProcessState.DOWN)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Takes an error of a callback. Those of a connection end the connection alone."""
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError | TimeoutError) and not self._failed.done():
            self._failed.set_exception(error)

    async def _tick(self) -> None:
        while True:
            now_ms = _now_ms()
            self._look_at_core(now_ms)
            self._carry_out(self._signals.tick(now_ms, _clock_ms()))
            for connection in [*self._connections.values()]:
                if connection.is_stuck(now_ms, self._cluster.link.send_timeout):
                    self._end(connection, PeerFault(ByeReason.STALLED, "the peer takes nothing: cluster.link.send_timeout"))
                    connection.transport.abort()
                else:
                    connection.send_sessions()
            self._note_dropped(now_ms)
            if now_ms - self._report_ms >= REPORT_MS:
                self._report(now_ms)
            self._store.work(now_ms)
            self._release_acks()
            self._retained.tick(now_ms)
            self._access.tick(now_ms)
            if not self._serves:
                self._join(now_ms)
            self._publish()
            self._log.flush()
            await asyncio.sleep(TICK_S)

    def _look_at_core(self, now_ms: int) -> None:
        """Takes what the process `cluster` has written since, and whether it holds the lease."""
        topology, view = self._topology, self._signals.view
        if view.core is None:
            return
        stamp = stamp_of(topology.core_file)
        if stamp is not None and stamp != self._core_stamp:
            self._core_stamp = stamp
            was_current = view.core.is_current
            self._carry_out(self._signals.set_core(decode_view(topology.core_file.read_bytes()), now_ms))
            if not was_current:
                self._drop_strangers()
        view.set_lease(now_ms - self._counters.heartbeat(topology.slot_of(CLUSTER)) < self._lease_ms, now_ms)

    def _drop_strangers(self) -> None:
        """Removes what is stored of nodes that the core has removed, or does not know."""
        view = self._signals.view
        if view.core is not None and view.core.is_current:
            for node_id in [node_id for node_id in self._store.peers if view.link_of(node_id) is None]:
                self._carry_out(self._signals.forget(node_id))

    def _join(self, now_ms: int) -> None:
        """Reports this process as ready, for which the workers wait, once the node has the routes of all members."""
        view = self._signals.view
        self._counters.beat(self._place.slot, now_ms)
        if not view.serves and not self._counters.serving:
            return
        self._serves = True
        self._counters.set_state(self._place.slot, ProcessState.READY)
        if view.joined_late and not self._counters.serving:
            missing = [link.address for link in view.links.values() if link.state != LinkState.UP]
            self._add("warning", log_line("cluster joined without all members", missing=",".join(missing)))
        elif view.serves:
            self._add("info", log_line("cluster joined", members=len(view.members)))

    # --- connections ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, found = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as error:
                self._repeated("accept", "warning", log_line("peer connection not accepted", reason=error.strerror))
                self._loop.remove_reader(self._listener)
                self._loop.call_later(ACCEPT_PAUSE_S, self._loop.add_reader, self._listener, self._accept)
                return
            if self._greeted >= UNPROVED_MAX:
                sock.close()
                continue
            self._start(self._greet(sock, str(found[0])))

    async def _greet(self, sock: socket.socket, source: str) -> None:
        """Reads the preface of an accepted connection, and takes the connection or gives it to another link process."""
        self._greeted += 1
        try:
            async with asyncio.timeout(self._cluster.link.auth_timeout):
                prepare(sock, self._cluster.link)
                data = b""
                while len(data) < PREFACE_BYTES:
                    more = await self._loop.sock_recv(sock, PREFACE_BYTES - len(data))
                    if not more:
                        raise ConnectionResetError("closed before the preface")
                    data += more
                channel = channel_of(data)
                if channel != SIGNALS:
                    self._hand_over(sock, channel)
                    return
                factory = partial(_Connection, self, next(self._numbers), "")
                timeout = {} if self._server is None else {"ssl_handshake_timeout": self._cluster.link.auth_timeout}
                await self._loop.connect_accepted_socket(factory, sock, ssl=self._server, **timeout)
                return
        except (OSError, TimeoutError, PeerFault) as error:
            self._counted(Counter.LINK_REFUSED)
            self._repeated(source, "warning", log_line("peer connection refused", source=source, reason=_text(error)))
        finally:
            self._greeted -= 1
        sock.close()

    def _hand_over(self, sock: socket.socket, channel: int) -> None:
        mark = JOINS if channel == JOIN else MARK
        if channel in (CALLS, JOIN):
            end, name = self._calls, "manager"
        elif channel < len(self._handoffs):
            end, name = self._handoffs[channel], f"link-{channel}"
        else:
            text = f"data channel: must be 1 to {len(self._handoffs) - 1}, got {channel}: compare cluster.links"
            raise PeerFault(ByeReason.PROTOCOL_ERROR, text)
        if not give_socket(end, sock, mark):
            raise PeerFault(ByeReason.LIMIT, f"{name} takes no connections")
        sock.close()

    async def _dial(self, address: str) -> None:
        sock = None
        try:
            sock = await dial(address, SIGNALS, self._cluster)
            factory = partial(_Connection, self, next(self._numbers), address)
            tls: dict[str, Any] = {}
            if self._client is not None:
                tls = {"server_hostname": address.rpartition(":")[0].strip("[]")}
                tls["ssl_handshake_timeout"] = self._cluster.link.auth_timeout
            await self._loop.create_connection(factory, sock=sock, ssl=self._client, **tls)
        except (OSError, TimeoutError) as error:
            if sock is not None:
                sock.close()
            self._signals.failed(address, _now_ms())
            self._note_error(address, _text(error))
            self._repeated(address, "warning", log_line("peer not reachable", address=address, reason=_text(error)))

    def on_opened(self, connection: _Connection) -> None:
        """Takes a connection whose TLS handshake is complete."""
        self._connections[connection.number] = connection
        self._carry_out(self._signals.opened(connection.number, connection.address, _now_ms()))

    def on_lost(self, connection: _Connection, reason: str) -> None:
        """Takes the end of a connection that this side has not closed."""
        if self._connections.pop(connection.number, None) is not None:
            self._note_end(connection, reason)
            self._carry_out(self._signals.closed(connection.number, _now_ms()))

    def on_bytes(self, connection: _Connection, data: bytes) -> None:
        """Takes what a peer has sent."""
        try:
            connection.reader.feed(data)
            while connection.number in self._connections and (frame := connection.reader.next()) is not None:
                message = decode(frame)
                if isinstance(message, Hello) and self._client is not None:
                    check_certificate(connection.transport.get_extra_info("peercert"), message.name)
                self._carry_out(self._signals.received(connection.number, message, _now_ms(), _clock_ms()), frame)
                if self._signals.is_proved(connection.number):
                    connection.reader.limit = FRAME_BYTES_MAX
        except PeerFault as fault:
            self._end(connection, fault)

    def _end(self, connection: _Connection, fault: PeerFault) -> None:
        """Ends a connection for a fault that the core has not seen."""
        self._carry_out([Close(connection.number, fault.reason, fault.text), *self._signals.closed(connection.number, _now_ms())])

    def _note_end(self, connection: _Connection, reason: str) -> None:
        if connection.name:
            self._counted(Counter.LINK_CLOSED)
            self._add("warning", log_line("peer disconnected", name=connection.name, reason=reason))
            for link in self._signals.view.links.values():
                if link.node is not None and link.node.name == connection.name:
                    self._note_error(link.address, reason)

    # --- outputs of the core ----------------------------------------------------------------------------------------------

    def _carry_out(self, outputs: Iterable[Output], frame: Frame | None = None) -> None:
        """Does what a call of the core has returned; `frame`: with the message that the core has taken."""
        self._follow()
        store = self._store
        for output in outputs:
            match output:
                case Send(number, RouteAck() | RoutesFrom() as message) if self._acks or not store.is_secured(store.sequence):
                    self._acks.append((store.sequence, number, message))
                    store.work(_now_ms())
                case Send(number, message):
                    if (connection := self._connections.get(number)) is not None:
                        connection.write(encode(message))
                case Dial(address, _):
                    self._start(self._dial(address))
                case Close(number, reason, text):
                    self._close(number, reason, text)
                case Refused(address, reason, text):
                    self._counted(Counter.LINK_REFUSED)
                    self._note_error(address, f"refused: {_reason(reason)}: {text}")
                    line = log_line("peer refused", address=address, reason=_reason(reason), detail=text)
                    self._repeated(address, "error", line)
                case Established():
                    self._on_established(output)
                case Gone(node_id):
                    node = self._nodes.get(node_id, ViewNode())
                    self._nodes[node_id] = node._replace(is_member=False, gone=node.gone + 1)
                    store.forget(node_id)
                    self._add("info", log_line("peer left", name=node.name, address=node.address))
                case SubackDue(ticket, is_late):
                    self._on_suback_due(ticket, is_late)
                case Arrived(node_id, message) if frame is not None:
                    self._sessions.arrived(node_id, message, frame)
                case RetainedArrived(number, message, TableNumber.RETAINED) if frame is not None:
                    self._retained.arrived(number, message, len(frame.body))
                case RetainedArrived(number, message, table) if frame is not None:
                    self._access.arrived(number, table, message, len(frame.body))
        self._retained.follow(self._signals.peers_with(FEATURE_RETAINED))
        self._access.follow(self._signals.peers_with(FEATURE_ACCESS))
        self._publish_soon()

    def _release_acks(self) -> None:
        """Sends the acknowledgements whose routes are secured."""
        while self._acks and self._store.is_secured(self._acks[0][0]):
            _, number, message = self._acks.popleft()
            if (connection := self._connections.get(number)) is not None:
                connection.write(encode(message))

    def _close(self, number: int, reason: ByeReason, text: str) -> None:
        connection = self._connections.pop(number, None)
        if connection is None:
            return
        self._note_end(connection, f"{reason.name.lower()}: {text}")
        if text and not connection.name:
            self._counted(Counter.LINK_REFUSED)
            self._note_error(connection.address, f"{reason.name.lower()}: {text}")
            source = connection.address or str((connection.transport.get_extra_info("peername") or ("unknown",))[0])
            self._repeated(source, "warning", log_line("peer connection refused", source=source, reason=text))
        connection.write(encode(Bye(reason, text)))
        connection.transport.close()
        self._loop.call_later(self._cluster.link.send_timeout, connection.transport.abort)

    def _on_established(self, output: Established) -> None:
        link = self._signals.view.link_of(output.node_id)
        assert link is not None and link.node is not None
        self._store.identify(link.node)
        before = self._nodes.get(output.node_id, ViewNode())
        self._nodes[output.node_id] = before._replace(is_new=before.is_new + output.is_new)
        if (connection := self._connections.get(link.connection or 0)) is not None:
            connection.name = link.node.name
        self._counted(Counter.LINK_ESTABLISHED)
        fields = {"name": link.node.name, "node_id": output.node_id, "address": output.address}
        self._add("info", log_line("peer connected", **fields))
        if link.node.name in self._signals.differing:
            self._add("warning", log_line("peer has another registry setting", name=link.node.name, here=self._cluster.registry))
        self._logged = {key: at for key, at in self._logged.items() if key[0] != output.address}
        try:
            _make_rings(self._topology, output.node_id)
        except OSError as error:
            self._add("error", log_line("peer rings not created", name=link.node.name, reason=error.strerror or error))
            raise

    # --- workers ----------------------------------------------------------------------------------------------------------

    def _on_bell(self) -> None:
        """Wakes up for changed routes and retained messages. The sleep flag is set before the log is read, so a later change rings
        again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while not self._inbox.go_to_sleep():
            for lane in self._inbox.lanes:
                while lane.take() is not None:
                    pass
                lane.give_back()
        now_ms = _now_ms()
        self._store.work(now_ms)
        self._release_acks()
        self._carry_out(self._signals.routes_changed(now_ms))
        self._retained.wake()

    def hold_suback(self, worker: int, ticket: int, position: int) -> None:
        """Takes a SUBACK that a worker holds."""
        number = next(self._tickets)
        self._held[number] = worker, ticket
        self._carry_out(self._signals.hold_suback(number, position, _now_ms()))
        if self._held and self._release is None:
            self._release = self._loop.call_later(self._signals.suback.limit_ms / 1000, self._release_subacks)

    def _release_subacks(self) -> None:
        """Sends SUBACKs whose limit is reached, between two ticks."""
        self._release = None
        self._carry_out(self._signals.routes_changed(_now_ms()))
        if self._held:
            self._release = self._loop.call_later(RELEASE_S, self._release_subacks)

    def _on_suback_due(self, number: int, is_late: bool) -> None:
        worker, ticket = self._held.pop(number)
        if is_late:
            self._counted(Counter.SUBACK_LATE)
        self._workers[worker].send(encode_answer(ticket, is_late))

    # --- sessions ---------------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Passes a change of the view to the workers, in order with the messages of nodes."""
        view = self._signals.view
        found = view.sessions()
        if found is self._sessions.view:
            return
        if self._awaited:
            if self._awaited - {node_id for node_id, _ in found.members} and _now_ms() < self._view_ms:
                return
            self._awaited.clear()
        self._sessions.follow(found, view.connections())

    def _to_connection(self, number: int, message: Packed) -> bool:
        connection = self._connections.get(number)
        return connection is None or connection.write_session(message)

    def _is_starting(self, worker: int) -> bool:
        return self._counters.state(self._worker_slots[worker]) in (ProcessState.DOWN, ProcessState.STARTING)

    def _note_dropped(self, now_ms: int) -> None:
        dropped = self._sessions.dropped
        if dropped > self._dropped and now_ms - self._dropped_ms >= REPEAT_MS:
            self._add("warning", log_line("session messages dropped", messages=dropped - self._dropped))
            self._dropped, self._dropped_ms = dropped, now_ms

    # --- tables that are on all nodes ---------------------------------------------------------------------------------------

    def _send_retained(self, number: int, message: RetainedMessages | OfTable) -> None:
        if (connection := self._connections.get(number)) is not None:
            connection.write(encode(message))

    def _fail_retained(self, number: int, fault: PeerFault) -> None:
        if (connection := self._connections.get(number)) is not None:
            self._end(connection, fault)

    # --- the view ---------------------------------------------------------------------------------------------------------

    def _publish_soon(self) -> None:
        """Publishes the view once for all changes of this turn of the loop."""
        if not self._publishes:
            self._publishes = True
            self._loop.call_soon(self._publish)

    def _publish(self) -> None:
        self._publishes = False
        view, found = self._signals.view, self._signals.progress()
        for link in view.links.values():
            self._note_state(link.address, link.state)
            if link.node is None or link.has_left:
                continue
            node_id = link.node.node_id
            before = self._nodes.get(node_id, ViewNode())
            acked, lag = found.get(node_id, (before.acked, max(0, self._signals.head - before.acked)))
            self._nodes[node_id] = before._replace(
                incarnation=link.node.incarnation, acked=acked, lag=lag, is_member=link.is_proved, link=int(link.state),
                routes=int(link.routes_in), uuid=link.node.node_uuid, name=link.node.name, address=link.address,
                skew_ms=round(link.skew_ms / SKEW_STEP_MS) * SKEW_STEP_MS,
            )  # fmt: skip
        state = view.epoch, view.isolated, int(view.state), view.joined_late, dict(self._nodes)
        if state != self._published:
            self._published = state
            self._view.write(*state)

    def _note_state(self, address: str, state: LinkState) -> None:
        before = self._states.get(address, LinkState.DOWN)
        self._states[address] = state
        if state == before:
            return
        if state == LinkState.UP:
            self._add("info", log_line("peer up", address=address))
        elif state == LinkState.SUSPECT:
            self._add("warning", log_line("peer suspect", address=address))

    # --- reports ----------------------------------------------------------------------------------------------------------

    def _report(self, now_ms: int) -> None:
        """Measures the load of this node, which goes to the peers with the next PING, and reports theirs to the manager."""
        topology, clock_ms = self._topology, _clock_ms()
        span_s, self._report_ms = max(1, now_ms - self._report_ms) / 1000, now_ms
        before, self._totals = self._totals, self._counters.totals()
        totals = self._totals
        received, sent = (round(max(0, totals[name] - before[name]) / span_s) for name in ("messages.received", "messages.sent"))
        evacuation = read_evacuation(topology.data_dir)
        self._signals.load = Load(
            totals["connections.count"], totals["sessions.count"], received, sent,
            max(0, clock_ms - self._counters.life(topology.manager)[1]) // 1000, round(os.getloadavg()[0] * 100),
            evacuation is not None and evacuation.turns_away(clock_ms), __version__,
        )  # fmt: skip
        links = self._signals.view.links
        known = [(link.node.node_id, link.load) for link in links.values() if link.node is not None and link.load is not None]
        loads = {node_id: load._asdict() for node_id, load in known}
        broken = {address for address, link in links.items() if link.state != LinkState.UP}
        self._errors = {address: text for address, text in self._errors.items() if address in broken}
        loads[topology.node_id] = self._signals.load._asdict()
        write_report(
            topology.link_report(0), loads=loads, errors=self._errors, differing=self._signals.differing,
            retained=self._retained.states(), access=self._access.states(),
        )  # fmt: skip

    def _note_error(self, address: str, text: str) -> None:
        if address in self._signals.view.links:
            self._errors[address] = text[:ERROR_MAX]

    # --- log --------------------------------------------------------------------------------------------------------------

    def _add(self, level: str, line: Line) -> None:
        self._log.add(level, of_process(self._place.title, line))

    def _repeated(self, address: str, level: str, line: Line) -> None:
        """Logs a line, unless the same one of this address was logged recently: a peer that is down is dialled all the time."""
        now_ms = _now_ms()
        if now_ms - self._logged.get((address, line), -REPEAT_MS) < REPEAT_MS:
            return
        if len(self._logged) >= ADDRESSES_MAX:
            self._logged.clear()
        self._logged[address, line] = now_ms
        self._add(level, line)

    def _counted(self, counter: int) -> None:
        self._slot.add(counter)

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "connection of a peer", "exception": error})


class _Worker:
    """The channel of SUBACKs to and from one worker."""

    def __init__(self, descriptor: int, worker: int, process: _SignalProcess) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)
        self._worker = worker
        self._process = process
        self._waiting: deque[bytes] = deque(maxlen=ANSWERS_MAX)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        for _ in range(REQUESTS_A_TURN):
            try:
                message = self._socket.recv(MESSAGE_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            self._process.hold_suback(self._worker, *decode_request(message))

    def send(self, answer: bytes) -> None:
        """Sends an answer without blocking; one that the worker does not take at once is queued."""
        if not self._waiting and self._sent(answer):
            return
        if not self._waiting:
            self._loop.add_writer(self._socket, self._send_waiting)
        self._waiting.append(answer)

    def _send_waiting(self) -> None:
        while self._waiting and self._sent(self._waiting[0]):
            self._waiting.popleft()
        if not self._waiting:
            self._loop.remove_writer(self._socket)

    def _sent(self, answer: bytes) -> bool:
        try:
            self._socket.send(answer)
        except (BlockingIOError, InterruptedError):
            return False
        return True


def _reason(number: int) -> str:
    """Returns the name of a reason that a peer has sent."""
    return ByeReason(number).name.lower() if number in ByeReason.__members__.values() else str(number)


def _text(error: Exception) -> str:
    if isinstance(error, PeerFault):
        return error.text
    if isinstance(error, TimeoutError) and not str(error):
        return "timed out"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return str(getattr(error, "strerror", None) or error)
