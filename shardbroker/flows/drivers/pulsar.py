"""Rows as messages of Pulsar topics, sent together and acknowledged one by one.

    rows of a batch --> topic, key, value --> partition by the key --> producer of the partition --> server
                                                                       open ones: at most `max_producers` without use

Each partition has a producer of its own, made when it is first needed: a sequence of messages to one producer is stored in order. A
batch is done when all of its messages are acknowledged. One with a message whose fate is not known is sent again as a whole, so
that messages of a key stay in order.

With `exactly_once`, producers have fixed names, by action and journal, and a message has the position of its row as its sequence
id. The server keeps the last one of each name and topic, and drops what is not above it. Messages are not stored together then: the
server judges a batch by its first message, and would drop the new ones behind an old one.
"""

import asyncio
import random
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import _pulsar

from shardbroker.config.sinks.pulsar import PulsarAction, PulsarConnector, PulsarParameters
from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.pulsar import REASONS, Pulsar, PulsarError, Sends
from shardbroker.flows.drivers.getters import Getter, encoded, placeholders, rendered
from shardbroker.flows.drivers.pulsar_service import WRONG_TOPIC, PulsarService
from shardbroker.flows.drivers.pulsar_source import make_source
from shardbroker.flows.sinks.driver import Driver, Failure, Unusable
from shardbroker.flows.sinks.json_bytes import json_bytes
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import UNDEFINED, EvaluationError

__all__ = ["connect", "java_hash", "make", "make_source"]

Result = _pulsar.Result
WHOLE_ROW = ("", "${.}")
TOPIC_MAX = 512
"""Most characters of the name of a topic: Pulsar makes a path of it in its metadata."""
OF_PARTITION = re.compile(r"-partition-\d+$")
TOGETHER = 64
"""Topics of a batch that are written at a time: their producers may exceed `max_producers` for so long."""
LOOK_S = 60.0
"""Between two looks at the number of partitions of a topic, as the library itself does."""
TOPICS_KEPT = 10_000
"""Topics whose number of partitions is kept."""
PARTITIONS_MAX = 10_000
KEYS_KEPT = 65_536
"""Keys whose hash is kept: clients publish more than once."""
ROWS_OF_RECORD = 1024
"""Rows of one record that have sequence ids: those of a record are its position times this, and the number of the row."""
DELAY_MS = 1000
"""Longest wait of the library for a full batch; each batch of rows ends it."""
COMPRESSIONS = {
    "no_compression": _pulsar.CompressionType.NONE, "lz4": _pulsar.CompressionType.LZ4, "zlib": _pulsar.CompressionType.ZLib,
    "zstd": _pulsar.CompressionType.ZSTD, "snappy": _pulsar.CompressionType.SNAPPY,
}  # fmt: skip


def connect(settings: PulsarConnector, key: str) -> PulsarService:
    return PulsarService(settings, key)


def make(action: PulsarAction, connector: PulsarService, id: str) -> Driver:
    parameters = action.parameters
    if not parameters.pulsar_topic:
        must = "a topic such as persistent://public/default/readings, or a template of one"
        raise ValueError(f"{id}: parameters.pulsar_topic: must be {must}, got ''")
    if parameters.exactly_once and parameters.strategy != "key_dispatch":
        raise ValueError(f"{id}: parameters.strategy: must be key_dispatch with exactly_once, got {parameters.strategy!r}")
    return PulsarSink(parameters, connector, id)


class _Impossible(Exception):
    """A row that cannot be a message; the text has no value of it."""


# --- messages ---------------------------------------------------------------------------------------------------------------------


def _topic(text: str) -> Callable[[Row], str]:
    """Returns what makes the name of the topic of a row. Values of clients are encoded: they name no other tenant or namespace."""
    parts = placeholders(text)
    if all(isinstance(one, str) for one in parts):
        return lambda row: text

    def name(row: Row) -> str:
        found = "".join([one if isinstance(one, str) else quote(encoded(one(row)), safe="") for one in parts])
        if len(found) > TOPIC_MAX:
            raise _Impossible(f"the name of the topic is longer than {TOPIC_MAX} characters")
        if OF_PARTITION.search(found):
            raise _Impossible("the name of the topic is that of a partition")
        return found

    return name


def _alone(text: str) -> Getter | None:
    """Returns the getter of a template that is one placeholder."""
    parts = placeholders(text)
    return parts[0] if len(parts) == 1 and not isinstance(parts[0], str) else None


def _optional(text: str) -> Callable[[Row], str | None]:
    """Returns what makes the text of a template; None for a placeholder alone whose field is missing."""
    made, alone = rendered(text), _alone(text)

    def find(row: Row) -> str | None:
        return None if alone is not None and alone(row) is UNDEFINED else made(row).decode()

    return find


def _value(text: str) -> Callable[[Row], bytes]:
    if text.strip() in WHOLE_ROW:
        return lambda row: json_bytes(row.values)
    made: Callable[[Row], bytes] = rendered(text)
    return made


@lru_cache(KEYS_KEPT)
def java_hash(text: str) -> int:
    """Returns String.hashCode() of Java, without its sign: what Java's clients choose a partition by."""
    data = text.encode("utf-16-be", "surrogatepass")
    found = 0
    for at in range(0, len(data), 2):
        found = (31 * found + (data[at] << 8) + data[at + 1]) & 0xFFFFFFFF
    return found & 0x7FFFFFFF


def _is_together(parameters: PulsarParameters) -> bool:
    return parameters.batching != "none" and not parameters.exactly_once


class _Messages:
    """Makes the message of a row."""

    def __init__(self, parameters: PulsarParameters) -> None:
        self._key = _optional(parameters.message.key) if parameters.message.key else None
        self._value = _value(parameters.message.value)
        self._properties = [(name, _optional(text)) for name, text in parameters.properties.items()]
        self._has_sequence = parameters.exactly_once

    def of(self, row: Row) -> tuple[Any, str]:
        """Returns a message, and its key, or the publisher in place of one. Raises what `made_of` names."""
        builder = _pulsar.MessageBuilder()
        builder.content(self._value(row))
        key = self._key(row) if self._key is not None else None
        if key:
            builder.partition_key(key)
        for name, find in self._properties:
            found = find(row)
            if found is not None:
                builder.property(name, found)
        if row.at_ms > 0:
            builder.event_timestamp(row.at_ms)
        if self._has_sequence:
            if row.number >= ROWS_OF_RECORD:
                raise _Impossible(f"a record has more than {ROWS_OF_RECORD} rows, which is the most with exactly_once")
            builder.sequence_id(row.position * ROWS_OF_RECORD + row.number)
        return builder.build(), key or row.client


@dataclass(slots=True)
class _Ready:
    """A row that can be sent."""

    at: int
    row: Row
    message: Any
    hashed: int
    journal: str


# --- producers --------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Partition:
    """The producer of a partition, or its making."""

    opening: asyncio.Task[Any]
    users: int = 0


@dataclass(slots=True, eq=False)
class _Producers:
    """The producers of an action over one client. name_of: the fixed name for a journal and a number of partitions; or empty."""

    connector: Pulsar
    client: Any
    parameters: PulsarParameters
    name_of: Callable[[str, int], str]
    proven: set[tuple[str, str]]
    """(partition, journal) whose messages the server is known to deduplicate."""
    partitions: OrderedDict[str, tuple[list[str], float]] = field(default_factory=OrderedDict)
    """Topic -> its partitions, and when they were looked up."""
    open: OrderedDict[tuple[str, str], _Partition] = field(default_factory=OrderedDict)
    """(partition, journal) -> producer, the least recently used one first."""
    closing: set[asyncio.Task[None]] = field(default_factory=set)

    async def partitions_of(self, topic: str) -> list[str]:
        """Returns the names of the partitions of a topic: its own if it has none. Raises PulsarError, TimeoutError."""
        now_s = asyncio.get_running_loop().time()
        known = self.partitions.get(topic)
        if known is not None and now_s - known[1] < LOOK_S:
            return known[0]
        found: list[str] = await self.connector.request(self.client.get_topic_partitions_async, topic)
        if len(found) > PARTITIONS_MAX:
            raise ConnectorError(f"{self.connector.where}: the topic has more than {PARTITIONS_MAX} partitions")
        self.partitions[topic] = found, now_s
        self.partitions.move_to_end(topic)
        if len(self.partitions) > TOPICS_KEPT:
            self.partitions.popitem(last=False)
        return found

    async def take(self, partition: str, journal: str, count: int) -> Any:
        """Returns the producer of a partition, in use until give() is called. Raises PulsarError, TimeoutError."""
        key = partition, journal
        one = self.open.get(key)
        if one is None:
            self._make_room()
            one = _Partition(asyncio.get_running_loop().create_task(self._create(partition, journal, count)))
            self.open[key] = one
        self.open.move_to_end(key)
        one.users += 1
        try:
            return await asyncio.shield(one.opening)
        except BaseException:
            one.users -= 1
            if one.opening.done() and self.open.get(key) is one:
                del self.open[key]
            raise

    def give(self, partition: str, journal: str) -> None:
        one = self.open.get((partition, journal))
        if one is not None:
            one.users -= 1

    def _make_room(self) -> None:
        """Closes producers that have not been used for the longest time."""
        excess = len(self.open) - self.parameters.max_producers + 1
        if excess > 0:
            idle = [key for key, one in self.open.items() if not one.users and one.opening.done()]
            for key in idle[:excess]:
                self._end(self.open.pop(key))

    def _end(self, one: _Partition) -> None:
        if one.opening.done() and not one.opening.cancelled() and one.opening.exception() is None:
            task = asyncio.get_running_loop().create_task(self._close(one.opening.result()))
            self.closing.add(task)
            task.add_done_callback(self.closing.discard)

    async def _close(self, producer: Any) -> None:
        with suppress(ConnectorError, TimeoutError):
            await self.connector.request(producer.close_async)

    async def replace(self, partition: str, journal: str, count: int) -> None:
        """Closes the producer of a partition, and makes a new one with its name. Raises PulsarError, TimeoutError."""
        one = self.open.pop((partition, journal), None)
        if one is not None:
            await self._close(await one.opening)
        await self.take(partition, journal, count)
        self.give(partition, journal)

    async def close(self) -> None:
        """Closes all producers; returns when the server has answered, or after the time limit of the connector."""
        for one in self.open.values():
            one.opening.cancel()
            self._end(one)
        self.open.clear()
        if self.closing:
            await asyncio.wait(self.closing)

    async def _create(self, partition: str, journal: str, count: int) -> Any:
        parameters, name = self.parameters, self.name_of(journal, count)
        made = _pulsar.ProducerConfiguration()
        made.send_timeout_millis(0)  # the wait for an answer is that of Sends
        made.max_pending_messages(0)  # as many as batches have
        made.compression_type(COMPRESSIONS[parameters.compression])
        made.batching_enabled(_is_together(parameters))
        made.batching_type(
            _pulsar.BatchingType.KeyBased if parameters.batching == "key_based" else _pulsar.BatchingType.Default
        )
        made.batching_max_messages(parameters.batch_size)
        made.batching_max_allowed_size_in_bytes(parameters.max_batch_bytes)
        made.batching_max_publish_delay_ms(DELAY_MS)
        if name:
            made.producer_name(name)
        producer = await self.connector.request(self.client.create_producer_async_v2, partition, made)
        if name and producer.last_sequence_id() >= 0:
            self.proven.add((partition, journal))
        return producer


# --- the driver -------------------------------------------------------------------------------------------------------------------


class PulsarSink:
    """The driver of an action."""

    def __init__(self, parameters: PulsarParameters, connector: PulsarService, id: str) -> None:
        self._parameters, self._connector = parameters, connector
        self._topic = _topic(parameters.pulsar_topic)
        self._is_constant = all(isinstance(one, str) for one in placeholders(parameters.pulsar_topic))
        self._messages = _Messages(parameters)
        self._is_together = _is_together(parameters)
        """Whether messages are stored together. If not, a rejected one is not tried again, since others may have followed it."""
        self._producers: _Producers | None = None
        self._turn = 0
        self.stores_cursor = parameters.exactly_once
        self.cursor_key = id
        self._proven: set[tuple[str, str]] = set()
        """See _Producers."""
        self._unproven: tuple[str, str, int] | None = None
        """Partition, journal and number of partitions where it does not."""

    async def open(self) -> None:
        """Checks that the server and the topic can be used."""
        await self.probe()

    async def probe(self) -> None:
        """Checks that the server answers, and that there is a topic without placeholders. Raises Unusable, ConnectorError."""
        await self._connector.probe()
        if self._is_constant:
            await self._connector.check_topic(self._parameters.pulsar_topic)

    async def stored(self) -> Mapping[str, int]:
        """Returns nothing: the server knows for each message whether it has it."""
        return {}

    async def close(self) -> None:
        if self._producers is not None and self._connector.is_current(self._producers.client):
            await self._producers.close()

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Raises Unusable, ConnectorError."""
        failures: list[Failure] = []
        by_topic: dict[str, list[_Ready]] = {}
        for at, row in enumerate(rows):
            try:
                message, key = self._messages.of(row)
                ready = _Ready(at, row, message, java_hash(key), row.journal if self._parameters.exactly_once else "")
                by_topic.setdefault(self._topic(row), []).append(ready)
            except _Impossible as error:
                failures.append(Failure(at, str(error)))
            except (EvaluationError, UnicodeError, ValueError, RecursionError):
                failures.append(Failure(at, "a value cannot be written as text"))
        client = None
        try:
            client = await self._connector.opened()
            producers = self._current(client)
            if self._unproven is not None:
                await self._prove(producers, *self._unproven)
            topics = list(by_topic.items())
            for begin in range(0, len(topics), TOGETHER):
                failures += await self._write(producers, topics[begin : begin + TOGETHER])
        except (OSError, ConnectorError) as error:
            if self._connector.is_lost(error):
                self._connector.drop(client, error)
            raise self._connector.unusable(error) from error
        self._connector.health.reached()
        return failures

    def _current(self, client: Any) -> _Producers:
        if self._producers is None or self._producers.client is not client:
            self._producers = _Producers(self._connector, client, self._parameters, self._name_of, self._proven)
        return self._producers

    def _name_of(self, journal: str, partitions: int) -> str:
        """Returns the fixed name of producers; another one with another number of partitions, which sends a key elsewhere."""
        return f"{self.cursor_key}/{journal}/{partitions}" if self._parameters.exactly_once else ""

    async def _write(self, producers: _Producers, topics: Sequence[tuple[str, list[_Ready]]]) -> list[Failure]:
        routes = [_Route(topic, ready) for topic, ready in topics]
        try:
            outcomes = await asyncio.gather(*(self._take(producers, one) for one in routes), return_exceptions=True)
            failures: list[Failure] = []
            for route, error in zip(routes, outcomes, strict=True):
                if isinstance(error, BaseException):
                    failures += self._failures_of_topic(route, error)
            failures += await self._send([part for one in routes if not one.is_wrong for part in one.parts])
        finally:
            for part in [part for one in routes for part in one.parts]:
                producers.give(part.partition, part.journal)
        if self._parameters.exactly_once:
            await self._prove_all(producers, routes)
        return failures

    async def _take(self, producers: _Producers, route: "_Route") -> None:
        partitions = await producers.partitions_of(route.topic)
        count = len(partitions)
        by_partition: dict[tuple[int, str], list[_Ready]] = {}
        if self._parameters.strategy == "key_dispatch":
            for one in route.ready:
                by_partition.setdefault((one.hashed % count, one.journal), []).append(one)
        else:
            self._turn += 1
            chosen = self._turn if self._parameters.strategy == "roundrobin" else random.randrange(count)
            by_partition[chosen % count, ""] = route.ready
        for (number, journal), ready in by_partition.items():
            partition = partitions[number]
            producer = await producers.take(partition, journal, count)
            route.parts.append(_Part(producer, partition, journal, count, ready))

    def _failures_of_topic(self, route: "_Route", error: BaseException) -> list[Failure]:
        """Returns the failures of rows whose topic cannot be used; clients may have chosen it. Raises any other error."""
        if self._is_constant or not isinstance(error, PulsarError) or error.result not in WRONG_TOPIC:
            raise error
        route.is_wrong = True
        return [Failure(one.at, REASONS[error.result]) for one in route.ready]

    async def _send(self, parts: Sequence["_Part"]) -> list[Failure]:
        failures: list[Failure] = []
        again: list[tuple[_Part, _Ready]] = []
        for part, one, result in await self._wrong(parts):
            if result == Result.MessageTooBig and self._is_together:
                again.append((part, one))
            elif result == Result.MessageTooBig or (result in WRONG_TOPIC and not self._is_constant):
                failures.append(Failure(one.at, REASONS[result]))
            else:
                raise PulsarError(self._connector.where, result)
        for part, one in again:  # the library may have rejected all that it would have sent together
            one.message, _ = self._messages.of(one.row)  # it does not take a message twice
            for _, _, result in await self._wrong([replace(part, ready=[one])]):
                if result != Result.MessageTooBig:
                    raise PulsarError(self._connector.where, result)
                failures.append(Failure(one.at, REASONS[result]))
        return failures

    async def _wrong(self, parts: Sequence["_Part"]) -> list[tuple["_Part", _Ready, Any]]:
        """Sends all; returns what is not stored, with the result. Raises TimeoutError."""
        sends, number = Sends(self._connector.settings.timeout), 0
        for part in parts:
            sends.send(part.producer, enumerate([one.message for one in part.ready], number))
            number += len(part.ready)
        results = await sends.done([part.producer for part in parts], number)
        wrong = sorted([(number, result) for number, result in results if result is not None], key=lambda one: one[0])
        if not wrong:
            return []
        sent = [(part, one) for part in parts for one in part.ready]
        return [(*sent[number], result) for number, result in wrong]

    # --- deduplication --------------------------------------------------------------------------------------------------------

    async def _prove_all(self, producers: _Producers, routes: Sequence["_Route"]) -> None:
        """Looks whether the server deduplicates, after the first messages of a producer."""
        for part in [part for one in routes for part in one.parts]:
            if (part.partition, part.journal) not in self._proven:
                await self._prove(producers, part.partition, part.journal, part.count)

    async def _prove(self, producers: _Producers, partition: str, journal: str, count: int) -> None:
        """Raises Unusable if the server does not know the last sequence id of a producer that has sent messages."""
        await producers.replace(partition, journal, count)
        if (partition, journal) not in self._proven:
            self._unproven = partition, journal, count
            raise Unusable(f"{self._connector.where}: exactly_once: the namespace of the topic must have deduplication")
        self._unproven = None


@dataclass(slots=True, eq=False)
class _Part:
    """Rows of one producer."""

    producer: Any
    partition: str
    journal: str
    count: int
    ready: list[_Ready]


@dataclass(slots=True, eq=False)
class _Route:
    """Rows of one topic, and the producers they have."""

    topic: str
    ready: list[_Ready]
    parts: list[_Part] = field(default_factory=list)
    is_wrong: bool = False
