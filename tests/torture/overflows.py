"""What full queues drop: all of it is known, whatever is killed.

A plugin in the workers writes down each message at once, with what the worker knows of its queue and its client. A worker that
starts has no plugins yet when it takes what had arrived for its sessions meanwhile; that is in the journals.
"""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shardbroker.control import Control
from shardbroker.journal import Block, read
from shardbroker.journal.reader import journal_directories
from shardbroker.journal.schema import DropReason, Kind
from tests.harness import Broker
from tests.torture.checker import History, Overflow

STALLED, FULL = "queue_stalled", "queue_full"
PLUGIN = """
import os
import time


def load(plugin):
    file = os.open(plugin.settings["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def dropped(client, message, reason):
        if reason.startswith("queue_"):
            number = int(message.payload.partition(b" ")[0])
            at_s, connected = time.monotonic(), int(bool(client.peerhost))
            os.write(file, f"{at_s:f} {client.client_id} {number} {reason} {connected}\\n".encode())

    plugin.hook("delivery.dropped", dropped)
    plugin.on_unload(lambda: os.close(file))
"""
"""One line for each message: when, for which client, its number, the reason, and whether the client was connected."""
NAME = "overflows"
COUNTERS = ("overload.acks_held", "overload.subscribers_stalled")


class Witness:
    """The plugin and its file."""

    def __init__(self, folder: Path) -> None:
        plugins = folder / "plugins"
        plugins.mkdir()
        (plugins / f"{NAME}.py").write_text(PLUGIN)
        self._file = folder / "overflows.txt"
        self.settings = {"plugins.dir": str(plugins), "journal.retention.bytes": "1GB"}

    def begin(self, broker: Broker) -> None:
        with Control(broker.data_dir) as control:
            control.call("plugins load", name=NAME, setting={"file": str(self._file)})

    def counters(self, broker: Broker) -> dict[str, int]:
        """Counted by workers since they were started."""
        with Control(broker.data_dir) as control:
            metrics = control.call("metrics")
        return {name: metrics[name] for name in COUNTERS}

    def end(self, data_dir: Path, history: History, start_s: float) -> str:
        """Adds what was dropped to the history, whose clock began at `start_s`; the broker has ended. Returns how much there is,
        for people: where most clients have stalled, the run has shown little."""
        reasons: Counter[str] = Counter()
        stalled = set()
        for line in self._file.read_text().splitlines():
            at_s, client, number, reason, connected = line.split()
            history.overflowed(client, int(number), Overflow(float(at_s) - start_s, reason == STALLED, connected == "1"))
            reasons[f"{reason} {'connected' if connected == '1' else 'absent'}"] += 1
            if reason == STALLED:
                stalled.add(client)
        known = set(history.overflows)
        offset_s = time.time() - time.monotonic() + start_s
        for unix_s, client, message in dropped_in_journals(data_dir / "journal"):
            if (client, message) not in known:
                history.overflowed(client, message, Overflow(unix_s - offset_s, False, False))
                reasons["while a worker started"] += 1
        return f"dropped: {dict(reasons)}; stalled: {', '.join(sorted(stalled)) or 'none'}"


def dropped_in_journals(root: Path) -> Iterator[tuple[float, str, int]]:
    """When, for which client, and the number of the message."""
    clients: dict[int, str] = {}
    numbers: dict[bytes, int] = {}
    dropped = []
    for directory in journal_directories(root):
        for part in read(directory):
            for record in part.records() if isinstance(part, Block) else ():
                if record.kind in (Kind.SESSION_CREATED, Kind.SESSION_RESUMED, Kind.SESSION_SAVED, Kind.SESSION_NAMED):
                    clients[record["session"]] = record["client_id"].decode()
                elif record.kind == Kind.MESSAGE:
                    number = record["payload"].partition(b" ")[0]
                    numbers[record["id"]] = int(number) if number.isdigit() else -1
                elif record.kind == Kind.DROPPED and record["reason"] == DropReason.QUEUE_FULL:
                    dropped.append((record.time_us / 1e6, record["session"], record["id"]))
    for unix_s, session, message in dropped:
        yield unix_s, clients[session], numbers[message]
