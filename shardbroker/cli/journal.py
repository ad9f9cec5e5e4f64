"""`shardbroker journal ls|cat|verify|repair`: reads journals while the broker runs; repairs them only while it is stopped.

Exit codes: 0 success, 1 damage was found or something is unreadable, 2 wrong usage.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shardbroker.config import ConfigError
from shardbroker.config.units import format_size
from shardbroker.journal import Block, Damage, JournalError, JournalMissing, journal_directories, read, repair, verify
from shardbroker.journal.layout import SegmentHeader, segment_paths
from shardbroker.journal.schema import (
    FIELDS,
    Ack,
    Detail,
    DropReason,
    EndReason,
    Kind,
    MessageFlag,
    Record,
    ReleaseReason,
    SchemaError,
    Value,
    WillEnd,
)
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter, matches

__all__ = ["add_journal", "moment"]

_REASONS = {
    Kind.SESSION_ENDED: EndReason,
    Kind.DROPPED: DropReason,
    Kind.RELEASED: ReleaseReason,
    Kind.WILL_CLEARED: WillEnd,
}
_TEXTS = {"topic", "client_id", "publisher", "filter", "group", "snapshot"}
"""Byte strings that are UTF-8."""
_OF_SESSIONS = {kind for kind, fields in FIELDS.items() if fields[0][0] == "session"}
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def add_journal(commands: Any, add_sources: Callable[[argparse.ArgumentParser], None]) -> None:
    """Adds the verb; `add_sources` adds the options that lead to the data directory."""
    journal = commands.add_parser("journal", help="list, print, verify and repair journals")
    verbs = journal.add_subparsers(required=True, metavar="VERB")
    for name, run, text in (
        ("ls", _ls, "list the segments"),
        ("cat", _cat, "print records, one JSON object a line"),
        ("verify", _verify, "read everything and report damage"),
        ("repair", _repair, "cut off torn tails, set damaged segments aside; the broker must be stopped"),
    ):
        verb = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        verb.add_argument(
            "path", nargs="*", type=Path, metavar="PATH",
            help="a journal, or a directory of journals, instead of <data_dir>/journal",
        )  # fmt: skip
        add_sources(verb)
        verb.set_defaults(run=_guarded(run))
        if name == "cat":
            _add_filters(verb)


def _add_filters(verb: argparse.ArgumentParser) -> None:
    kinds = ", ".join(kind.name.lower() for kind in Kind)
    verb.add_argument("--topic", metavar="FILTER", help="messages and wills with a topic that matches this topic filter")
    verb.add_argument("--client", metavar="ID", help="publications of this client, and events of its session")
    verb.add_argument("--kind", action="append", default=[], metavar="KIND", help=f"may be given several times: {kinds}")
    verb.add_argument("--since", metavar="TIME", help="a UTC time such as 2026-01-31T12:00, or an age such as 15m, 2h, 7d")
    verb.add_argument("--until", metavar="TIME", help="as --since; records of exactly that time are left out")
    verb.add_argument("--start", type=int, default=0, metavar="SEQUENCE", help="begin with this record")
    verb.add_argument("--limit", type=int, metavar="N", help="most records to print")


def _guarded(run: Callable[[argparse.Namespace, list[Path]], int]) -> Callable[[argparse.Namespace], int]:
    def guarded(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments, list(_journals(arguments)))
        except BrokenPipeError:
            # The reader has closed the pipe, as `head` does. Python would otherwise report an error when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except JournalError as error:
            print(error, file=sys.stderr)
        except OSError as error:
            print(f"{error.filename or 'journal'}: {error.strerror or error}", file=sys.stderr)
        return 1

    return guarded


def _journals(arguments: argparse.Namespace) -> Iterator[Path]:
    """Yields the directories of single workers."""
    roots = arguments.path or [arguments.load(arguments).settings.process.data_dir / "journal"]
    for root in roots:
        if not root.is_dir():
            raise JournalMissing(f"{root}: no such directory" + ("" if not root.exists() else ", it is a file"))
        found = journal_directories(root)
        if not found and not segment_paths(root):
            raise JournalMissing(f"{root}: no journal found")
        yield from found or [root]


def _ls(_arguments: argparse.Namespace, journals: list[Path]) -> int:
    print(f"{'segment':<48} {'size':>9}  {'created':<20} {'previous end':>20}  written by")
    code = 0
    for journal in journals:
        for path in segment_paths(journal):
            size, problem, header = path.stat().st_size, "", None
            with path.open("rb") as file:
                try:
                    header = SegmentHeader.unpack(file.read(64))
                except (ValueError, JournalError) as error:
                    problem = str(error)
            if header is None:
                print(f"{path!s:<48} {_size(size):>9}  {problem}")
                code = 1
            else:
                # The number itself is not shown: it distinguishes blocks from forged ones.
                started = _time(header.created_us)
                worker = f"worker {header.worker} of {header.workers}, node {header.node_id}"
                print(f"{path!s:<48} {_size(size):>9}  {started:<20} {header.previous_end:>20}  {worker}")
    return code


def _cat(arguments: argparse.Namespace, journals: list[Path]) -> int:
    wanted = _filter(arguments)
    since, until = moment("--since", arguments.since), moment("--until", arguments.until)
    left, code = arguments.limit, 0
    for journal in journals:
        names: dict[tuple[int, int], bytes] = {}
        for item in read(journal, arguments.start):
            if isinstance(item, Damage):
                print(item, file=sys.stderr)
                code = 1 if item.error else code
                continue
            try:
                records = item.records()
            except SchemaError as error:
                print(f"{item.path}: block at {item.offset}: {error}", file=sys.stderr)
                code = 1
                continue
            for record in records:
                client = _client(record, item, names)
                if record.sequence < arguments.start or not since <= record.time_us < until or not wanted(record, client):
                    continue
                if left == 0:
                    return code
                left = None if left is None else left - 1
                print(json.dumps(_shown(record, client, journal), ensure_ascii=False))
    return code


def _client(record: Record, block: Block, names: dict[tuple[int, int], bytes]) -> bytes | None:
    """Returns the client id of a record, if its segment and earlier ones contain it."""
    if record.kind == Kind.MESSAGE:
        publisher = record["publisher"]
        return publisher if isinstance(publisher, bytes) else None
    session = record["session"] if record.kind in _OF_SESSIONS else None
    if not isinstance(session, int):
        return None
    key = block.header.incarnation, session
    if record.kind in (Kind.SESSION_CREATED, Kind.SESSION_RESUMED, Kind.SESSION_NAMED):
        name = record["client_id"]
        if isinstance(name, bytes):
            names[key] = name
    return names.get(key)


def _filter(arguments: argparse.Namespace) -> Callable[[Record, bytes | None], bool]:
    kinds = set()
    for name in arguments.kind:
        if name.upper() not in Kind.__members__:
            raise ConfigError(f"--kind: must be one of {', '.join(kind.name.lower() for kind in Kind)}, got {name}")
        kinds.add(Kind[name.upper()])
    topic = None if arguments.topic is None else os.fsencode(arguments.topic)
    if topic is not None:
        try:
            check_topic_filter(topic)
        except MqttError as error:
            raise ConfigError(f"--topic {arguments.topic}: {error}") from None
    client = None if arguments.client is None else os.fsencode(arguments.client)

    def wanted(record: Record, of: bytes | None) -> bool:
        if kinds and record.kind not in kinds:
            return False
        if client is not None and of != client:
            return False
        if topic is None:
            return True
        name = record["topic"] if record.kind in (Kind.MESSAGE, Kind.WILL_SET) else None
        return isinstance(name, bytes) and matches(topic, name)

    return wanted


def moment(option: str, text: str | None) -> int | float:
    """Returns Unix time in µs; without a text the far end on that side. Raises ConfigError."""
    if text is None:
        return float("-inf") if option == "--since" else float("inf")
    try:
        if text[-1:] in _UNITS and text[:-1].isdecimal():
            at = datetime.now(UTC) - timedelta(**{_UNITS[text[-1]]: int(text[:-1])})
        else:
            at = datetime.fromisoformat(text)
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return int(at.timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        raise ConfigError(f"{option}: must be a time such as 2026-01-31T12:00, or an age such as 15m, 2h, 7d, got {text}") from None


def _shown(record: Record, client: bytes | None, journal: Path) -> dict[str, Any]:
    """Returns a record for JSON: bytes as text where they are text, else in hexadecimal as `<name>_hex`."""
    shown: dict[str, Any] = {"journal": journal.name, "sequence": record.sequence, "time": _time(record.time_us)}
    if record.kind not in FIELDS:
        return shown | {"kind": record.kind, "values": [repr(value) for value in record.values]}
    kind = Kind(record.kind)
    shown["kind"] = kind.name.lower()
    if client is not None and kind != Kind.MESSAGE:
        shown["client_id"] = _text(client)
    for name, value in record.fields().items():
        if value is None:
            continue
        if name == "flags" and isinstance(value, int):
            shown["qos"] = value & MessageFlag.QOS
            shown |= {flag.name.lower(): True for flag in MessageFlag if flag != MessageFlag.QOS and flag.name and value & flag}
        elif name == "reason" and kind in _REASONS:
            shown[name] = _named(_REASONS[kind], value)
        elif name == "packet":
            shown[name] = _named(Ack, value)
        elif isinstance(value, dict):
            shown[name] = {_named(Detail, key): _plain("username", item)[1] for key, item in value.items()}
        else:
            key, plain = _plain(name, value)
            shown[key] = plain
    return shown


def _plain(name: str, value: Value) -> tuple[str, Any]:
    if not isinstance(value, bytes):
        return name, value
    if name == "id":
        return name, value.hex()
    text = _text(value)
    if text is None or name not in _TEXTS | {"payload", "username"}:
        return f"{name}_hex", value.hex()
    return name, text


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _named(names: Any, value: Value) -> Any:
    try:
        return names(value).name.lower()
    except ValueError:
        return value


def _verify(_arguments: argparse.Namespace, journals: list[Path]) -> int:
    code = 0
    for journal in journals:
        report = verify(journal)
        for damage in report.damages:
            print(damage)
        for line in report.unreadable:
            print(line)
        lost = f", {report.lost} lost and written off" if report.lost else ""
        lost += f"; {report.void} of the blocks are behind a power cut and do not count" if report.void else ""
        verdict = "good" if report.good else "DAMAGED"
        print(f"{journal}: {verdict}: {report.segments} segments, {report.blocks} blocks, {report.records} records{lost}")
        code = code if report.good else 1
    return code


def _repair(_arguments: argparse.Namespace, journals: list[Path]) -> int:
    for journal in journals:
        done = False
        for line in repair(journal):
            print(line, flush=True)
            done = True
        if not done:
            print(f"{journal}: nothing to repair")
    return 0


def _size(size: int) -> str:
    return format_size(size) if size < 10_000 else f"{size / 1e6:.1f} MB"


def _time(time_us: int) -> str:
    try:
        return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except OverflowError:
        return str(time_us)
