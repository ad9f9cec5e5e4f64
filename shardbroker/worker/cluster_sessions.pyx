"""The sessions of a worker in a cluster; see cluster_sessions.pxd."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.journal.recorder cimport JournalRecorder
from shardbroker.journal.writer cimport Writer
from shardbroker.mqtt.packets cimport Connect
from shardbroker.mqtt.spec cimport CLIENT_IDENTIFIER_NOT_VALID, SERVER_BUSY
from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.subscriptions cimport Subscription
from shardbroker.session.journaling cimport ENDED_MOVED_TO_NODE
from shardbroker.session.mqueue cimport MQueue
from shardbroker.session.place cimport GONE, MOVING, NOT_TAKEN, OWNED, STALE, TAKEN, TAKEN_BEHIND, Place, message_id, seen_id
from shardbroker.session.session cimport Session
from shardbroker.worker.authorization cimport Authorization
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.login cimport Login
from shardbroker.worker.memory cimport REFUSE
from shardbroker.worker.packets.connect cimport admit
from shardbroker.worker.passed_ids cimport PassedIds
from shardbroker.worker.session_queues cimport empty_window, first_queued, hand_over, ids_of, queue_ids, remove_from_queue, without
from shm.counters cimport SESSIONS_COUNT

from collections import deque
from functools import partial
from random import randrange

import cbor2

from shardbroker.cluster.claims import ACK_MS, Holding, SessionState
from shardbroker.cluster.faults import PeerFault
from shardbroker.cluster.merge import Passed, SeenIds, append, id_floor
from shardbroker.cluster.messages import Take
from shardbroker.cluster.outputs import (
    Absorb, Accepted, Bind, Create, EndSession, Export, Flow, Forget, Import, Kick, Merge, MovedAway, Rejected, Restore, Taken, ToNode,
)
from shardbroker.cluster.registry import client_key
from shardbroker.cluster.session_view import SessionView
from shardbroker.cluster.sessions import MESSAGE_BYTES_MAX
from shardbroker.cluster.takeover import TakeFault
from shardbroker.link.session_channel import FromWorker
from shardbroker.journal.images import ImageError, read_image, write_image
from shardbroker.logs.phrases import log_line
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import encode_properties
from shardbroker.worker.session_queues import SeenBefore, decode_queued, decode_state, encode_state

__all__ = ["ClusterSessions"]

TICK_MS = 50
"""Between two calls of the cores' clock."""
WAITING_MAX = 10_000
"""CONNECTs of one worker that wait for their claims: the claims of 2 s at 5000 a second."""
WAITING_BYTES_MAX = 16 << 20
"""Bytes of these: client ids and wills."""
OUTGOING_MAX = 100_000
"""Messages to nodes that wait for the journal; above it new ones are dropped, and the cores repeat them."""
TOPIC_SHOWN = 200
"""Bytes of a topic in a log line."""
STATES_MAX = 128 << 20
"""Bytes of sessions that wait for the journal on their way to other nodes: two of the largest size."""
FORGET_MS = 600_000
"""Ids of messages are noted for so long, counted from the grant of the session and from the moment at which all seeds were linked."""
SWEEP_MS = 60_000
"""Between two looks at the sessions that note ids."""
SWEEP_A_TICK = 1_000
"""Sessions looked at in one tick: some 0.3 ms."""
NOTING_MAX = 100_000
"""Sessions of one worker that begin to note ids because a seed is missing: 1 GB if each has had SEEN_MAX messages. In others a merge may
deliver a message of QoS 2 again."""

REASONS = {0x88: "session is at a node that is not reachable", 0x8E: "session taken over", 0x89: "another CONNECT of this client id waits"}
"""Reason strings of CONNACK; the reason codes are those of cluster/claims.py."""

cdef enum:
    PACKET_IDS_END = 65_536
    STAMP_BITS = 16                        # of a counter below the ms of a stamp, see shardbroker/cluster/clock.py


cdef class ClusterSessions(SessionClaims):
    """router: of the worker, whose sessions are all known once `restore` is called. link: the end of the channel to link-0.
    create_core: LateQueues -> shardbroker.cluster.sessions.NodeSessions. cluster: uuid of the cluster. workers: worker of each
    partition, None: this one of all. lags: returns whether messages of other nodes may be missing here, None: never."""

    def __init__(self, Router router not None, link, create_core, bytes cluster not None, workers=None, lags=None):
        self.router = router
        self.link = link
        self.cluster = cluster
        self.core = create_core(self)
        if lags is not None:
            self.core.claims.lags = lags
        self.gone = {}
        self.waiting = {}
        self.tickets = {}
        self.outgoing = deque()
        self.changed = set()
        self.noting = {}
        self.doubted = {}
        self.watching = self.listening = True
        self.to_sweep = []
        self.exclusive = ClusterExclusive(router, self.core, cluster, workers, self.run, self.post)
        router.claims = self
        router.passed = PassedIds()        # recovery fills it

    def restore(self, image=None) -> None:
        """Takes the sessions that were recovered. image: of the process that this one has replaced, see `image`. Raises KeyError, TypeError,
        ValueError, struct.error."""
        cdef Session session
        cdef Place place
        now_ms, last = self.router.now_ms, 0
        for session in list(self.router.by_key.values()):
            key = self.key_of(session.client_id)
            if key is None:
                continue
            if session.place is None:
                session.place = Place()
            place = session.place
            holding = Holding(
                key, session.key, session.client_id.decode(), place.generation, place.stamp, session.link is not None, SessionState(place.state),
                clean_stamp=place.clean_stamp, peer=0 if place.state == OWNED else place.peer, granted=place.granted,
                heir=place.peer if place.state == STALE else 0, merged=place.merged)
            self.core.claims.restore(holding, now_ms)
            if place.seen is not None:
                self.noting[session.key] = session
            elif place.state == OWNED:
                place.watched = True       # until the first view says that all seeds are linked
            last = max(last, place.generation, place.stamp, place.granted)
            if place.state == OWNED:
                continue
            self.gone[session.key] = session
            self.set_apart(session)
            if place.state == MOVING and image is None:
                # Its links are not known yet: without this pause it would be served again beside the session of the other node.
                holding.deadline_ms = now_ms + ACK_MS
                place.given = set()
        self.core.clock.last = max(self.core.clock.last, last)
        if image is None:
            self.exclusive.restore()
        else:
            self.take_image(image)
        self.started = True

    # --- the process that replaces this one -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Does what a pass does, before the worker is replaced: clients are not read, and nodes only until `stop_listening`."""
        if self.listening:
            self.core.claims.refuses_offers = True
            self.receive()
        self.due()

    def reason_to_wait(self) -> str:
        """Returns what has to end before the worker can be replaced; empty: nothing."""
        if self.listening and self.waiting:
            return "a session of another node"
        if self.core.claims.is_holding:
            return "the messages that another node still has for a session"
        return "the disk" if self.outgoing else ""

    def stop_listening(self) -> None:
        """Leaves what nodes send to the next process. Claims of clients that have no session yet go on there without them."""
        self.listening = False
        self.paused_ms = self.router.now_ms
        self.link.pause()

    def listen_again(self) -> None:
        """Takes messages of nodes again: the next process has ended, or is this one."""
        if not self.listening:
            self.listening = True
            self.core.shift(self.router.now_ms - self.paused_ms)
            self.link.resume()

    def image(self) -> dict:
        """Returns as plain values what neither the journal nor the records of a hand-over have; for `restore`."""
        cdef Session session
        cdef Place place
        cdef list places = []
        for session in self.router.by_key.values():
            place = session.place
            if place is not None and (place.to_release or place.asked or place.released or place.given is not None):
                to_release = place.to_release + place.asked            # the next process asks again
                places.append([session.key, to_release, place.released, None if place.given is None else [*place.given]])
        return {
            "core": self.core.image(), "channel": self.link.image(), "exclusive": self.exclusive.image(), "places": places,
            "doubted": [*self.doubted], "changed": [*self.changed], "linked_ms": self.linked_ms, "passed": self.router.passed.ids(),
            "last_ticket": self.last_ticket, "redirect": self.router.redirect, "paused_ms": self.paused_ms,
        }

    cdef int take_image(self, dict image) except -1:
        cdef Session session
        cdef Place place
        cdef uint64_t id_high = 0, id_low = 0
        self.core.take_image(image["core"])
        self.exclusive.take_image(image["exclusive"])
        self.linked_ms, self.last_ticket, self.router.redirect = image["linked_ms"], image["last_ticket"], image["redirect"]
        for session in self.router.by_key.values():
            place = session.place
            if place is not None and place.state == OWNED and place.seen is None:
                place.watched = not self.linked_ms
        for key, to_release, released, given in image["places"]:
            session = self.router.by_key.get(key)
            if session is not None and session.place is not None:
                place = session.place
                place.to_release, place.released, place.given = to_release, released, None if given is None else set(given)
        for one in image["passed"]:
            message_id(one, &id_high, &id_low)
            self.router.passed.note(id_high, id_low)
        self.doubted = {key: self.router.by_key[key] for key in image["doubted"] if key in self.router.by_key}
        self.changed = {key for key in image["changed"] if key in self.gone}
        self.link.take_image(image["channel"])
        self.listening = False
        self.paused_ms = image["paused_ms"]
        self.router.read_clock()
        self.listen_again()
        return 0

    cdef object key_of(self, bytes client_id):
        """Returns the key of a client id, or None: it is not UTF-8, and its session never moves."""
        try:
            return client_key(self.cluster, client_id.decode())
        except UnicodeDecodeError:
            return None

    cdef list leaving(self):
        cdef Session session
        if self.started:
            return [*self.gone.values()]
        return [session for session in self.router.by_key.values() if session.place is not None and session.place.state != OWNED]

    # --- the pass -----------------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self.link.fileno()

    def receive(self) -> None:
        """Takes what link-0 has sent."""
        for one in self.link.receive():
            try:
                if isinstance(one, SessionView):
                    self.take_view(one)
                    self.perform(self.core.follow(one, self.router.now_ms, self.router.now_ms))
                elif isinstance(one, FromWorker):
                    self.exclusive.received(one.worker, cbor2.loads(one.body))
                else:
                    if isinstance(one[1], Take):
                        self.exclusive.look(one[1].key)
                    self.perform(self.core.received(one[0], one[1], self.router.now_ms, self.router.now_ms))
            except PeerFault as fault:
                self.router.log("warning", log_line("message of a node refused", node=one[0], reason=fault))
            except Exception as error:
                self.router.log_failure(log_line("message of a node failed"), error)

    def due(self) -> None:
        """Does what is due, and sends late messages; once a pass, before its effects are recorded."""
        if self.changed:
            changed, self.changed = self.changed, set()
            for uid in changed:
                self.perform(self.core.deliver(
                    self.core.claims.arrived(uid, self.router.now_ms), self.router.now_ms, self.router.now_ms))
        if self.router.now_ms >= self.tick_ms:
            self.tick_ms = self.router.now_ms + TICK_MS
            self.core.claims.refuses_offers = (
                self.router.redirect is not None or self.router.memory_level >= REFUSE or self.router.disk_full)
            self.perform(self.core.tick(self.router.now_ms, self.router.now_ms))
            try:
                self.exclusive.tick()
            except Exception as error:
                self.router.log_failure(log_line("periodic work failed"), error)
            self.trust()
            self.sweep()
        elif self.core.claims.reports:
            self.perform(self.core.deliver(self.core.claims.report(), self.router.now_ms, self.router.now_ms))

    def flush(self) -> None:
        """Sends the messages whose records are durable."""
        cdef Writer writer = None
        if self.router.recorder is not None:
            writer = (<JournalRecorder>self.router.recorder).writer
        while self.outgoing:
            position, node, message = self.outgoing[0]
            # With on_disk_error = continue and a broken disk nothing is written any more.
            if writer is not None and position > writer.durable and writer.next_sequence > writer.durable:
                break
            self.outgoing.popleft()
            if node < 0:
                self.link.send_worker(-1 - node, message)
            else:
                self.link.send(node, message)
        if self.link.waits:
            self.link.flush()

    @property
    def wait_ms(self) -> int:
        """Returns how long the next pass may wait."""
        cdef uint64_t now_ms = self.router.now_ms
        if self.changed or self.core.claims.reports:
            return 0
        if self.link.waits:
            return 1
        return <int>(self.tick_ms - now_ms) if self.tick_ms > now_ms else 0

    cdef uint64_t recorded(self) noexcept:
        return 0 if self.router.recorder is None else (<JournalRecorder>self.router.recorder).writer.next_sequence

    cdef int record(self, Session session) except -1:
        """Records the place of a session that the journal knows."""
        if self.router.recorder is not None and session.known:
            self.router.recorder.placed(session, session.place)
        return 0

    cdef int perform(self, object outputs) except -1:
        """Carries out outputs in order. One that fails costs itself only."""
        for output in outputs:
            try:
                self.carry_out(output)
            except Exception as error:
                self.router.log_failure(log_line("session not moved", step=type(output).__name__), error)
        return 0

    def run(self, outputs) -> None:
        """Carries out outputs that concern an exclusive subscription."""
        self.perform(outputs)

    def post(self, int worker, bytes body not None) -> None:
        """Sends a message to another worker of this node, behind what was recorded before it."""
        self.send(-1 - worker, body)

    cdef int carry_out(self, object output) except -1:
        cdef Session session
        kind = type(output)
        if kind is ToNode:
            return self.send(output.node_id, output.message)
        if self.exclusive.performs(output):
            return 0
        if kind is Accepted:
            return self.accepted(output.ticket, output.uid, output.present)
        if kind is Rejected:
            return self.rejected(output.ticket, output.reason)
        if kind is Create:
            return self.create(output)
        if kind is Import:
            return self.import_session(output)
        session = self.router.by_key.get(output.uid)
        if session is None:
            return 0
        if kind is Flow:
            return self.flow(session)
        if kind is Export:
            return self.export(session, output.generation)
        if kind is MovedAway:
            return self.moved_away(session)
        if kind is Restore:
            return self.restored(session)
        if kind is Kick:
            return self.kick(session)
        if kind is Bind:
            return self.bind(session, output.node_id)
        if kind is EndSession:
            return self.end(session)
        if kind is Forget:
            return self.forget(session)
        if kind is Absorb:
            return self.absorb(session, self.router.by_key.get(output.later))
        if kind is Taken:
            return self.taken(session, set(output.ids))
        if kind is Merge:
            return self.merge(session, output.node_id, output.tail)
        raise TypeError(f"output {output!r}")

    cdef int send(self, int node, object message) except -1:
        if len(self.outgoing) < OUTGOING_MAX:
            self.outgoing.append((self.recorded(), node, message))
        return 0

    # --- evacuation -----------------------------------------------------------------------------------------------------------

    def can_move(self, bytes client_id not None) -> bool:
        """Returns whether a session can be offered: its client id is UTF-8, and it was not found too large."""
        key = self.key_of(client_id)
        return key is not None and key not in self.core.claims.offers.too_large

    def offer(self, bytes client_id not None, nodes) -> bool:
        """Offers the session of an absent client to one of the nodes, or to any if `nodes` is None. Returns whether it was."""
        now_ms = self.router.now_ms
        outputs = self.core.claims.offer(self.key_of(client_id), nodes, now_ms)
        self.perform(self.core.deliver(outputs, now_ms, now_ms))
        return bool(outputs)

    # --- CONNECT --------------------------------------------------------------------------------------------------------------

    cdef int connect(self, object channel, object packet, bytes client_id) except -1:
        cdef Channel waits = channel
        cdef Session session = self.router.sessions.get(client_id)
        key = self.key_of(client_id)
        if key is None:
            return waits.refuse(waits.version, CLIENT_IDENTIFIER_NOT_VALID, "client id must be UTF-8")
        size = len(client_id)
        if packet.will is not None:
            size += len(packet.will.topic) + len(packet.will.payload) + len(encode_properties(packet.will.properties or {}))
        if len(self.waiting) >= WAITING_MAX or self.waiting_bytes + size > WAITING_BYTES_MAX:
            return waits.refuse(waits.version, SERVER_BUSY, "too many clients wait for their sessions")
        if session is not None and (session.link is None or session.expiry_ms == 0):
            self.router.previous_session(client_id)        # it may end now, and would have to be claimed
        self.last_ticket += 1
        ticket = self.last_ticket
        self.waiting[ticket] = (channel, packet, client_id, size)
        self.tickets[channel] = ticket
        self.waiting_bytes += size
        now_ms = self.router.now_ms
        self.perform(self.core.deliver(
            self.core.claims.connect(key, client_id.decode(), bool(packet.clean_start), ticket, now_ms, now_ms), now_ms, now_ms))
        if ticket in self.waiting:
            waits.claiming = True
            waits.suspend_reading()
        return 0

    cdef tuple take_waiting(self, uint64_t ticket):
        cdef tuple found = self.waiting.pop(ticket, None)
        if found is not None:
            self.tickets.pop(found[0], None)
            self.waiting_bytes -= <uint64_t>found[3]
        return found

    cdef int abandoned(self, object channel) except -1:
        ticket = self.tickets.get(channel)
        if ticket is None:
            return 0
        found = self.take_waiting(ticket)
        self.core.claims.abandoned(self.key_of(found[2]), ticket)
        return 0

    cdef int rejected(self, uint64_t ticket, int reason) except -1:
        cdef tuple found = self.take_waiting(ticket)
        cdef Channel channel
        if found is None:
            return 0
        channel = found[0]
        channel.claiming = False
        return channel.refuse(channel.version, reason, REASONS.get(reason, "session not available"))

    cdef int accepted(self, uint64_t ticket, uint64_t uid, bint present) except -1:
        cdef tuple found = self.take_waiting(ticket)
        cdef Session session = self.router.by_key.get(uid)
        cdef Channel channel
        cdef bint late
        if session is None:
            raise RuntimeError(f"session {uid} is not there")
        if found is not None:
            channel = found[0]
            late = channel.claiming
            channel.claiming = False
            if present:
                self.doubt(session)
            if late and present and channel.access is not None and channel.access.login is not None \
                    and not (<Authorization>channel.access).unchecked():
                self.disconnected(session)
                session.set_deadline()
                return self.check_again(channel, found[1])
            self.router.granted = None if present else session
            try:
                admit(channel, <Connect?>found[1], found[2])
                if late:
                    self.go_on(channel)
            except MqttError as error:
                channel.fail(error.reason_code, str(error))
            except Exception as error:
                channel.broken(error)
            finally:
                self.router.granted = None
            if channel.session is session and not session.ended:
                holding = self.core.claims.sessions.get(self.key_of(session.client_id))
                if holding is not None and holding.uid == uid:
                    session.place.stamp = holding.stamp
                    self.record(session)
        if session.link is None and not session.ended:
            if present:
                self.disconnected(session)
                session.set_deadline()
            else:
                self.router.end_session(session, False)
        return 0

    cdef object go_on(self, Channel channel):
        """Continues a login that has waited."""
        cdef Login login = None
        if channel.access is not None:
            login = channel.access.login
        if login is not None:
            login.accepted()
        else:
            channel.resume_reading()

    cdef int disconnected(self, Session session) except -1:
        if self.core.claims.sessions.get(self.key_of(session.client_id)) is not None and self.router.sessions.get(session.client_id) is session:
            self.core.claims.disconnected(self.key_of(session.client_id))
        return 0

    cdef int ended(self, Session session) except -1:
        key = self.key_of(session.client_id)
        holding = self.core.claims.sessions.get(key)
        if holding is not None and holding.uid == session.key:
            self.perform(self.core.deliver(self.core.claims.ended(key), self.router.now_ms, self.router.now_ms))
        return 0

    cdef int check_again(self, Channel channel, object packet) except -1:
        """Continues behind the authentication: the rules decide about the subscriptions of a session that another node has allowed."""
        cdef Login login = channel.access.login
        login.packet = packet
        login.check_and_accept()
        return 0

    # --- ids of messages ------------------------------------------------------------------------------------------------------

    cdef int take_view(self, object view) except -1:
        """While a seed is missing, each session notes what it has had: its client may begin another one there."""
        cdef Session session
        if view.all_up:
            self.linked_ms = self.linked_ms or self.router.now_ms
            return 0
        if self.linked_ms:
            self.linked_ms = 0
            self.watching = True
            for session in self.router.sessions.values():
                if session.place is not None:
                    session.place.watched = True
        return 0

    cdef int note_ids(self, Session session, object seen) except -1:
        session.place.seen = seen
        session.place.watch()
        self.noting[session.key] = session
        return 0

    cdef int doubt(self, Session session) except -1:
        """Takes a client that returns. It may come from another session of its id: one that was merged into this one, or one that
        is not known here yet."""
        cdef Place place = session.place
        place.connected()
        if not place.mixed:
            if self.core.claims.is_settled(self.router.now_ms):
                return 0
            self.doubted[session.key] = session
        place.doubt()
        return 0

    cdef int trust(self) except -1:
        """Ends doubts once each other session has been found."""
        cdef Session session
        if not self.doubted or not self.core.claims.is_settled(self.router.now_ms):
            return 0
        for session in self.doubted.values():
            if not session.place.mixed:
                session.place.to_release = session.place.asked = session.place.answered = 0
                session.pump()
        self.doubted.clear()
        return 0

    cdef int sweep(self) except -1:
        """Ends the noting of ids in sessions that can have no other session any more."""
        cdef Session session
        cdef Place place
        cdef uint64_t now_ms = self.router.now_ms
        cdef int _
        if not self.linked_ms or now_ms - self.linked_ms < <uint64_t>FORGET_MS:
            return 0
        if not self.to_sweep:
            if now_ms < self.sweep_ms:
                return 0
            self.sweep_ms = now_ms + SWEEP_MS
            self.to_sweep = [*self.noting.values()]
            if self.watching:
                self.watching = False
                for session in self.router.sessions.values():
                    if session.place is not None and session.place.seen is None:
                        session.place.watched = False
        for _ in range(min(SWEEP_A_TICK, len(self.to_sweep))):
            session = self.to_sweep.pop()
            place = session.place
            if session.ended:
                self.noting.pop(session.key, None)
            elif place.state == OWNED and (place.generation >> STAMP_BITS) + <uint64_t>FORGET_MS < now_ms:
                place.seen = None
                place.watch()
                self.noting.pop(session.key, None)
                self.record(session)
        return 0

    # --- messages -------------------------------------------------------------------------------------------------------------

    cdef int takes(self, Session session, Publication publication, int qos) except -1:
        cdef Place place = session.place
        cdef int taken = TAKEN if place.behind is None else TAKEN_BEHIND
        if self.merging or publication.stored:
            return TAKEN
        if place.state != OWNED:
            if qos == 0:
                return NOT_TAKEN           # its client is at another node
            if place.seen is not None and not place.seen.take(seen_id(publication.id_high, publication.id_low)):
                return NOT_TAKEN
            self.changed.add(session.key)
            return TAKEN
        if qos == 0:
            return taken
        if place.seen is None:
            if self.linked_ms or len(self.noting) >= NOTING_MAX:
                return TAKEN
            self.note_ids(session, SeenIds((), 0, ids_of(session, True)))
            self.record(session)
        return taken if place.seen.take(seen_id(publication.id_high, publication.id_low)) else NOT_TAKEN

    cdef int flow(self, Session session) except -1:
        """Sends what was held until the former node had sent its tail."""
        session.join_behind()
        return session.pump()

    cdef Session late_session(self, uint64_t uid):
        """Returns a session that is not owned. The cores ask for the queue of a stale one before they return Kick: it is kicked now."""
        cdef Session session = self.router.by_key.get(uid)
        holding = self.core.claims.leaving.get(uid)
        if session is not None and holding is not None and holding.state == STALE and session.place.state != STALE:
            self.kick(session)
        return self.gone.get(uid)

    def queued(self, uid, int most):
        """Returns the first messages of the queue of a session (LateQueues)."""
        cdef Session session = self.late_session(uid)
        found = [] if session is None else first_queued(session, most)
        large = [one for one in found if len(one.body) > MESSAGE_BYTES_MAX]
        if not large:
            return found
        for one in large:
            self.router.log("warning", log_line(
                "late message too large", client_id=session.client_id, topic=one.topic[:TOPIC_SHOWN], bytes=len(one.body)))
        remove_from_queue(session, {one.id for one in large}, True)
        return self.queued(uid, most)

    def delivered_of(self, uid):
        """Returns `base`, and the ids of a session that are not in its queue (LateQueues)."""
        cdef Session session = self.late_session(uid)
        if session is None or session.place.seen is None:
            return 0, ()
        queued = ids_of(session, False)
        return session.place.seen.base, [one for one in session.place.seen.ids if one not in queued]

    # --- outputs: the node of the client -----------------------------------------------------------------------------------------

    cdef int create(self, object output) except -1:
        cdef bytes client_id = output.name.encode()
        cdef Session session = self.router.sessions.get(client_id)
        cdef uint64_t now_ms = self.router.now_ms
        if session is not None:
            self.end(session)
        session = self.router.create_session(client_id)
        session.place = Place(OWNED, output.generation)
        # Beside another session of its client id, what it sends again is not taken for a message of that one.
        session.first_id = randrange(1, PACKET_IDS_END)
        if output.base:
            self.note_ids(session, SeenIds((), id_floor(output.base)))
        elif not self.linked_ms:
            session.place.watched = self.watching = True
        if output.clean:
            session.place.clean_stamp = self.core.clock.now(now_ms)
        self.perform(self.core.deliver(
            self.core.claims.created(output.key, session.key, session.place.clean_stamp, now_ms, now_ms), now_ms, now_ms))
        if session.link is None and not session.ended:
            self.router.end_session(session, False)        # its client has gone meanwhile
        return 0

    cdef int import_session(self, object output) except -1:
        cdef bytes client_id = output.name.encode()
        cdef Session session, old = self.router.sessions.get(client_id)
        cdef Place place
        cdef uint64_t now_ms = self.router.now_ms
        try:
            image, seen = decode_state(output.parts)
            self.router.next_key += 1
            session = read_image(image, self.router, self.router.next_key, True)
            if session.client_id != client_id:
                session.end()
                raise ImageError("it is that of another client id")
        except ImageError as error:
            self.router.log("error", log_line("session not imported", client_id=client_id, reason=error))
            self.perform(self.core.deliver(self.core.claims.import_failed(output.key, now_ms), now_ms, now_ms))
            return 0
        if old is not None:
            self.end(old)
        place = session.place = Place(OWNED, output.generation, 0, seen.clean_stamp, mixed=seen.mixed)
        self.note_ids(session, SeenIds(seen.passed, seen.base, seen.ids, seen.forgotten))
        for one in ids_of(session, True):
            place.seen.add(one)
        place.behind = MQueue.__new__(MQueue)
        self.router.by_key[session.key] = session
        self.enter(session)
        self.enter_subscriptions(session)
        self.router.subacks.routed.append(partial(self.routed, output.key))
        session.logged = session.known = self.router.recorder is not None and session.expiry_ms > 0
        if session.logged:
            (<JournalRecorder>self.router.recorder).snapshot(session)
        self.perform(self.core.deliver(
            self.core.claims.imported(output.key, session.key, seen.clean_stamp, now_ms, now_ms), now_ms, now_ms))
        if session.link is None and not session.ended:
            session.set_deadline()
        return 0

    def routed(self, key) -> None:
        """Takes the moment at which the peers have the routes of an imported session."""
        self.perform(self.core.deliver(self.core.claims.routed(key, self.router.now_ms), self.router.now_ms, self.router.now_ms))

    cdef object enter_subscriptions(self, Session session):
        """Makes the subscriptions of an image those of this worker. Exclusive ones are claimed behind it."""
        cdef Subscription subscription
        subscriptions, session.subscriptions = session.all_subscriptions(), None
        for subscription in subscriptions:
            self.router.subscriptions.subscribe(session, subscription)
        self.exclusive.bring(session)

    cdef int merge(self, Session session, int node, object tail) except -1:
        cdef Place place = session.place
        cdef bint is_new = place.seen is None
        now_ms = self.router.now_ms
        if is_new:
            self.note_ids(session, SeenIds((), 0, ids_of(session, True)))
        if place.behind is not None:
            self.take_from_behind(session, tail)
        base, queue = place.seen.base, ids_of(session, False) if tail.delivered else ()
        result = append(place.seen, queue, tail, self.core.claims.is_settled(now_ms))
        if result is None:
            return 0                       # too early: the sender repeats it
        if result.removed:
            remove_from_queue(session, set(result.removed), True)
        self.merging = True
        try:
            for queued in result.fresh:
                self.deliver_queued(session, queued)
        finally:
            self.merging = False
        if tail.is_last:
            place.merged |= {(node, tail.uid)}
        is_new |= tail.is_stale and not place.mixed
        place.mixed |= tail.is_stale
        if is_new or tail.is_last or place.seen.base != base:
            self.record(session)
        self.perform(self.core.deliver(self.core.claims.merged(node, tail), now_ms, now_ms))
        return 0

    cdef int take_from_behind(self, Session session, object tail) except -1:
        """Takes messages out of `behind` that the tail has too: what follows them in the tail may not overtake them."""
        cdef set again = queue_ids(session.place.behind)
        again.intersection_update([one.id for one in tail.queued])
        if again:
            session.place.behind = without(session, session.place.behind, again, True, True)
            for one in again:
                session.place.seen.discard(one)
        return 0

    cdef bint deliver_queued(self, Session session, object queued) except -1:
        """Delivers a message of another session. False: it cannot be read."""
        cdef Message message
        cdef Publication publication = Publication.__new__(Publication)
        try:
            message, qos, retain, ids = decode_queued(queued)
        except ImageError as error:
            self.router.log("error", log_line("late message not read", client_id=session.client_id, reason=error))
            return False
        publication.borrow(message)
        publication.qos = max(publication.qos, <uint32_t>qos)
        session.deliver(publication, qos, retain, ids, None)
        return True

    # --- outputs: the former holder ------------------------------------------------------------------------------------------------

    cdef int enter(self, Session session) except -1:
        """Gives a session its client id."""
        self.router.sessions[session.client_id] = session
        self.router.gauge(SESSIONS_COUNT, 1)
        return self.router.reporter.note_session(session)

    cdef int leave(self, Session session) except -1:
        """Takes its client id from a session that is not owned any more."""
        if session.key in self.gone:
            return 0
        self.gone[session.key] = session
        session.join_behind()
        if self.router.sessions.get(session.client_id) is session:
            del self.router.sessions[session.client_id]
            self.router.gauge(SESSIONS_COUNT, -1)
            self.router.reporter.note_session(session)
        return self.set_apart(session)

    cdef int set_apart(self, Session session) except -1:
        """Ends timers, and shared subscriptions: what other members can have is theirs. They stay in the session, for its return."""
        cdef Subscription subscription
        if session.timer is not None:
            self.router.timers.disarm(session.timer)
            session.timer.session = None
            session.timer = None
        for subscription in session.all_subscriptions():
            if subscription.group is not None:
                self.router.subscriptions.drop(subscription, 0)
        return 0

    cdef int export(self, Session session, uint64_t generation) except -1:
        cdef Place place = session.place
        cdef object parts = None
        now_ms = self.router.now_ms
        holding = self.core.claims.leaving.get(session.key)
        if session.link is not None:
            self.router.disconnect_taken(session)
        elif session.expires_at_ms and self.router.now_ms >= session.expires_at_ms:
            self.router.end_session(session, True)
        if session.ended:
            self.perform(self.core.deliver(
                self.core.claims.not_exported(session.key, generation, TakeFault.ABSENT, now_ms), now_ms, now_ms))
            return 0
        if session.will is not None and session.will_at_ms and self.router.now_ms >= session.will_at_ms:
            self.router.publish_will(session)
        session.join_behind()
        place.given = ids_of(session, True)
        parts = encode_state(write_image(session), self.seen_before(place))
        place.state, place.peer, place.granted = MOVING, holding.peer, generation
        place.watch()
        self.leave(session)
        self.record(session)
        if parts is None or self.outgoing_bytes() + sum([len(part) for part in parts]) > STATES_MAX:
            self.router.log("warning", log_line("session too large to move", client_id=session.client_id))
            self.perform(self.core.deliver(
                self.core.claims.not_exported(session.key, generation, TakeFault.TOO_LARGE, now_ms), now_ms, now_ms))
            return 0
        self.perform(self.core.deliver(self.core.claims.exported(session.key, generation, parts), now_ms, now_ms))
        return 0

    cdef object seen_before(self, Place place):
        """Returns what the next node has to know about the messages that a session has had."""
        cdef Publication last = Publication.__new__(Publication)
        seen = place.seen or SeenIds()
        self.router.stamp(last)
        passed = Passed(seen.passed.ids)
        for one in (*self.router.passed.ids(), seen_id(last.id_high, last.id_low)):
            passed.note(one)
        ids = [one for one in seen.ids if one not in place.given]
        return SeenBefore(place.clean_stamp, seen.base, passed.ids, seen.forgotten.ids, ids, place.mixed)

    cdef object outgoing_bytes(self):
        return sum([len(getattr(message, "body", b"")) for _, _, message in self.outgoing])

    cdef int moved_away(self, Session session) except -1:
        cdef Place place = session.place
        holding = self.core.claims.leaving[session.key]
        if place.state == MOVING:
            empty_window(session, False)
            remove_from_queue(session, place.given, False)
        place.state, place.given, place.granted, place.peer = GONE, None, 0, holding.peer
        place.generation = holding.generation
        session.will = None
        session.will_at_ms = 0
        session.awaiting_rel = None
        if session.known:
            (<JournalRecorder>self.router.recorder).snapshot(session)
        self.changed.add(session.key)
        return 0

    cdef int restored(self, Session session) except -1:
        cdef Place place = session.place
        cdef Subscription subscription
        cdef uint8_t logged = session.logged
        place.state, place.given, place.granted, place.peer = OWNED, None, 0, 0
        place.mixed = True                 # the other node may have served its client
        place.watch()
        self.gone.pop(session.key, None)
        self.enter(session)
        session.logged = False             # the journal has them
        try:
            for subscription in session.all_subscriptions():
                if subscription.group is not None:
                    self.router.subscriptions.subscribe(session, subscription)
        finally:
            session.logged = logged
        self.record(session)
        self.exclusive.bring(session)
        session.set_deadline()
        return 0

    cdef int kick(self, Session session) except -1:
        cdef Place place = session.place
        holding = self.core.claims.leaving.get(session.key)
        if place.state == STALE:
            return 0
        if session.link is not None:
            self.router.disconnect_taken(session)
        if session.ended:
            self.core.claims.vanished(session.key)
            return 0
        self.exclusive.leave(session)
        place.state, place.given, place.granted = STALE, None, 0
        place.peer = 0 if holding is None else holding.peer
        place.watch()
        self.leave(session)
        empty_window(session, True)
        remove_from_queue(session, set(), False)
        session.will = None
        session.will_at_ms = 0
        if session.known:
            (<JournalRecorder>self.router.recorder).snapshot(session)
        return 0

    cdef int bind(self, Session session, int node) except -1:
        """Notes the node that may merge a stale session from now on."""
        if session.place.peer != node:
            session.place.peer = node
            self.record(session)
        return 0

    cdef int end(self, Session session) except -1:
        """Ends a session: its client has begun another one."""
        if session.link is not None:
            self.router.disconnect_taken(session)
        if not session.ended:
            self.router.end_session(session, False)
        return 0

    cdef int forget(self, Session session) except -1:
        cdef Subscription subscription
        self.gone.pop(session.key, None)
        self.changed.discard(session.key)
        for subscription in session.all_subscriptions():
            if subscription.group is not None:
                session.pop_subscription(subscription.wire_filter)     # in no table since it left
        self.router.subscriptions.end_all(session)
        if session.known:
            self.router.recorder.ended(session, ENDED_MOVED_TO_NODE)
        self.router.by_key.pop(session.key, None)
        return session.end()

    cdef int absorb(self, Session session, Session later) except -1:
        """Has a session that has moved take what an earlier one of its client would have taken, which ends."""
        cdef object seen = session.place.seen
        if later is not None and later.place.seen is not None:
            # Its own ids are known to all that follow it; what its former nodes had passed is not all that came here.
            later.place.seen.passed = Passed(() if seen is None else seen.passed.ids)
            self.record(later)
        return self.forget(session)

    cdef int taken(self, Session session, set ids) except -1:
        hand_over(session, ids)
        if session.place.seen is not None:
            for one in ids:                # they were handed over, not delivered
                session.place.seen.discard(one)
        self.changed.add(session.key)
        return 0
