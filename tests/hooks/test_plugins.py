"""Plugins: loaded and unloaded in workers that go on, kept over restarts, and harmless where docs/plugins.md says so."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardbroker.cli.ctl import main
from shardbroker.control import ControlError
from tests.api.rest import Rest
from tests.harness import Client, Publish, client_id_on
from tests.harness.waiting import until
from tests.hooks.plugged import Plugged

pytestmark = pytest.mark.own_broker
Connect = Callable[..., Client]

MARK = """
from shardbroker.hooks import ok

def load(plugin):
    mark = plugin.settings.get("mark", "!").encode()
    plugin.hook("message.publish", lambda message: ok(message.replace(payload=message.payload + mark)))
"""
ONE_WORKER_CANNOT = """
def load(plugin):
    if plugin.worker == 2:
        raise RuntimeError("not here")
    plugin.hook("client.connected", print)
"""
AT_PUBLISH = """
import gc, os, time

def load(plugin):
    def called(message):
        if message.topic.startswith(plugin.settings["below"]):
            {}

    plugin.hook("message.publish", called)
"""


class Traffic:
    """A pair of clients whose publisher is on each worker; numbered messages go from one to the other until the end."""

    def __init__(self, broker: Plugged, topic: str) -> None:
        self.received: list[list[bytes]] = [[], [], []]
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(broker, topic, worker)) for worker in range(3)]

    def _run(self, broker: Plugged, topic: str, worker: int) -> None:
        with (
            Client(broker.address, 5, client_id_on((worker + 1) % 3, 3, f"to{topic[-3:]}")) as subscriber,
            Client(broker.address, 5, client_id_on(worker, 3, f"from{topic[-3:]}")) as publisher,
        ):
            subscriber.subscribe(f"{topic}/{worker}", 1)
            number = 0
            while not self._over.is_set():
                publisher.publish(f"{topic}/{worker}", b"%d" % number, qos=1)
                self.received[worker].append(subscriber.expect(Publish).payload)
                number += 1

    @contextmanager
    def running(self) -> Iterator["Traffic"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()

    def all_end_with(self, mark: bytes) -> bool:
        """The last message of each worker."""
        return all(of_worker and (of_worker[-1].endswith(mark) if mark else of_worker[-1].isdigit()) for of_worker in self.received)


def test_a_plugin_changes_the_messages_of_every_worker_within_a_second_and_goes_again(plugged: Plugged, topic: str) -> None:
    plugged.write("mark", MARK)
    with Traffic(plugged, topic).running() as traffic:
        until(lambda: traffic.all_end_with(b""))
        for mark in (b"!", b"?"):
            began = time.monotonic()
            assert plugged.load("mark", mark=mark.decode())["points"] == ["message.publish"]
            until(lambda mark=mark: traffic.all_end_with(mark), timeout_s=1.0)
            assert time.monotonic() - began < 6  # the command itself waits for workers, not for traffic
        plugged.unload("mark")
        until(lambda: traffic.all_end_with(b""), timeout_s=1.0)
    for of_worker in traffic.received:
        assert [int(payload.rstrip(b"!?")) for payload in of_worker] == [*range(len(of_worker))]
        marks = "".join("-" if payload.isdigit() else payload[-1:].decode() for payload in of_worker)
        assert re.fullmatch(r"-+!+\?+-+", marks)


def test_settings_come_from_the_configuration_and_over_them_from_the_command(tmp_path: Path, topic: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[plugins.settings]\n"mark.mark" = "(file)"\n')
    broker = Plugged()
    broker._arguments = (f"--config={file}",)
    broker.write("mark", MARK)
    with broker, Client(broker.address, 5, "settings") as client:
        client.subscribe(topic)
        for given, end in (({}, b"(file)"), ({"mark": "(given)"}, b"(given)")):
            broker.load("mark", **given)
            client.publish(topic, b"x")
            client.expect(Publish, payload=b"x" + end)
        assert "(given)" not in "".join(broker.output)


# --- bad plugins --------------------------------------------------------------------------------------------------------------


def test_a_crashing_plugin_costs_a_log_line_and_is_counted(plugged: Plugged, connect: Connect, topic: str) -> None:
    plugged.write("crash", AT_PUBLISH.format("raise ValueError('no luck')"))
    plugged.load("crash", below=topic)
    client = connect(on=plugged)
    client.subscribe(topic)
    for number in range(50):
        client.publish(topic, b"%d" % number)
        client.expect(Publish, payload=b"%d" % number)
    (row,) = [row for row in plugged.control.call("hooks list")["data"] if row["plugin"] == "crash"]
    assert (row["point"], row["callback"], row["calls"], row["errors"]) == ("message.publish", "crash:load.<locals>.called", 50, 50)
    plugged.logged('hook callback failed point=message.publish callback=crash:load.<locals>.called reason="ValueError: no luck"')
    assert sum("no luck" in line for line in [*plugged.output]) == 1
    families = {family.name: family for family in text_string_to_metric_families(plugged.control.call("prometheus"))}
    errors = [one for one in families["shardbroker_hook_errors"].samples if one.labels["callback"] == "crash:load.<locals>.called"]
    assert sum(one.value for one in errors) == 50


def test_a_slow_plugin_holds_its_worker_alone_and_is_told_by_name(plugged: Plugged, connect: Connect, topic: str) -> None:
    plugged.write("slow", AT_PUBLISH.format("time.sleep(0.5)"))
    plugged.load("slow", below=topic)
    slow, other = (connect(on=plugged, client_id=client_id_on(worker, 3, "slow")) for worker in (0, 1))
    other.subscribe("fast")
    for _ in range(3):
        slow.publish(topic, b"x", 1, wait=False)
    began = time.monotonic()
    for _ in range(20):
        other.publish("fast", b"x")
        other.expect(Publish)
    quick = time.monotonic() - began
    slow.ping()
    assert quick < time.monotonic() - began, "the other worker waited, too"
    (row,) = [row for row in plugged.control.call("hooks list")["data"] if row["plugin"] == "slow"]
    assert row["seconds"] >= 1.5 and row["slowest"] >= 0.5
    plugged.logged("WARNING.* hook callback slow .*callback=slow:load.<locals>.called took=0.5")


def test_a_leaking_plugin_fills_its_worker_and_cycles_do_not(plugged: Plugged, connect: Connect, topic: str) -> None:
    client = connect(on=plugged, client_id=client_id_on(1, 3, "leak"))

    def grown_by(name: str, statement: str) -> float:
        """MB by which worker 1 grows with 1,000 messages."""
        plugged.write(name, AT_PUBLISH.format(statement))
        plugged.load(name, below=topic)
        before = memory()
        for _ in range(1000):
            client.publish(topic, b"x", 1)
        return (until(memory) - before) / 1e6

    def memory() -> int:
        time.sleep(0.1)  # it is measured every 20 ms
        return int(plugged.control.call("metrics", worker=1)["memory.bytes.count"])

    cycles = grown_by("cycles", "one = [bytearray(100_000)]; one.append(one)")
    plugged.unload("cycles")
    leaked = cycles + grown_by("leak", "plugin.__dict__.setdefault('kept', []).append(bytes(100_000))")
    assert cycles < 50, "cycles are not found"
    assert leaked > 70, "what the plugin keeps takes the room of what was freed before, and 100 MB in all"
    plugged.unload("leak")
    client.ping()


def test_a_plugin_that_ends_its_worker_is_there_again_until_it_is_unloaded(plugged: Plugged, connect: Connect, topic: str) -> None:
    plugged.expects('worker-2 .*cause="exit code 1"')
    plugged.write("exit", AT_PUBLISH.format("os._exit(1)"))
    plugged.load("exit", below=topic)
    pids = plugged.child_pids("worker")
    victim = connect(on=plugged, client_id=client_id_on(2, 3, "exit"))
    victim.publish(topic, b"x")
    victim.expect_close()
    connect(on=plugged, client_id=client_id_on(0, 3, "exit")).ping()
    until(lambda: [row for row in plugged.control.call("plugins list")["data"] if row["workers"] == 3])
    assert len(set(plugged.child_pids("worker")) & set(pids)) == 2
    plugged.unload("exit")
    survivor = connect(on=plugged, client_id=client_id_on(2, 3, "exit"))
    survivor.publish(topic, b"x", 1)


# --- what is refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "source", "code", "words"),
    [
        ("nowhere", None, "NOT_FOUND", "no plugin 'nowhere'; installed are good"),
        ("empty", "", "BAD_REQUEST", "has no function load"),
        ("broken", "def load(:", "BAD_REQUEST", "SyntaxError"),
        ("imports", "import there_is_no_such_module", "BAD_REQUEST", "there_is_no_such_module"),
        ("refuses", "def load(plugin): raise ValueError('allowed is one character')", "BAD_REQUEST", "allowed is one character"),
        ("ends", "raise SystemExit(1)", "BAD_REQUEST", "SystemExit"),
        ("nopoint", "def load(plugin): plugin.hook('message.eat', print)", "BAD_REQUEST", "got 'message.eat'"),
        ("nopriority", "def load(plugin): plugin.hook('client.connect', print, 1001)", "BAD_REQUEST", "from 0 to 1000, got 1001"),
        ("nofunction", "def load(plugin): plugin.hook('client.connect', 5)", "BAD_REQUEST", "function: must be callable, got 5"),
        (
            "noerror", "def load(plugin): plugin.hook('client.authorize', print, on_error='allow')", "BAD_REQUEST",
            "on_error: must be deny or ignore, got 'allow'",
        ),
        ("somewhere", ONE_WORKER_CANNOT, "BAD_REQUEST", "not here"),
        ("../good", None, "BAD_REQUEST", "name"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_changes_nothing(plugged: Plugged, name: str, source: str | None, code: str, words: str) -> None:
    for file in plugged.plugins.iterdir():
        if file.is_file():
            file.unlink()
    plugged.write("good", MARK)
    plugged.load("good")
    kept = (plugged.data_dir / "plugins.json").read_bytes()
    hooks = plugged.control.call("hooks list")
    if source is not None:
        plugged.write(name, source)
    with pytest.raises(ControlError) as error:
        plugged.load(name)
    assert error.value.code == code and words in str(error.value)
    assert plugged.control.call("hooks list") == hooks
    assert (plugged.data_dir / "plugins.json").read_bytes() == kept
    assert [row["name"] for row in plugged.control.call("plugins list")["data"] if row["state"] != "not loaded"] == ["good"]


def test_a_version_that_one_worker_cannot_load_leaves_the_old_one_in_all(plugged: Plugged, connect: Connect, topic: str) -> None:
    plugged.write("turns", MARK)
    plugged.load("turns", mark="(old)")
    plugged.write("turns", ONE_WORKER_CANNOT)
    with pytest.raises(ControlError, match="not here"):
        plugged.load("turns")
    for worker in range(3):
        client = connect(on=plugged, client_id=client_id_on(worker, 3, "turns"))
        client.subscribe(topic)
        client.publish(topic, b"x")
        client.expect(Publish, payload=b"x(old)")
        client.close()
    assert len([row for row in plugged.control.call("hooks list")["data"] if row["callback"]]) == 1


def test_what_is_not_loaded_cannot_be_unloaded(plugged: Plugged, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ControlError, match="'nowhere' is not loaded"):
        plugged.unload("nowhere")
    assert main(["--data-dir", str(plugged.data_dir), "plugins", "unload", "nowhere"]) == 1
    assert capsys.readouterr().err == "NOT_FOUND: plugin 'nowhere' is not loaded\n"
    assert main(["--data-dir", str(plugged.data_dir), "plugins", "load", "good", "--setting", "nonsense"]) == 2
    assert main(["--data-dir", str(plugged.data_dir), "plugins", "list"]) == 0


def test_a_directory_that_is_not_there_is_named(plugged: Plugged) -> None:
    moved = plugged.plugins.rename(plugged.plugins.with_name("elsewhere"))
    try:
        for verb in ("plugins list", "plugins load"):
            with pytest.raises(ControlError, match=r"plugins.dir = '.*/plugins': No such file or directory"):
                plugged.control.call(verb, **({"name": "good"} if verb == "plugins load" else {}))
    finally:
        moved.rename(plugged.plugins)


# --- REST ---------------------------------------------------------------------------------------------------------------------


def test_plugins_by_rest(plugged: Plugged) -> None:
    plugged.write("mark", MARK)
    rest = Rest.logged_in(plugged)
    expected = {"name": "mark", "workers": 3, "points": ["message.publish"]}
    assert rest.good("PUT", "/plugins/mark/start", {"settings": {"mark": "?"}}) == expected
    (row,) = [row for row in rest.good("GET", "/plugins") if row["name"] == "mark"]
    assert (row["state"], row["workers"], row["problem"]) == ("loaded", 3, None)
    hooks = rest.good("GET", "/hooks")
    assert [one["callback"] for one in hooks if one["point"] == "message.publish"] == ["mark:load.<locals>.<lambda>"]
    assert {one["point"] for one in hooks if one["callback"] is None} == {one["point"] for one in hooks} - {"message.publish"}
    assert rest.refused("PUT", "/plugins/nowhere/start") == (404, "NOT_FOUND")
    assert rest.refused("PUT", "/plugins/mark/start", {"settings": {"mark": 5}}) == (400, "BAD_REQUEST")
    assert rest.refused("PUT", "/plugins/mark/start", {"nonsense": 5}) == (400, "BAD_REQUEST")
    rest.good("POST", "/users", {"username": "onlooker", "password": "look-but-do-not-touch", "role": "viewer"})
    viewer = Rest.logged_in(plugged, "onlooker", "look-but-do-not-touch")
    assert viewer.refused("PUT", "/plugins/mark/stop") == (403, "FORBIDDEN")
    assert rest.good("PUT", "/plugins/mark/stop") == expected
    assert rest.refused("PUT", "/plugins/mark/stop") == (404, "NOT_FOUND")
    audited = [row for row in rest.good("GET", "/audit")["data"] if "plugins load" in str(row)]
    assert audited and "'?'" not in str(audited)


# --- restarts -----------------------------------------------------------------------------------------------------------------


def test_plugins_are_there_again_after_restarts(tmp_path: Path, topic: str) -> None:
    plugins = tmp_path / "plugins"
    first = Plugged(data_dir=tmp_path / "data", plugins=plugins)
    first.write("mark", MARK)
    first.write("fails", "def load(plugin): assert not plugin.settings.get('now')")
    with first:
        first.load("mark", mark="(kept)")
        first.load("fails")
        check_marked(first.address, topic)
        victim = first.child_pids("worker")[0]
        first.kill_process(victim)
        until(lambda: len(set(first.child_pids("worker")) - {victim}) == 3)
        until(lambda: all(row["workers"] == 3 for row in first.control.call("plugins list")["data"]))
        check_marked(first.address, topic)
    first.write("fails", "def load(plugin): raise RuntimeError('not any more')")
    with Plugged(data_dir=tmp_path / "data", plugins=plugins) as again:
        check_marked(again.address, topic)
        rows: dict[str, Any] = {row["name"]: row for row in again.control.call("plugins list")["data"]}
        assert (rows["mark"]["state"], rows["fails"]["state"], rows["fails"]["workers"]) == ("loaded", "failed", 0)
        assert "not any more" in rows["fails"]["problem"]
        again.logged("ERROR.*plugin not loaded plugin=fails reason=.*RuntimeError: not any more")
        again.unload("fails")
        assert (tmp_path / "data/plugins.json").stat().st_mode & 0o777 == 0o600


def test_a_damaged_list_of_plugins_keeps_no_worker_from_starting(tmp_path: Path, topic: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "plugins.json").write_text('{"mark": ')
    with Plugged(data_dir=data) as broker:
        broker.logged("ERROR.*plugins not loaded reason=.*plugins.json: cannot be read: .*; remove it, and load the plugins again")
        with pytest.raises(ControlError, match="remove it"):
            broker.control.call("plugins list")
        (data / "plugins.json").unlink()
        broker.write("mark", MARK)
        broker.load("mark", mark="(kept)")
        check_marked(broker.address, topic)


def check_marked(address: tuple[str, int], topic: str) -> None:
    """On every worker."""
    for worker in range(3):
        with Client(address, 5, client_id_on(worker, 3, "check")) as client:
            client.subscribe(topic)
            client.publish(topic, b"x")
            client.expect(Publish, payload=b"x(kept)")
