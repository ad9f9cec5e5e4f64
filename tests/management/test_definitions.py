"""Definitions and streams of the configuration: put in force whether or not the request waits, and however slow
the processes flows are."""

import asyncio
import json
from collections.abc import Coroutine, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardbroker.config import Settings
from shardbroker.config.streams import Stream
from shardbroker.control import ControlError
from shardbroker.management.definitions import CONFIGURATION, RULES, Definition, Definitions
from shardbroker.management.rules import RuleKind
from shardbroker.management.streams import Streams

SETTINGS = Settings()
CHANGED = SETTINGS.model_copy(update={"rule_engine": SETTINGS.rule_engine.model_copy(update={"ignore_sys_message": False})})


class OneRule(RuleKind):
    """The kind of rules, with one in the configuration."""

    def configured(self, settings: Settings) -> dict[str, Definition]:
        return {"r": {"id": "r", "origin": CONFIGURATION}}


class Feed:
    def __init__(self) -> None:
        self.fed: list[set[str]] = []

    async def set(self, filters: Iterable[str], events: Iterable[str]) -> None:
        self.fed.append({*filters})


class Held:
    """Stands for what a change waits for: `begun` once it does, and it ends by `end`."""

    def __init__(self) -> None:
        self.begun, self.end = asyncio.Event(), asyncio.Event()

    async def __call__(self, *_: object) -> None:
        self.begun.set()
        await self.end.wait()


def topology_in(directory: Path) -> Any:
    settings = SimpleNamespace(durability=SimpleNamespace(level="process"), journal=SETTINGS.journal)
    runtime_dir = directory / "runtime"
    runtime_dir.mkdir()
    return SimpleNamespace(data_dir=directory, runtime_dir=runtime_dir, places_of=lambda role: [], settings=settings)


class Manager:
    """Definitions in a directory of their own, without processes flows."""

    def __init__(self, directory: Path, start: Any) -> None:
        self.topology = topology_in(directory)
        self.feed = Feed()
        self.complaints: list[Any] = []
        self.definitions = Definitions(
            self.topology, SETTINGS, [OneRule()], cast("Any", self.feed), lambda rules: ({one["id"] for one in rules}, set()),
            start, self.complaints.append,
        )  # fmt: skip

    def rules_in_force(self) -> list[str]:
        return [one["id"] for one in json.loads((self.topology.runtime_dir / "flows.json").read_bytes())["rules"]]


async def given_up(request: Coroutine[Any, Any, None]) -> None:
    """A request that waits, and whose caller closes the connection."""
    task = asyncio.create_task(request)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_request_that_is_given_up_does_not_end_the_change_of_definitions(tmp_path: Path) -> None:
    async def run() -> None:
        held = Held()
        made = Manager(tmp_path, held)
        made.definitions.configure(CHANGED)
        await held.begun.wait()
        await given_up(made.definitions.settled())
        held.end.set()
        await made.definitions.settled()
        assert made.feed.fed == [{"r"}] and made.complaints == []

    asyncio.run(run())


def test_a_request_that_is_given_up_does_not_end_the_change_of_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        held = Held()
        made = Manager(tmp_path, held)
        streams = Streams(made.topology, {}, cast("Any", made.feed), cast("Any", None), held, made.complaints.append)
        monkeypatch.setattr(streams, "_put_in_force", held)
        streams.configure({"s": Stream(topic_filter="a")})
        await held.begun.wait()
        await given_up(streams.settled())
        held.end.set()
        await streams.settled()
        assert made.complaints == []

    asyncio.run(run())


def test_a_process_that_is_late_loads_the_definitions_of_the_configuration_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(needed: bool) -> None:
        pass

    async def is_late(generation: int, change: object) -> dict[str, str]:
        raise ControlError("NOT_AVAILABLE", "process flows-0 did not respond: timed out")

    async def run() -> None:
        made = Manager(tmp_path, start)
        monkeypatch.setattr(made.definitions.flows, "load", is_late)
        made.definitions.configure(CHANGED)
        await made.definitions.settled()
        assert made.rules_in_force() == ["r"] and made.feed.fed == [{"r"}], "as at a start of the manager"
        assert [*made.definitions.all(RULES)] == ["r"]
        assert ["did not respond" in str(one) for one in made.complaints] == [True]

    asyncio.run(run())
