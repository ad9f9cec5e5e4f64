"""Rows as messages to another MQTT broker.

Rows of QoS 0 and 1 are sent by lane, all of a batch at once, and are done when the server has acknowledged them. With QoS 2 each
journal has a lane of its own, and packet ids are kept (mqtt_book.py), so that a row is delivered once whichever side is killed.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shardbroker.config.sinks.mqtt import MqttAction, MqttConnector, MqttSource
from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.mqtt import Mqtt
from shardbroker.connectors.mqtt_client import Message, MqttClient, MqttRefused
from shardbroker.flows.drivers.mqtt_book import DIRECTORY, Book, Place, read_books, reserved_ids
from shardbroker.flows.drivers.mqtt_messages import Messages
from shardbroker.flows.drivers.mqtt_received import ReceivedIds
from shardbroker.flows.drivers.mqtt_source import Intake, MqttIn
from shardbroker.flows.sinks.driver import ConnectorDriver, Failure, Unusable
from shardbroker.flows.sinks.lane import lane_of
from shardbroker.flows.sinks.limits import Limits
from shardbroker.flows.sinks.row import Row
from shardbroker.mqtt.spec import FAILURE, REASON_CODES, ReasonCode

__all__ = ["MqttSink", "connect", "make", "make_source"]

BATCH_MAX = 1000
"""Rows of a batch of QoS 2: their ids are reserved together, out of the 65,535 of a session."""
AGAIN = frozenset({ReasonCode.QUOTA_EXCEEDED, ReasonCode.PACKET_IDENTIFIER_IN_USE, ReasonCode.RECEIVE_MAXIMUM_EXCEEDED})
"""Reason codes of a row that another attempt may change."""
SETTLE_S, LOOK_S = 10.0, 0.05
"""How long rows of other actions under way are waited for, and time between two looks."""
RETRY_MAX_S = 60.0
"""Longest delay between attempts to connect."""
DUP = 8


class _Server(Mqtt):
    """Raises Unusable in place of MqttRefused, and keeps ids of QoS 2 that rows have."""

    def __init__(self, settings: MqttConnector, key: str) -> None:
        super().__init__(settings, key)
        self.data_dir = Path()
        self.drivers: list[MqttIn] = []
        """Of all sources."""
        self.inlets: list[MqttIn] = []
        """Those that receive."""
        self._intakes: dict[int, Intake] = {}

    def client_of(self, slot: int) -> MqttClient:
        client = super().client_of(slot)
        slot %= self.size
        if slot not in self._intakes:
            id, is_lasting = client.login.client_id.decode(), self.identity is not None
            self._intakes[slot] = Intake(client, self, ReceivedIds(self.data_dir if is_lasting else None, id, self.is_synced))
            for packet_id in reserved_ids(self.data_dir, id) if is_lasting else ():
                client.reserve(packet_id)
        return client

    def intake_of(self, slot: int) -> Intake:
        """Returns what receives for the client of a slot."""
        self.client_of(slot)
        return self._intakes[slot % self.size]

    async def _close(self) -> None:
        await super()._close()
        for intake in self._intakes.values():
            intake.close()

    async def probe(self) -> None:
        try:
            await super().probe()
        except MqttRefused as error:
            raise Unusable(f"{self.settings.server}: {error}") from error

    async def connected(self, slot: int) -> MqttClient:
        try:
            return await super().connected(slot)
        except MqttRefused as error:
            raise Unusable(f"{self.settings.server}: {error}") from error


def connect(settings: MqttConnector, key: str) -> Mqtt:
    """Raises ConnectionSettingError."""
    return _Server(settings, key)


def make(action: MqttAction, connector: Mqtt, id: str) -> "MqttSink":
    """Raises ValueError."""
    assert isinstance(connector, _Server)
    return MqttSink(action, connector, id)


def make_source(source: MqttSource, connector: Mqtt, id: str) -> MqttIn:
    """Raises ValueError."""
    assert isinstance(connector, _Server)
    return MqttIn(source, connector, id, connector.settings.server)


class MqttSink(ConnectorDriver[_Server]):
    """The driver of an action."""

    def __init__(self, action: MqttAction, connector: _Server, id: str) -> None:
        super().__init__(connector)
        parameters = action.parameters
        self._name = id.partition(":")[2]
        self._messages = Messages(
            parameters.topic, parameters.payload, parameters.qos, parameters.retain, connector.version, connector.origin
        )
        self._lanes = action.resource_opts.worker_pool_size
        self.stores_cursor = parameters.exactly_once
        self.cursor_key = ""
        self._books: dict[str, Book] | None = None

    def limits(self, limits: Limits) -> Limits:
        """Returns limits with the delays of a bridge, and with batches of QoS 2 whose ids a session has."""
        least_s = self._connector.settings.reconnect_interval
        batch = min(limits.batch_size, BATCH_MAX) if self.stores_cursor else limits.batch_size
        return replace(limits, batch_size=batch, retry_min_s=least_s, retry_max_s=max(least_s, RETRY_MAX_S))

    # --- batches --------------------------------------------------------------------------------------------------------------

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Raises Unusable, ConnectorError, OSError."""
        if self.stores_cursor:
            return await self._write_once(rows)
        client = await self._connector.connected(lane_of(rows[0].client, self._lanes))
        failures: list[Failure] = []
        made = self._made(rows, client, failures)
        codes = await client.publish([message for _, message in made])
        if any(codes):
            failures += [
                Failure(at, _rejected(code), again=code in AGAIN)
                for (at, _), code in zip(made, codes, strict=True)
                if code >= FAILURE
            ]
        return failures

    def _made(self, rows: Sequence[Row], client: MqttClient, failures: list[Failure]) -> list[tuple[int, Message]]:
        """Returns the place of each row that is to be sent, with its message; notes those that cannot be made."""
        connector = self._connector
        found: list[tuple[int, Message]] = self._messages.of(rows, client.limits, connector.of_sources, connector.sources, failures)
        return found

    # --- QoS 2 ----------------------------------------------------------------------------------------------------------------

    async def stored(self) -> Mapping[str, int]:
        """Raises Unusable."""
        books = self._all_books()
        return {journal: book.done[0] for journal, book in books.items() if book.done[0] >= 0}

    def _all_books(self) -> dict[str, Book]:
        if self._books is None:
            self._books = read_books(self._connector.data_dir, self._name, self.cursor_key, self._connector.is_synced)
        return self._books

    def _book_of(self, journal: str, client: MqttClient) -> Book:
        books = self._all_books()
        book = books.get(journal)
        id = client.login.client_id.decode()
        if book is None:
            path = self._connector.data_dir / DIRECTORY / f"{self._name}-{journal}"
            book = books[journal] = Book(path, self.cursor_key, id, self._connector.is_synced)
        elif book.client != id:  # other settings: the session with these ids is not used any more
            book.client = id
            book.pending.clear()
        return book

    async def _write_once(self, rows: Sequence[Row]) -> list[Failure]:
        """Sends as many rows at a time as the server takes, and completes them before the next ones.

        Actions and journals of one client take turns, so that no more ids are in use at the server than it takes, also after a
        loss.
        """
        client = await self._connector.connected(int(rows[0].journal))
        book = self._book_of(rows[0].journal, client)
        failures: list[Failure] = []
        places: list[Place] = [(row.position, row.number) for row in rows]
        made = [(at, message) for at, message in self._made(rows, client, failures) if places[at] > book.done]
        failures = [one for one in failures if places[one.at] > book.done]
        wanted, waited_s = {places[at] for at, _ in made}, 0.0
        while True:
            async with client.turn:
                await self._resume(book, client, wanted)
                if not made:
                    break
                await client.wait_for_room()
                others = client.reserved - set(book.pending.values())
                room = client.room - len(others)
                if room > 0:
                    part, made, waited_s = made[:room], made[room:], 0.0
                    failures += await self._send(book, client, part, places)
                    continue
                if waited_s > SETTLE_S:  # of an action that was removed while its rows were under way
                    await client.release(sorted(others))
            await asyncio.sleep(LOOK_S)
            waited_s += LOOK_S
        book.done = max(book.done, places[-1])
        return failures

    async def _resume(self, book: Book, client: MqttClient, wanted: set[Place]) -> None:
        """Completes what the server has received on an earlier connection, and ends rows that were sent and will not come again,
        since a rule was changed: later ones are here. The server answers also for ids that it does not know."""
        if book.connection != client.connections:
            for packet_id in book.pending.values():
                client.reserve(packet_id)
            received = book.received
            await client.release(received)
            book.forget(received)
            book.connection = client.connections
        last = max(wanted, default=book.done)
        missing = [packet_id for place, packet_id in book.pending.items() if place not in wanted and place < last]
        await client.release(missing)
        book.forget(missing)

    async def _numbered(
        self, book: Book, client: MqttClient, part: list[tuple[int, Message]], places: list[Place]
    ) -> list[tuple[int, Message]]:
        """Returns the messages with ids, which are in the book: those that they had before, or new ones."""
        known = set(book.pending)
        new = [places[at] for at, message in part if message.flags & 4 and places[at] not in known]
        if new:
            book.pending.update(zip(new, client.take_ids(len(new)), strict=True))
            await self._kept(book.save)
        return [
            (at, Message(message.flags | (DUP if places[at] in known else 0), book.pending[places[at]], *message[2:]))
            if message.flags & 4
            else (at, message)
            for at, message in part
        ]

    async def _send(self, book: Book, client: MqttClient, part: list[tuple[int, Message]], places: list[Place]) -> list[Failure]:
        """Sends messages and completes them; returns those that the server rejects.

        Whatever ends this early ends the connection: a message of QoS 2 is sent again only on another one (MQTT 5.0 §4.4).
        """
        try:
            part = await self._numbered(book, client, part, places)
            codes = await client.publish([message for _, message in part])
            if again := next((code for code in codes if code in AGAIN), 0):
                raise ConnectorError(_rejected(again))
            ids = [(message.packet_id, code) for (_, message), code in zip(part, codes, strict=True) if message.flags & 4]
            received = [packet_id for packet_id, code in ids if code < FAILURE]
            rejected = [packet_id for packet_id, code in ids if code >= FAILURE]
            book.done = max(book.done, places[part[-1][0]])
            book.forget(rejected)
            if ids:
                await self._kept(book.mark)
            for packet_id in rejected:
                client.free_id(packet_id)
            await client.release(received)
            book.forget(received)
        except BaseException:
            client.drop(ConnectorError("messages of QoS 2 are sent again"))
            raise
        return [Failure(at, _rejected(code)) for (at, _), code in zip(part, codes, strict=True) if code >= FAILURE]

    async def _kept(self, write: Callable[[], None]) -> None:
        """Writes; in a thread if that waits for the disk."""
        if self._connector.is_synced:
            await _in_thread(write)
        else:
            write()

    async def close(self) -> None:
        """Closes files."""
        for book in (self._books or {}).values():
            book.close()


async def _in_thread(call: Callable[[], None]) -> None:
    """Calls it in a thread, since it waits for the disk; to its end also if the wait is given up."""
    work = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def _rejected(code: int) -> str:
    name = REASON_CODES[code][0].replace("_", " ") if code in REASON_CODES else "unknown reason"
    return f"rejected by the server: {name} (0x{code:02x})"


