"""Brokers whose messages below `far/#` and `in/#` are written to a file by rules of their own, so that a test sees each message.

A line is written again after a kill; the id of the message tells such a line from a message that is there twice.
"""

import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.flows.sinks.broker import SinksBroker
from tests.harness.waiting import stop_all, until

__all__ = ["Far", "Seen"]

LINE = re.compile(r"(\S+) (\S+) (\S+) (.*)")
NUMBERS = re.compile(r'"w": ?(\d+), "n": ?(\d+)')
TEMPLATE = "${id} ${position} ${topic} ${payload}"
OPTIONS = {"health_check_interval": "1s"}

Sections = dict[str, dict[str, Any]]


class Seen:
    """The messages of a file, in the order of their journals."""

    def __init__(self, text: str) -> None:
        found: dict[str, tuple[tuple[int, int], str, str]] = {}
        for line in text.splitlines(keepends=True):
            match = LINE.fullmatch(line.rstrip("\n")) if line.endswith("\n") else None
            if match is not None:
                _, journal, position = match[2].rsplit("/", 2)
                found.setdefault(match[1], ((int(journal), int(position)), match[3], match[4]))
        self.messages = [(topic, payload) for _, topic, payload in sorted(found.values())]
        """Topic and payload of each."""
        self.rows = [(int(one[1]), int(one[2])) for _, payload in self.messages if (one := NUMBERS.search(payload))]
        """Publisher and number of each."""

    @property
    def repeated(self) -> int:
        return sum(Counter(self.rows).values()) - len(set(self.rows))

    def is_ordered(self) -> bool:
        """Returns whether the numbers of each publisher rise, repeats aside."""
        for w in {w for w, _ in self.rows}:
            firsts = list(dict.fromkeys(n for publisher, n in self.rows if publisher == w))
            if firsts != sorted(firsts):
                return False
        return True


class Far(SinksBroker):
    """where: directory of its data and file. filter: of the messages that are written. sections: besides those of the file."""

    def __init__(
        self,
        where: Path,
        filter: str = "far/#",
        workers: int = 1,
        sections: Sections | None = None,
        settings: dict[str, object] | None = None,
        port: int | None = None,
    ) -> None:
        self.file = where / "messages"
        own: Sections = {
            "connectors.disk_log.messages": {"filepath": str(self.file), "max_file_size": "1GB"},
            "actions.disk_log.messages": {
                "connector": "messages", "parameters": {"template": TEMPLATE}, "resource_opts": OPTIONS,
            },
            "rules.messages": {"sql": f'SELECT * FROM "{filter}"', "actions": ["disk_log:messages"]},
        }  # fmt: skip
        where.mkdir(parents=True, exist_ok=True)
        super().__init__(workers, where / "data", {**own, **(sections or {})}, settings)
        if port is not None:
            self.address = ("127.0.0.1", port)

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self.address[1]}"

    def source(self, id: str) -> dict[str, Any]:
        """Figures of a source, which runs in one process."""
        return next((one["sources"][id] for one in self.all_figures() if id in one.get("sources", {})), {})

    def seen(self) -> Seen:
        return Seen(self.file.read_text(errors="replace") if self.file.exists() else "")

    def await_source(self, publish: Callable[[bytes], object]) -> None:
        """Returns once a source has messages of its server: it is `connected` before it has subscribed. publish: there."""

        def has_one() -> bool:
            publish(b"first")
            return any(payload == "first" for _, payload in self.seen().messages)

        until(has_one, lambda: f"{self.all_figures()} {self.output[-5:]}", 60)

    def pause(self) -> None:
        """Stops all its processes, so that connections stay open and nothing answers."""
        stop_all(self._pids())

    def resume(self) -> None:
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        return [self.pid, *(one.pid for one in self.children())]
