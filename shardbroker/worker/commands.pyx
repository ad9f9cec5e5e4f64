"""Commands of the manager to a worker, off the hot path: a command arrives through the ring, and the answer returns the same way.

    command   CBOR map: id, verb, args                    answer   CBOR map: id, and result or error: [code, text]

Commands run at the end of a pass, for 1 ms at a time (CommandQueue.run). Each command is bounded: a long list is read page
by page, by client ids of the registry. An answer that is too large for the ring travels in a file of the spill directory, as messages
do.
"""

import os

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t

from shardbroker.journal.writer cimport Writer
from shardbroker.mqtt.spec cimport QUOTA_EXCEEDED
from shardbroker.pubsub.message cimport Message, Publication, make_message
from shardbroker.pubsub.subscriptions cimport OPTION_NO_LOCAL, OPTION_RETAIN_AS_PUBLISHED, OPTION_RETAIN_HANDLING, Subscription, SubscriptionTable
from shardbroker.session.delivery cimport AWAITING_PUBACK, AWAITING_PUBCOMP, AWAITING_PUBREC, DONE, Delivery, DeliveryRing
from shardbroker.session.mqueue cimport MQueue
from shardbroker.session.session cimport Session
from shardbroker.worker.features.delayed cimport id_of
from shardbroker.worker.deferred cimport Deferred
from shardbroker.worker.connection cimport Connection
from shardbroker.worker.one_pass cimport Worker
from shardbroker.worker.packets.subscribe cimport FILTER_WAITS, start_replays, subscribe_one
from shm.address cimport address_text
from shm.events cimport EVENT_EXPIRY_NEVER

from collections.abc import Callable
from itertools import islice
from typing import Any

import cbor2

from shardbroker.hooks.plugins import PluginError
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import encode_properties
from shardbroker.mqtt.spec import PropertyId
from shardbroker.mqtt.topics import EXCLUSIVE
from shardbroker.worker.features.streams import OFFSET
from shm.records import ANSWER, encode_record, encode_spilled, open_record
from shm.spill import read_spilled

__all__ = ["CommandError", "Commands", "command"]

PAGE_BYTES = 1 << 18
"""Most bytes of subscriptions in one answer; the next command returns the following ones."""

DELAYED_PAGE = 500
"""Most delayed messages in one answer."""

MESSAGES_MAX = 500
"""Most messages of a session in one answer."""

SEARCHED_MAX = 10_000
"""Most places of a queue that are searched for the last message of the answer before: as many may have been delivered since."""

STATES = {AWAITING_PUBACK: "puback", AWAITING_PUBREC: "pubrec", AWAITING_PUBCOMP: "pubcomp"}
"""What a message of the inflight window waits for."""

SUBSCRIBERS_MAX = 10_000
"""Most subscribers of one filter in one answer."""

INLINE_BYTES = 8192
"""Largest answer that is sent through the ring, bytes: half of what the smallest ring accepts."""

HANDLERS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {}
"""Functions by verb: function(worker, args)."""


class CommandError(Exception):
    """Raised for a command that fails: a code for programs, and a text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def command(name: str) -> Callable[[Any], Any]:
    """Decorator: registers the function (worker, arguments) -> result of the command `name`."""

    def register(function: Any) -> Any:
        HANDLERS[name] = function
        return function

    return register


class Commands:
    """Executes the commands for one worker."""

    def __init__(self, Worker worker, spill_dir) -> None:
        self.worker = worker
        self._spill_dir = spill_dir
        self._spilled = 0

    def __call__(self, bytes record) -> bytes:
        """Executes the command of a record; returns the record of its answer."""
        number = None
        try:
            _, name, payload = open_record(record)
            if name:
                path, contents = read_spilled(self._spill_dir, name)
                _, _, payload = open_record(contents)
                path.unlink()
            asked = cbor2.loads(payload)
            number = asked["id"]
            handler = HANDLERS.get(asked["verb"])
            if handler is None:
                raise CommandError("NOT_FOUND", f"unknown worker command {asked['verb']!r}")
            answer = {"id": number, "result": handler(self.worker, asked["args"])}
        except CommandError as error:
            answer = {"id": number, "error": [error.code, str(error)]}
        except Exception as error:
            # A programming error fails this command, not the worker.
            answer = {"id": number, "error": ["INTERNAL_ERROR", f"{type(error).__name__}: {error}"]}
        try:
            return self._fitting(encode_record(ANSWER, cbor2.dumps(answer)))
        except Exception as error:         # shared memory has no room for a long one
            return encode_record(ANSWER, cbor2.dumps({"id": number, "error": ["INTERNAL_ERROR", f"{type(error).__name__}: {error}"]}))

    def _fitting(self, bytes record) -> bytes:
        if len(record) <= INLINE_BYTES:
            return record
        self._spilled += 1
        name = f"answer-{self.worker.number}-{os.getpid()}-{self._spilled}"
        (self._spill_dir / name).write_bytes(record)
        return encode_spilled(ANSWER, name.encode())


# --- clients and sessions -----------------------------------------------------------------------------------------------------


cdef Session session_of(Worker worker, bytes client_id):
    session = worker.router.sessions.get(client_id)
    if session is None:
        raise CommandError("CLIENTID_NOT_FOUND", f"no session with client id {client_id.decode(errors='replace')!r}")
    return <Session>session


@command("session")
def describe(Worker worker, dict args) -> dict[str, Any]:
    """Returns the state of one session."""
    cdef Session session = session_of(worker, args["client_id"])
    cdef Connection connection = <Connection>session.link if session.link is not None else None
    cdef dict known = {
        "client_id": session.client_id,
        "connected": connection is not None,
        "created_ms": session.created_ms,
        "expiry_s": min(session.expiry_ms // 1000, <uint64_t>EVENT_EXPIRY_NEVER),
        "subscriptions": session.subscription_count(),
        "subscriptions_max": worker.router.max_subscriptions,
        "inflight": session.inflight,
        "inflight_max": session.window_size(),
        "mqueue": 0 if session.queue is None else session.queue.count,
        "mqueue_max": worker.router.max_mqueue_len,
        "awaiting_rel": 0 if session.awaiting_rel is None else len(session.awaiting_rel),
        "awaiting_rel_max": worker.router.max_awaiting_rel,
        "will": session.will is not None,
        "durable": bool(session.logged),
        "expires_at_ms": 0 if connection is not None else session.expires_at_ms,
    }
    if connection is not None:
        known.update({
            "peer": address_text(&connection.peer), "listener": connection.listener, "version": connection.version,
            "username": connection.username, "keepalive_s": connection.keepalive_s, "clean_start": bool(connection.clean_start),
            "connected_ms": connection.connected_ms, "receive_maximum": connection.receive_maximum,
            "max_packet": connection.max_packet, "output_bytes": connection.out.pending(), "stops": connection.stops,
        })
    return known


@command("sessions")
def describe_many(Worker worker, dict args) -> list[dict[str, Any] | None]:
    """Returns the state of the session of each of `clients`; None for a client without a session."""
    sessions = worker.router.sessions
    return [describe(worker, {"client_id": one}) if sessions.get(one) is not None else None for one in args["clients"]]


@command("session queue")
def queued(Worker worker, dict args) -> dict[str, Any]:
    """Returns `rows` of messages that wait for a client, the next one first, and whether there are `more` behind them. `after`: place of
    the last row before. With `payload`, rows have theirs. Topics and payloads have about `max_bytes`; the first row is there anyway."""
    cdef MQueue queue = session_of(worker, args["client_id"]).queue
    cdef DeliveryRing ring
    cdef uint32_t index
    cdef list rows = []
    cdef object after = args["after"]
    left = min(args["max_bytes"], PAGE_BYTES)
    for priority, lane in () if queue is None or queue.lanes is None else queue.lanes:
        if after is not None and priority > after[0]:
            continue
        ring = <DeliveryRing>lane
        index = place_behind(ring, after[1], after[2]) if after is not None and priority == after[0] else 0
        while index < ring.count:
            if len(rows) >= min(args["limit"], MESSAGES_MAX) or (rows and left <= 0):
                return {"rows": rows, "more": True}
            row = row_of_message(ring.at(index), args["payload"])
            rows.append({**row, "place": [priority, index, row["id"]], "priority": priority})
            left -= len(row["topic"]) + len(row.get("payload", b""))
            index += 1
    return {"rows": rows, "more": False}


@command("session inflight")
def in_flight(Worker worker, dict args) -> dict[str, Any]:
    """Returns the same of messages that are sent and not acknowledged. One that waits for PUBCOMP is gone but for its packet id."""
    cdef Session session = session_of(worker, args["client_id"])
    cdef Delivery* slot
    cdef uint32_t index = 0, place
    cdef list rows = []
    cdef object after = args["after"]
    left = min(args["max_bytes"], PAGE_BYTES)
    if session.window is None:             # it has sent nothing that was to be acknowledged
        return {"rows": rows, "more": False}
    if after is not None:
        for place in range(session.window.count):
            if session.packet_id_at(place) == after[1]:
                index = place + 1
                break
    while index < session.window.count:
        slot = session.window.at(index)
        if slot.state != DONE:
            if len(rows) >= min(args["limit"], MESSAGES_MAX) or (rows and left <= 0):
                return {"rows": rows, "more": True}
            packet_id = session.packet_id_at(index)
            row = {"sent_ms": slot.sent_ms, "packet_id": packet_id, "awaits": STATES[slot.state], "place": [0, packet_id, b""]}
            if slot.message != NULL:
                row.update(row_of_message(slot, args["payload"]))
                left -= len(row["topic"]) + len(row.get("payload", b""))
            rows.append(row)
        index += 1
    return {"rows": rows, "more": False}


cdef uint32_t place_behind(DeliveryRing ring, uint32_t index, bytes id) except? 0xFFFFFFFF:
    """Returns the place behind a message that was at `index`: messages leave at the front, so it is there or before. 0: it has left."""
    cdef uint32_t place, searched
    if ring.count == 0:
        return 0
    place = min(index, ring.count - 1)
    for searched in range(min(place + 1, <uint32_t>SEARCHED_MAX)):
        if id_of(<Message>ring.at(place - searched).message) == id:
            return place - searched + 1
    return 0


cdef dict row_of_message(Delivery* slot, bint with_payload):
    cdef Message message = <Message>slot.message
    cdef dict row = {
        "id": id_of(message), "topic": message.topic, "qos": slot.qos, "retain": bool(slot.retain), "payload_size": message.payload_size,
        "client_id": message.client_id or b"", "expires_ms": message.expires_ms,
    }
    if with_payload:
        row["payload"] = message.payload
    return row


@command("kick")
def kick(Worker worker, dict args) -> list[bool]:
    """Ends connections and sessions of `clients`; returns for each whether it existed. Messages of shared groups are not reassigned."""
    cdef Session session
    cdef Connection connection
    found = []
    for client_id in args["clients"]:
        session = worker.router.sessions.get(client_id)
        found.append(session is not None)
        if session is None:
            continue
        if session.link is not None:
            connection = <Connection>session.link
            if session.expiry_ms == 0:
                session.expiry_ms = 1000   # or the session would end with its connection and reassign its messages
            connection.kicked(args.get("reason", "kicked"))
        if worker.router.sessions.get(client_id) is session:
            worker.router.end_session(session, False)
    return found


# --- subscriptions ------------------------------------------------------------------------------------------------------------


cdef dict row_of(Session session, Subscription subscription):
    return {
        "client_id": session.client_id, "topic": subscription.wire_filter, "qos": subscription.qos,
        "nl": subscription.flags & OPTION_NO_LOCAL != 0, "rap": subscription.flags & OPTION_RETAIN_AS_PUBLISHED != 0,
        "rh": (subscription.flags & OPTION_RETAIN_HANDLING) >> 4, "identifier": subscription.identifier,
    }


@command("subscriptions")
def subscriptions(Worker worker, dict args) -> dict[str, Any]:
    """Returns at most `limit` subscriptions of `clients`, starting at position `start` of the first client.

    `next` is the position to continue from: [index of the client in the list, index of the subscription], or None.
    """
    cdef Session session
    cdef Subscription subscription
    cdef uint64_t size = 0
    cdef int limit = args["limit"]
    rows: list[dict[str, Any]] = []
    start = args["start"]
    for place, client_id in enumerate(args["clients"]):
        session = worker.router.sessions.get(client_id)
        if session is None:
            start = 0
            continue
        for at, found in enumerate(session.all_subscriptions()[start:], start):
            if len(rows) >= limit or size >= <uint64_t>PAGE_BYTES:
                return {"rows": rows, "next": [place, at]}
            subscription = <Subscription>found
            rows.append(row_of(session, subscription))
            size += PyBytes_GET_SIZE(subscription.wire_filter) + PyBytes_GET_SIZE(session.client_id) + 64
        start = 0
    return {"rows": rows, "next": None}


@command("subscribers")
def subscribers(Worker worker, dict args) -> dict[str, Any]:
    """Returns the subscriptions with exactly this filter, without those of shared groups unless `group` is given."""
    cdef bytes filter = args["filter"]
    cdef SubscriptionTable table = worker.router.subscriptions.table
    present = table.filters.get(filter) if args["group"] is None else table.shared.get((args["group"], filter))
    found = [] if present is None else [present] if isinstance(present, Subscription) else (<dict>present).values()
    rows = [row_of(<Session>(<Subscription>one).subscriber, <Subscription>one) for one in islice(found, SUBSCRIBERS_MAX)]
    return {"rows": rows, "more": max(len(found) - SUBSCRIBERS_MAX, 0)}


@command("subscribe")
def subscribe(Worker worker, dict args) -> list[int]:
    """Subscribes a connected client as SUBSCRIBE does; returns the SUBACK code of each of `topics` (filter, options)."""
    cdef Session session = session_of(worker, args["client_id"])
    cdef Connection connection
    if session.link is None:
        raise CommandError("CLIENTID_NOT_FOUND", "the client is not connected")
    connection = <Connection>session.link
    subscribed: list[Any] = []
    replays: list[Any] = []
    # Without the mount point of its listener: operators use the topics of the broker.
    codes = [subscribed_code(connection, filter, options, subscribed, replays) for filter, options in args["topics"]]
    worker.router.commit(True)
    start_replays(worker.router, session, replays)
    # In a cluster an exclusive subscription waits for other nodes, and a command does not.
    return [QUOTA_EXCEEDED if code == FILTER_WAITS else code for code in codes]


cdef int subscribed_code(Connection connection, bytes wire_filter, int options, list subscribed, list replays) except -1:
    try:
        return subscribe_one(connection, wire_filter, options, 0, OFFSET, subscribed, replays)
    except MqttError as error:
        return error.reason_code


@command("unsubscribe")
def unsubscribe(Worker worker, dict args) -> list[bool]:
    """Removes subscriptions of a session; returns for each of `topics` whether it existed."""
    cdef Session session = session_of(worker, args["client_id"])
    found = []
    for wire_filter in args["topics"]:
        wire_filter = wire_filter.removeprefix(EXCLUSIVE)
        was_there = worker.router.subscriptions.unsubscribe(session, wire_filter, 0)
        if was_there and session.logged:
            worker.router.recorder.unsubscribed(session, wire_filter)
        found.append(was_there)
    worker.router.commit(True)
    return found


# --- messages -----------------------------------------------------------------------------------------------------------------


@command("publish")
def publish(Worker worker, dict args) -> dict[str, Any]:
    """Publishes a message as a client does; returns its id and whether the topic has subscribers."""
    cdef Publication stamped = Publication.__new__(Publication)
    cdef Message message
    cdef bytes topic, client_id = args["client_id"]
    cdef uint64_t at_ms, expires_ms
    cdef bint has_subscribers = True
    given = {PropertyId(number): value for number, value in args["properties"].items()}
    for pair in args["user_properties"]:
        given.setdefault(PropertyId.USER_PROPERTY, []).append(tuple(pair))
    properties = encode_properties(given)
    payload_format = given.get(PropertyId.PAYLOAD_FORMAT_INDICATOR, 0)
    expires_ms = 0 if args["expiry_s"] is None else worker.router.now_ms + <uint64_t>args["expiry_s"] * 1000
    worker.router.stamp(stamped)
    id = stamped.id_high.to_bytes(8, "big") + stamped.id_low.to_bytes(8, "big")
    message = make_message(
        args["topic"], args["payload"], properties, client_id, id, expires_ms, args["qos"], args["retain"], payload_format, 0)
    try:
        topic = worker.router.admission.admit(message, None, &at_ms)
    except MqttError as error:
        raise CommandError("BAD_REQUEST", f"topic: {error}") from None
    if at_ms:
        reason = worker.router.retries.refusal()
        if reason is not None:
            raise CommandError("NOT_AVAILABLE", reason)
    if topic != message.topic:
        message = make_message(
            topic, args["payload"], properties, client_id, id, expires_ms, args["qos"], args["retain"], payload_format, 0)
    if not at_ms:
        has_subscribers = worker.router.has_subscribers(topic)
    worker.router.publish_message(message, None, at_ms)
    return {"id": id, "heard": has_subscribers}


# --- delayed messages ----------------------------------------------------------------------------------------


cdef dict row_of_delayed(Deferred deferred):
    cdef Message message = deferred.message
    return {
        "id": id_of(message), "order": deferred.order, "at_ms": deferred.at_ms, "topic": message.topic, "qos": message.qos,
        "retain": bool(message.retain), "payload_size": message.payload_size, "client_id": message.client_id or b"",
    }


@command("delayed list")
def list_delayed(Worker worker, dict args) -> list[dict[str, Any]]:
    """Returns at most `limit` delayed messages with an order above `after`; an empty list is the end."""
    cdef uint64_t size = 0
    rows: list[dict[str, Any]] = []
    for deferred in worker.router.retries.delays.page(args["after"], min(args["limit"], DELAYED_PAGE)):
        rows.append(row_of_delayed(<Deferred>deferred))
        size += (<Deferred>deferred).message.topic_size
        if size >= <uint64_t>PAGE_BYTES:
            break
    return rows


@command("delayed show")
def show_delayed(Worker worker, dict args) -> dict[str, Any] | None:
    """One by its message id, with its payload; None if it does not wait here."""
    cdef Deferred deferred = worker.router.retries.delays.find(args["id"])
    return None if deferred is None else {**row_of_delayed(deferred), "payload": deferred.message.payload}


@command("delayed delete")
def delete_delayed(Worker worker, dict args) -> bool:
    """Whether it waited here."""
    cdef Deferred deferred = worker.router.retries.delays.find(args["id"])
    if deferred is not None:
        worker.router.retries.forget(deferred)
    return deferred is not None


# --- the worker itself ----------------------------------------------------------------------------------------------------------


@command("journal")
def journal(Worker worker, dict args) -> dict[str, Any]:
    """State of the journal; empty without one."""
    return {} if worker.durability.recorder is None else journal_state(worker.durability.recorder.writer)


@command("journal seal")
def seal_journal(Worker worker, dict args) -> dict[str, Any]:
    """Closes the segment that is written to: everything up to `durable` can be read from closed segments."""
    cdef Writer writer
    if worker.durability.recorder is None:
        raise CommandError("NOT_AVAILABLE", "no journal (durability.level = none)")
    writer = worker.durability.recorder.writer
    worker.router.commit(False)
    worker.durability.settle()
    if not writer.end_segment() and writer.next_sequence != writer.first_sequence:
        raise CommandError("TRY_AGAIN", writer.problem or "previous segment is not synced yet")
    return journal_state(writer)


cdef dict journal_state(Writer writer):
    return {
        "next_sequence": writer.next_sequence, "durable": writer.durable, "pending_bytes": writer.pending,
        "bytes_written": writer.bytes_written, "blocks_written": writer.blocks_written, "segments": writer.segment,
        "problem": writer.problem,
    }


@command("plugin load")
def load_plugin(Worker worker, dict args) -> list[str]:
    """Loads a plugin, in place of the one of this name; the hook points that it uses, or used before."""
    try:
        return worker.router.hooked.plugins.load(args["name"], args["settings"], args["dir"])
    except PluginError as error:
        raise CommandError("BAD_REQUEST", str(error)) from None


@command("plugin keep")
def keep_plugin(Worker worker, dict args) -> None:
    """It was loaded in every worker."""
    worker.router.hooked.plugins.keep(args["name"])


@command("plugin revert")
def revert_plugin(Worker worker, dict args) -> None:
    """It could not be loaded in every worker."""
    worker.router.hooked.plugins.revert(args["name"], args["wanted"])


@command("plugin unload")
def unload_plugin(Worker worker, dict args) -> list[str] | None:
    """The hook points that it used; None if it was not loaded here."""
    return worker.router.hooked.plugins.unload(args["name"])


@command("hooks")
def hooks(Worker worker, dict args) -> dict[str, Any]:
    """Plugins and callbacks."""
    return worker.router.hooked.plugins.state()


@command("feed")
def feed(Worker worker, dict args) -> None:
    """Makes `events` the ones that are journalled for rules."""
    worker.router.hooked.event_feed.take(args["events"])


@command("streams")
def streams(Worker worker, dict args) -> None:
    """Makes `streams` the named streams in force."""
    worker.router.journal_replays.take_streams(args["streams"])


@command("stream subscribers")
def stream_subscribers(Worker worker, dict args) -> dict[str, int]:
    """Returns the number of subscriptions of connected clients, by stream."""
    return worker.router.journal_replays.subscribers()


@command("event")
def event(Worker worker, dict args) -> bool:
    """Journals an event of the manager; returns whether there is a journal to write to."""
    worker.router.hooked.event_feed.note(args["event"], "", args["columns"], args["at_ms"])
    return worker.router.recorder is not None and worker.router.serving


@command("ping")
def ping(Worker worker, dict args) -> dict[str, Any]:
    """A sign of life."""
    return {"pid": os.getpid()}
