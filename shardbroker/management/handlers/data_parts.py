"""Parts of exports: what each has, how an entry is checked, and how it is imported.

An import makes the changes that verbs make, by their handlers or by what these use: stamped for the other nodes of a cluster, in
force when it is answered. Hashes of passwords and whole retained messages have no verb; their entries are those that nodes of a
cluster send to each other, and are checked as these are.
"""

import asyncio
import base64
import binascii
import json
import time
import tomllib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from shardbroker.access.account_stamps import ACCOUNT, KEY
from shardbroker.access.accounts import AccountError
from shardbroker.access.replicated_accounts import checked_fields
from shardbroker.access.rows import stored_entry
from shardbroker.config import Settings
from shardbroker.config.keys import KeyPath, dotted, toml_value
from shardbroker.config.sinks.definition import ACTIONS, CONNECTORS, SOURCES
from shardbroker.config.units import format_duration, format_size
from shardbroker.control import VERBS, ControlError
from shardbroker.control.data_verbs import PARTS
from shardbroker.control.rule_verbs import RuleSettings
from shardbroker.control.sink_verbs import NewSink
from shardbroker.control.stream_verbs import StreamSettings
from shardbroker.control.verbs import TIME_MAX
from shardbroker.management.access import AccessError
from shardbroker.management.audit import AUTHOR
from shardbroker.management.context import HANDLERS, Context, breathe
from shardbroker.management.definitions import RUNTIME
from shardbroker.management.handlers.access import admin
from shardbroker.management.handlers.accounts import opened
from shardbroker.management.handlers.configuration import everywhere
from shardbroker.management.server import checked as checked_params
from shardbroker.management.server import explain
from shardbroker.management.sinks import Sinks
from shardbroker.stores.replicated import checked_message, new_id
from shardbroker.stores.retained import RetainedMessage, RetainedStoreRefused

__all__ = ["TABLE", "Outcome", "Part"]

BATCH = 500
"""Entries that are read or stored together, some 10 ms."""
BATCH_BYTES = 8 << 20
"""Bytes of entries at which a batch ends before: rules of one client may have 1 MB."""
TOGETHER = 100
"""Definitions that are imported at a time: those of rules are put in force together."""
ROUNDS_MAX = 5
"""How often definitions that were refused are tried: actions name others as fallback, over a few steps."""
ERRORS_MAX = 100
"""Entries of a part that the answer names."""
NAME_MAX, REASON_MAX = 256, 1000
"""Characters of a name and of a reason in the answer."""
PATH_MAX = 8
"""Most parts of a key."""
CLIENT_ID_MAX = 65535
"""Bytes of a client id by the protocol."""
OF_ONE_NODE = ("process", "cluster")
"""Sections that name this node, its directories and its processes: they are exported, and not imported."""


class Outcome:
    """What has become of the entries of one part."""

    def __init__(self) -> None:
        self.imported = self.unchanged = self.failed = 0
        self.errors: dict[str, str] = {}
        """Name of an entry -> why it was not imported; the first ERRORS_MAX of them."""
        self.skipped: dict[str, str] = {}
        """Name -> why an entry is not for this broker, or does not count any more."""
        self.needs_restart: list[str] = []
        self.remarks: dict[str, str] = {}

    def fail(self, name: str, reason: str, count: int = 1) -> None:
        """Notes entries that were not imported."""
        self.failed += count
        if len(self.errors) < ERRORS_MAX:
            self.errors[name[:NAME_MAX]] = reason[:REASON_MAX]

    def skip(self, name: str, reason: str) -> None:
        """Notes an entry that is left out on purpose."""
        if len(self.skipped) < ERRORS_MAX:
            self.skipped[name[:NAME_MAX]] = reason


Batches = AsyncIterator[list[dict[str, Any]]]


class Part:
    """One part of a file."""

    def entries(self, context: Context) -> Batches:
        """Yields what is exported, in batches. Raises ControlError."""
        raise NotImplementedError

    def checked(self, entry: dict[str, Any]) -> Any:
        """Returns an entry in the form in which it is imported. Raises ValueError."""
        raise NotImplementedError

    async def take(self, context: Context, file: str, entries: Iterator[Any], outcome: Outcome) -> None:
        """Imports checked entries; what is refused is noted in `outcome`. file: name of the file, for the audit log."""
        raise NotImplementedError


def _batches(entries: Iterable[Any], most: int = BATCH, size_of: Callable[[Any], int] = lambda entry: 0) -> Iterator[list[Any]]:
    """Yields entries in batches of up to BATCH_BYTES, but for the last entry of each."""
    batch: list[Any] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += size_of(entry)
        if len(batch) == most or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _fields(entry: dict[str, Any], **types: type | tuple[type, ...]) -> list[Any]:
    """Returns the values of an entry: all of these fields, and no other. Raises ValueError."""
    if {*entry} != {*types}:
        raise ValueError(f"must have the fields {', '.join(types)}")
    for name, type_ in types.items():
        if not isinstance(entry[name], type_) or (isinstance(entry[name], bool) and type_ is not bool):
            raise ValueError(f"{name}: must be of another type, got {type(entry[name]).__name__}")
    return [entry[name] for name in types]


# --- settings -----------------------------------------------------------------------------------------------------------------


class SettingsPart(Part):
    """What the API and `config set` have changed on this node: {"path": ["mqtt", "max_inflight"], "value": "64"}, as in TOML."""

    async def entries(self, context: Context) -> Batches:
        yield [{"path": [*path], "value": toml_value(value)} for path, value in context.configuration.kept().items()]

    def checked(self, entry: dict[str, Any]) -> tuple[KeyPath, Any]:
        path, text = _fields(entry, path=list, value=str)
        if not 0 < len(path) <= PATH_MAX or not all(isinstance(name, str) and name for name in path):
            raise ValueError(f"path: must have 1 to {PATH_MAX} names")
        try:
            (value,) = tomllib.loads(f"value = {text}").values()
        except (ValueError, RecursionError) as error:
            raise ValueError(f"value: must be TOML: {error}") from None
        return tuple(path), value

    async def take(self, context: Context, file: str, entries: Iterator[Any], outcome: Outcome) -> None:
        values: dict[KeyPath, Any] = {}
        for path, value in entries:
            if path[0] in OF_ONE_NODE:
                outcome.skip(dotted(path), f"{path[0]}.* is of one node: its addresses, directories and processes")
            elif path[0] not in Settings.model_fields:
                outcome.fail(dotted(path), "there is no such key in this version")
            else:
                values[path] = value
        kept = context.configuration.kept()
        outcome.unchanged = sum(kept.get(path) == value for path, value in values.items())
        values = {path: value for path, value in values.items() if kept.get(path) != value}
        if not values:
            return
        try:
            await self._set(context, values, outcome)
        except ControlError:
            for section in dict.fromkeys(path[0] for path in values):  # those that can be used
                of_section = {path: value for path, value in values.items() if path[0] == section}
                try:
                    await self._set(context, of_section, outcome)
                except ControlError as error:
                    for path in of_section:
                        outcome.fail(dotted(path), str(error))
        _audit(context, "config update", {"keys": [dotted(path) for path in values][:ERRORS_MAX]}, file, outcome)

    @staticmethod
    async def _set(context: Context, values: Mapping[KeyPath, Any], outcome: Outcome) -> None:
        done = await everywhere(context, await context.configuration.set_values(values))
        outcome.imported += len(values)
        outcome.needs_restart += done["needs_restart"]
        outcome.remarks |= {key: f"is kept, but a value of {by} is in force" for key, by in done["shadowed_by"].items()}
        for name in ("workers_behind", "processes_behind"):
            if done.get(name):
                outcome.remarks[name] = f"not yet applied by {', '.join(map(str, done[name]))}"


# --- users, rules and bans ------------------------------------------------------------------------------------------------------


class AccessPart(Part):
    """A table of the access stores; entries are those that nodes of a cluster send to each other (access/rows.py)."""

    def __init__(self, table: str, names: tuple[str, ...]) -> None:
        """names: fields that name an entry."""
        self._table, self._names = table, names

    async def entries(self, context: Context) -> Batches:
        after = b""
        while True:
            with admin(context) as access:
                found = access.entries(self._table, after, BATCH, BATCH_BYTES)
            if not found:
                return
            yield [json.loads(value) for _, value in found]
            after = found[-1][0]
            await breathe()

    def checked(self, entry: dict[str, Any]) -> tuple[str, float | None, tuple[bytes, bytes]]:
        stored = stored_entry(self._table, json.dumps(entry, ensure_ascii=False).encode())
        return ":".join(str(entry[name]) for name in self._names), entry.get("until"), stored

    async def take(self, context: Context, file: str, entries: Iterator[Any], outcome: Outcome) -> None:
        now = time.time()
        for batch in _batches(entries, size_of=lambda entry: len(entry[2][1])):
            for name, until, _ in batch:
                if until is not None and until <= now:
                    outcome.skip(name, "has ended")
            current = [(name, stored) for name, until, stored in batch if until is None or until > now]
            try:
                with admin(context) as access:
                    access.put_entries(self._table, [stored for _, stored in current])
                outcome.imported += len(current)
            except ControlError:  # an entry alone may be what does not fit
                self._one_by_one(context, current, outcome)
            await breathe()

    def _one_by_one(self, context: Context, entries: list[tuple[str, tuple[bytes, bytes]]], outcome: Outcome) -> None:
        with admin(context) as access:
            for name, stored in entries:
                try:
                    access.put_entries(self._table, [stored])
                    outcome.imported += 1
                except AccessError as error:
                    outcome.fail(name, str(error))


class AccountsPart(Part):
    """Accounts of the REST API, or its keys, with hashes. The login of an account ends where its password is another one."""

    def __init__(self, kind: int) -> None:
        self._kind = kind

    async def entries(self, context: Context) -> Batches:
        with opened(context) as accounts:
            yield accounts.exported(self._kind)

    def checked(self, entry: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        fields = dict(entry)
        name = fields.pop("name", None)
        if not isinstance(name, str):
            raise ValueError("name: must be text")
        return name, checked_fields(self._kind, name, json.dumps(fields, ensure_ascii=False).encode())

    async def take(self, context: Context, file: str, entries: Iterator[Any], outcome: Outcome) -> None:
        with opened(context) as accounts:
            for number, (name, fields) in enumerate(entries):
                try:
                    accounts.put(self._kind, name, fields)
                    outcome.imported += 1
                except AccountError as error:
                    outcome.fail(name, str(error))
                if number % BATCH == 0:
                    await breathe()


# --- definitions ----------------------------------------------------------------------------------------------------------------


class DefinitionsPart(Part):
    """Connectors, actions, sources, rules or streams that were made at run time; their verbs import them."""

    async def take(self, context: Context, file: str, entries: Iterator[Any], outcome: Outcome) -> None:
        """One that refers to another one of its kind may be in front of it: what was refused is tried again."""
        waiting, reasons = [*entries], dict[str, str]()
        for _ in range(ROUNDS_MAX):
            refused, before = [], len(waiting)
            for batch in _batches(waiting, TOGETHER):
                done = await asyncio.gather(*(self._put(context, file, given, outcome) for given in batch))
                refused += [given for given, reason in zip(batch, done, strict=True) if reason]
                reasons |= {self._name(given): reason for given, reason in zip(batch, done, strict=True) if reason}
            waiting = refused
            if not waiting or len(waiting) == before:
                break
        for given in waiting:
            outcome.fail(self._name(given), reasons[self._name(given)])

    async def _put(self, context: Context, file: str, given: dict[str, Any], outcome: Outcome) -> str:
        """Returns why an entry was refused; empty if it was not."""
        try:
            change = self.change(context, given)
            if change is None:
                outcome.unchanged += 1
                return ""
            verb, params = change
            await HANDLERS[verb](context, checked_params(VERBS[verb], params))
        except ControlError as error:
            return str(error) or error.code
        outcome.imported += 1
        _audit(context, verb, {"id": self._name(given)}, file)
        return ""

    def _name(self, given: dict[str, Any]) -> str:
        return str(given.get("id") or given.get("name"))

    def change(self, context: Context, given: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Returns the verb for an entry, and its parameters; None if there is the same one already. Raises ControlError."""
        raise NotImplementedError

    @staticmethod
    def fits(model: type[BaseModel], given: dict[str, Any]) -> None:
        """Raises ValueError."""
        try:
            model.model_validate(given)
        except ValidationError as error:
            raise ValueError(explain(error)) from None


class SinksPart(DefinitionsPart):
    """{"id": "http:main", "definition": {...}}, with secrets in clear."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def _of(self, context: Context) -> Sinks:
        return {CONNECTORS: context.connectors, ACTIONS: context.actions, SOURCES: context.sources}[self._kind]

    async def entries(self, context: Context) -> Batches:
        made = [one for one in self._of(context).all() if one["origin"] == RUNTIME]
        yield [{"id": one["id"], "definition": one["given"]} for one in made]

    def checked(self, entry: dict[str, Any]) -> dict[str, Any]:
        id, definition = _fields(entry, id=str, definition=dict)
        self.fits(NewSink, {"id": id, "definition": json.dumps(definition)})
        return entry

    def change(self, context: Context, given: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        known = next((one for one in self._of(context).all() if one["id"] == given["id"]), None)
        if known is not None and known["origin"] == RUNTIME and known["given"] == given["definition"]:
            return None
        params = {"id": given["id"], "definition": json.dumps(given["definition"])}
        return (f"{self._kind} add", params) if known is None else (f"{self._kind} change", {**params, "replace": True})


class RulesPart(DefinitionsPart):
    """The fields of `rules create`, with actions and metadata as JSON."""

    _FIELDS = ("id", "sql", "actions", "name", "description", "enable", "metadata")

    async def entries(self, context: Context) -> Batches:
        for batch in _batches([rule for rule in context.rules.all() if rule["origin"] == RUNTIME]):
            yield [self._shown(rule) for rule in batch]
            await breathe()

    def _shown(self, rule: Mapping[str, Any]) -> dict[str, Any]:
        return {name: rule.get(name, {}) if name == "metadata" else rule[name] for name in self._FIELDS}

    def checked(self, entry: dict[str, Any]) -> dict[str, Any]:
        _fields(entry, id=str, sql=str, actions=list, name=str, description=str, enable=bool, metadata=dict)
        self.fits(RuleSettings, self._params(entry))
        return entry

    @staticmethod
    def _params(given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "actions": json.dumps(given["actions"]), "metadata": json.dumps(given["metadata"])}

    def change(self, context: Context, given: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        try:
            known = context.rules.find(given["id"])
        except ControlError:
            return "rules create", self._params(given)
        if known["origin"] == RUNTIME and self._shown(known) == given:
            return None
        return "rules update", self._params(given)


class StreamsPart(DefinitionsPart):
    """The parameters of `streams add`."""

    _FIELDS = ("topic_filter", "last_value", "key", "description", "enable")

    async def entries(self, context: Context) -> Batches:
        yield [self._shown(context, name) for name in context.streams.all() if context.streams.origin(name) == RUNTIME]

    def _shown(self, context: Context, name: str) -> dict[str, Any]:
        stream = context.streams.find(name)
        kept = {"age": format_duration(stream.retention.age), "bytes": format_size(stream.retention.bytes)}
        return {"name": name, **{field: getattr(stream, field) for field in self._FIELDS}, **kept}

    def checked(self, entry: dict[str, Any]) -> dict[str, Any]:
        self.fits(StreamSettings, entry)
        return entry

    def change(self, context: Context, given: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        if given["name"] not in context.streams.all():
            return "streams add", given
        known = self._shown(context, given["name"])
        if context.streams.origin(given["name"]) == RUNTIME and known == {**known, **given}:
            return None
        if known["topic_filter"] != given["topic_filter"]:
            text = f"topic_filter: must be {known['topic_filter']}, as it cannot change, got {given['topic_filter']}"
            raise ControlError("BAD_REQUEST", text)
        return "streams change", {name: value for name, value in given.items() if name != "topic_filter"}


# --- retained messages ----------------------------------------------------------------------------------------------------------


class RetainedPart(Part):
    """Retained messages but those whose topics begin with $. Subscribers do not get imported ones until they subscribe again."""

    async def entries(self, context: Context) -> Batches:
        place = None
        while True:
            found, place = context.retained.scan(b"#", place, BATCH, BATCH_BYTES, time.time_ns() // 1_000_000)
            yield [self._shown(message) for message in found]
            if place is None:
                return
            await breathe()

    @staticmethod
    def _shown(message: RetainedMessage) -> dict[str, Any]:
        return {
            "topic": message.topic.decode(),
            "payload": base64.b64encode(message.payload).decode(),
            "qos": message.qos,
            "properties": base64.b64encode(message.properties).decode(),
            "publish_at": message.created_ms,
            "expires_at": message.expires_ms,
            "from_clientid": message.client_id.decode(errors="replace"),
        }

    def checked(self, entry: dict[str, Any]) -> RetainedMessage:
        topic, payload, qos, properties, created, expires, by = _fields(
            entry, topic=str, payload=str, qos=int, properties=str, publish_at=int, expires_at=int, from_clientid=str
        )
        if not all(0 <= one <= TIME_MAX for one in (created, expires)) or not 0 <= qos <= 2:
            raise ValueError("publish_at, expires_at and qos: must be Unix ms, and 0, 1 or 2")
        if topic.startswith("$") or len(by.encode()) > CLIENT_ID_MAX:
            raise ValueError(f"topic and from_clientid: must not begin with $, and have at most {CLIENT_ID_MAX} bytes")
        try:
            bodies = [base64.b64decode(text, validate=True) for text in (payload, properties)]
        except binascii.Error as error:
            raise ValueError(f"payload and properties: must be base64: {error}") from None
        if not bodies[0]:
            raise ValueError("payload: must not be empty: an empty one is no retained message")
        return checked_message(RetainedMessage(topic.encode(), bodies[0], qos, bodies[1], bytes(16), created, expires, by.encode()))

    async def take(self, context: Context, file: str, entries: Iterator[Any], outcome: Outcome) -> None:
        limits = context.configuration.settings.retainer
        context.retained.max_messages, context.retained.max_bytes = limits.max_messages, limits.max_total_bytes
        now_ms = time.time_ns() // 1_000_000
        fitting = self._fitting(entries, limits.max_payload_size, now_ms, outcome)
        for batch in _batches(fitting, size_of=lambda message: len(message.payload)):
            try:
                refused = context.retained.update([message._replace(message_id=new_id()) for message in batch])
            except RetainedStoreRefused as error:
                outcome.fail("store", str(error), len(batch))
                continue
            outcome.imported += len(batch) - refused
            if refused:
                outcome.fail("limits", "retainer.max_messages or retainer.max_total_bytes is reached", refused)
            await breathe()

    @staticmethod
    def _fitting(entries: Iterator[RetainedMessage], most: int, now_ms: int, outcome: Outcome) -> Iterator[RetainedMessage]:
        for message in entries:
            name = message.topic.decode()
            if 0 < message.expires_ms <= now_ms:
                outcome.skip(name, "has expired")
            elif 0 < most < len(message.payload):
                text = f"must have at most {most} bytes (retainer.max_payload_size), got {len(message.payload)}"
                outcome.fail(name, f"payload: {text}")
            else:
                yield message


TABLE: dict[str, Part] = {
    "settings": SettingsPart(),
    "users": AccessPart("passwords", ("kind", "name")),
    "scram_users": AccessPart("scram", ("algorithm", "name")),
    "acl": AccessPart("rules", ("kind", "name")),
    "banned": AccessPart("banned", ("kind", "value")),
    "accounts": AccountsPart(ACCOUNT),
    "api_keys": AccountsPart(KEY),
    "connectors": SinksPart(CONNECTORS),
    "actions": SinksPart(ACTIONS),
    "sources": SinksPart(SOURCES),
    "rules": RulesPart(),
    "streams": StreamsPart(),
    "retained": RetainedPart(),
}
assert tuple(TABLE) == PARTS


def _audit(context: Context, verb: str, params: dict[str, Any], file: str, outcome: Outcome | None = None) -> None:
    """Notes a change that an import makes, as if its verb had been called."""
    code = "OK" if outcome is None or not outcome.failed else "BAD_REQUEST"
    context.audit.add(AUTHOR.get(), verb, {**params, "import": file}, code)
