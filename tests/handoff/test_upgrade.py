"""`ctl upgrade`: the broker moves to other code under its clients, or stays what it was, or restarts with its sessions."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardbroker.control import Control, ControlError
from tests.docs.pages import ROOT
from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.edge.test_tls import dial
from tests.handoff.conftest import WORKERS, of_all_transports
from tests.handoff.installation import Installation
from tests.handoff.test_handoff import TRANSPORTS, dialler, name_on, numbers
from tests.harness import Broker, Client, Disconnect, Publish, client_id_on, until
from tests.harness.service_manager import ServiceManager

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(600)]
LONGEST_S = 200
PACE_S = 0.5
DISCONNECTS = 4
SLOW_MACHINE = {"process.drain_timeout": "60s"}
KEPT = {"session_expiry_interval": 100}


class Upgradable:
    """A broker that runs from an installation of its own."""

    def __init__(self, directory: Path, broker: Broker, version: str = "0.1.1", root: Path = ROOT) -> None:
        self.code = Installation(directory, version, root)
        self.broker = broker
        broker.settings |= SLOW_MACHINE
        broker.program = (str(self.code.program),)
        broker.environment = self.code.environment

    def __enter__(self) -> "Upgradable":
        self.broker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.broker.stop()

    def ctl(self, *arguments: str, code: int = 0) -> str:
        command = [str(self.code.program), "ctl", "--data-dir", str(self.broker.data_dir), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.code.environment, timeout=LONGEST_S, check=False
        )  # fmt: skip
        assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}\n{self.log}"
        return done.stdout + done.stderr

    def call(self, verb: str, **given: Any) -> Any:
        with Control(self.broker.data_dir, timeout_s=LONGEST_S) as control:
            return control.call(verb, **given)

    def check(self) -> Any:
        return self.call("upgrade-check")

    def ways(self) -> dict[str, str]:
        return {part["part"]: part["way"] for part in self.check()["parts"]}

    def upgrade(self) -> Any:
        """The state at the end."""
        self.call("upgrade")
        deadline = time.monotonic() + LONGEST_S
        while True:
            with suppress(ControlError):  # the manager starts again
                state = self.call("upgrade-state")
                if state["phase"] != "moving":
                    return state
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)

    def upgrade_to(self, version: str) -> None:
        self.code.install(version)
        state = self.upgrade()
        assert (state["phase"], state["version"]) == ("done", version), f"{state}\n{self.log}"

    @property
    def log(self) -> str:
        return "".join(self.broker.output)

    def logs(self, *words: str) -> str:
        return str(until(lambda: next((line for line in [*self.broker.output] if all(word in line for word in words)), None),
                         lambda: self.log, LONGEST_S))  # fmt: skip

    def pids(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.broker.pid).children()}


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Upgradable]:
    with Upgradable(tmp_path, Broker(WORKERS)) as made:
        yield made


def kept_client(two: Upgradable, worker: int = 0, name: str = "") -> Client:
    name = name or client_id_on(worker, WORKERS, f"kept{next(numbers)}-")
    return Client(two.broker.address, 5, name, clean=False, properties=KEPT, timeout=60)


class Pair:
    """A publisher and a subscriber of one transport and QoS, on two workers, with a message every PACE_S."""

    def __init__(self, whole: Edge, authority: Authority, transport: str, qos: int, stack: ExitStack) -> None:
        made, worker = dialler(whole, authority, transport), next(numbers)
        self.topic, self.qos, self.sent, self.problem = f"upgrade/{transport}/{qos}", qos, 0, ""
        self.got: list[int] = []
        self.ends = threading.Event()
        self.subscriber, self.publisher = (
            stack.enter_context(Client(whole.address, version, name_on(one % 2), keepalive=0, dial=made, timeout=60))
            for version, one in ((5, worker), (4, worker + 1))
        )
        self.subscriber.subscribe(self.topic, qos)
        self.threads = [threading.Thread(target=self.run, args=(one,)) for one in (self.publish, self.receive)]

    def run(self, part: Any) -> None:
        try:
            part()
        except BaseException as error:
            self.problem = self.problem or f"{self.topic} {part.__name__}: {error!r}"

    def publish(self) -> None:
        while not self.ends.is_set():
            self.publisher.publish(self.topic, b"%d" % self.sent, self.qos)
            self.sent += 1
            time.sleep(PACE_S)
        self.publisher.publish(self.topic, b"end", self.qos)

    def receive(self) -> None:
        while (payload := self.subscriber.expect(Publish, timeout=120, dup=False).payload) != b"end":
            self.got.append(int(payload))


def test_three_upgrades_in_a_row_under_traffic_of_all_transports(authority: Authority, tmp_path: Path) -> None:
    whole = of_all_transports(authority)
    with Upgradable(tmp_path, whole) as broker, ExitStack() as stack:
        pid, children = broker.broker.pid, broker.pids()
        pairs = [Pair(whole, authority, transport, qos, stack) for transport in TRANSPORTS for qos in (0, 1, 2)]
        threads = [thread for pair in pairs for thread in pair.threads]
        for thread in threads:
            thread.start()
        try:
            for version in ("0.1.2", "0.1.3", "0.1.4"):
                before = [len(pair.got) for pair in pairs]
                broker.code.install(version)
                assert f"-> {version}" in broker.ctl("upgrade").splitlines()[-1]
                assert broker.broker.pid == pid
                assert not children & broker.pids(), "a process has the earlier code"
                children = broker.pids()
                assert broker.call("status")["version"] == version
                got = list(zip(pairs, before, strict=True))
                assert until(lambda got=got: all(len(pair.got) > count for pair, count in got), timeout_s=60)
        finally:
            for pair in pairs:
                pair.ends.set()
            for thread in threads:
                thread.join()
        assert [pair.problem for pair in pairs if pair.problem] == []
        for pair in pairs:
            assert pair.sent > 10
            assert pair.got == [*range(pair.sent)], pair.topic
        assert broker.call("status")["connections"] == 2 * len(pairs)


def test_what_will_happen_is_told_and_nothing_is_touched(two: Upgradable) -> None:
    pids = two.pids()
    two.code.install("0.1.2")
    found = two.check()
    assert (found["before"], found["version"], found["way"], found["disconnects"]) == ("0.1.1", "0.1.2", "moved", False)
    assert [(part["part"], part["way"]) for part in found["parts"]] == [
        ("supervisor", "replaced"), ("worker-0", "moved"), ("worker-1", "moved"), ("acceptor-0", "restarted"),
        ("acceptor-1", "restarted"), ("manager", "restarted"),
    ]  # fmt: skip
    assert "no client is disconnected" in two.ctl("upgrade", "--check")
    assert two.pids() == pids
    assert two.call("upgrade-state")["phase"] == "checked"


BROKEN = {
    "does not start": ("shardbroker/cli/main.py", "import argparse\n", "import no_such_module\n", "no_such_module"),
    "has a role that does not load": (
        "shardbroker/management/main.py", "import uvloop\n", "import no_such_module\n", "manager cannot be loaded",
    ),
    "reads an older journal only": (
        "shardbroker/journal/layout.py", "FORMAT_VERSION = 1\n", "FORMAT_VERSION = 0\n", "journal: version 1, this program reads 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_code_that_would_not_run_is_refused(two: Upgradable, fault: str) -> None:
    file, old, new, reason = BROKEN[fault]
    with kept_client(two) as client:
        pids = two.pids()
        two.code.replace(file, old, new)
        found = two.check()
        assert found["way"] == "refused"
        assert reason in found["reason"]
        with pytest.raises(ControlError, match=reason):
            two.call("upgrade")
        client.ping()
        assert two.pids() == pids


def test_a_request_names_no_program(two: Upgradable) -> None:
    with Control(two.broker.data_dir) as control:
        for verb in ("upgrade", "upgrade-check"):
            with pytest.raises(ControlError, match="Extra inputs are not permitted"):
                control.call(verb, program="/bin/true")
        assert control.call("upgrade-state") == {"phase": "none"}


def test_settings_that_the_installed_code_refuses_are_named_before(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("")
    (tmp_path / "code").mkdir()
    with Upgradable(tmp_path / "code", Broker(WORKERS, arguments=("--config", str(config)))) as broker:
        config.write_text("[mqtt]\nmax_inflight = -1\n")
        assert "refused: mqtt.max_inflight" in broker.ctl("upgrade", "--check", code=1)
        assert "mqtt.max_inflight" in broker.ctl("upgrade", code=1)


def test_a_worker_that_the_new_code_cannot_replace_stays(two: Upgradable) -> None:
    """And with code that works the next upgrade goes on."""
    two.broker.expects("successor")
    with kept_client(two) as client, kept_client(two, 1) as other:
        client.subscribe("t", 1)
        worker = two.broker.child_pids("worker-0")
        two.code.install("0.1.2")
        two.code.replace(
            "shardbroker/worker/handoff/successor.py", "            state.adopt(replay",
            '            raise ValueError("the fault")\n#',
        )
        assert "worker-0: it continues with the earlier code: the log has the reason" in two.ctl("upgrade", code=1)
        assert two.broker.child_pids("worker-0") == worker
        state = two.call("upgrade-state")
        assert state["phase"] == "failed"
        assert [part["state"] for part in state["parts"]] == ["failed", *["waits"] * (len(state["parts"]) - 1)]
        assert two.logs("upgrade not complete")
        other.publish("t", b"as ever", 1)
        assert client.expect(Publish).payload == b"as ever"
        two.code.restore("shardbroker/worker/handoff/successor.py")
        two.upgrade_to("0.1.3")
        assert two.broker.child_pids("worker-0") != worker
        other.publish("t", b"still", 1)
        assert client.expect(Publish).payload == b"still"


def test_a_layout_that_the_new_code_does_not_know_is_drained_as_told(two: Upgradable) -> None:
    client = kept_client(two)
    client.subscribe("t", 1)
    two.code.install("0.1.2")
    two.code.replace("shm/layouts.py", '"inbox": 1', '"inbox": 2')
    found = json.loads(two.ctl("upgrade", "--check", "--json", code=DISCONNECTS))
    assert (found["way"], found["disconnects"]) == ("drained", True)
    assert found["reason"] == "other layout in shared memory: inbox"
    assert {part["way"] for part in found["parts"]} == {"drained"}
    assert "clients would be disconnected" in two.ctl("upgrade", "--no-drain", code=1)
    client.ping()
    with kept_client(two, 1) as other:
        other.publish("t", b"before", 1)
        assert client.expect(Publish).payload == b"before"
    pid = two.broker.pid
    two.ctl("upgrade")
    assert isinstance(client.expect_close(20), Disconnect)
    assert psutil.Process(pid).is_running()
    assert two.logs("shardbroker 0.1.2 ready")
    with kept_client(two, name=client.client_id) as again:
        assert again.connack is not None and again.connack.session_present


def test_workers_of_another_format_are_drained_one_after_the_other(two: Upgradable) -> None:
    client = kept_client(two)
    two.code.replace("shardbroker/worker/handoff/protocol.py", "FORMAT = 3\n", "FORMAT = 4\n")
    ways = two.ways()
    assert (ways["worker-0"], ways["worker-1"], ways["manager"]) == ("drained", "drained", "restarted")
    two.upgrade_to("0.1.2")
    assert isinstance(client.expect_close(20), Disconnect)
    with kept_client(two, name=client.client_id) as again:
        assert again.connack is not None and again.connack.session_present


def test_what_a_worker_refuses_is_told_before(tmp_path: Path) -> None:
    with Upgradable(tmp_path, Broker(1, {"durability.level": "none"})) as broker:
        with Client(broker.broker.address, 5, "delays") as client:
            client.publish("$delayed/100/later", b"x", 1)
        (worker,) = [part for part in broker.check()["parts"] if part["part"] == "worker-0"]
        assert (worker["way"], worker["reason"]) == ("drained", "deferred messages are in memory only, without a journal")


def test_connections_whose_keys_do_not_move_keep_their_acceptor(authority: Authority, tmp_path: Path) -> None:
    whole = of_all_transports(authority)
    context = authority.client()
    context.set_ciphers("ECDHE-ECDSA-AES128-SHA256:ECDHE-RSA-AES128-SHA256")
    context.maximum_version = context.minimum_version = 0x303  # TLS 1.2
    with Upgradable(tmp_path, whole) as broker, Client(whole.address, 5, "pumped", dial=dial(whole.at("ssl"), context)) as client:
        ways = broker.ways()
        assert sorted(ways[f"acceptor-{number}"] for number in range(2)) == ["left", "restarted"]
        broker.upgrade_to("0.1.2")
        client.ping()


FAULTS = {
    "adopting": ("shardbroker/supervisor/tree.py", "        kept = image.kept\n", '        raise UpgradeError("the fault")\n'),
    "reading": (
        "shardbroker/supervisor/image.py", "    for descriptor in (*descriptors_of(image.topology)",
        '    raise ValueError("the fault")\n    for descriptor in (*descriptors_of(image.topology)',
    ),
}  # fmt: skip


SLOW = (
    "shardbroker/supervisor/continuation.py", "    service_manager =", "    import time\n    time.sleep(3)\n    service_manager =",
)  # fmt: skip
"""The new program takes its time behind execve."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_behind_execve_is_a_restart_with_the_sessions(two: Upgradable, fault: str) -> None:
    """The check has not found it; the program starts from the beginning in the same process."""
    two.broker.expects("the fault")
    with kept_client(two) as client:
        client.subscribe("t", 1)
    publisher = kept_client(two, 1)
    for number in range(20):
        publisher.publish("t", b"%d" % number, 1)
    pid = two.broker.pid
    two.code.replace(*FAULTS[fault])
    two.code.install("0.1.2")
    two.call("upgrade")
    assert two.logs("upgrade failed", "the fault")
    assert two.logs("shardbroker 0.1.2 ready")
    assert two.broker.pid == pid and psutil.Process(pid).is_running()
    publisher.close()
    with kept_client(two, name=client.client_id) as again:
        assert again.connack is not None and again.connack.session_present
        got = [int(again.expect(Publish).payload) for _ in range(20)]
        assert got == [*range(20)]


def test_the_broker_stops_when_it_is_told_to_during_an_upgrade(two: Upgradable) -> None:
    two.code.install("0.1.2")
    two.code.replace(*SLOW)
    two.call("upgrade")
    assert two.logs("upgrade begins")
    two.broker.terminate()
    assert two.broker.process is not None and two.broker.process.wait(60) == 0
    assert two.logs("broker stopped")
    two.broker.process = None


def test_all_processes_end_with_a_supervisor_that_was_upgraded(two: Upgradable) -> None:
    two.upgrade_to("0.1.2")
    children = two.broker.children()
    two.broker.kill_process(two.broker.pid)
    _, alive = psutil.wait_procs(children, 20)
    assert not alive
    two.broker.kill()
    two.broker.process = None


@pytest.mark.parametrize("role", ["worker-0", "acceptor-0", "manager"])
def test_a_process_that_dies_while_the_program_is_replaced_is_started_again(two: Upgradable, role: str) -> None:
    two.broker.expects("process died")
    two.code.install("0.1.2")
    two.code.replace(*SLOW)
    (pid,) = two.broker.child_pids(role)
    with kept_client(two, 1) as client:
        two.call("upgrade")
        two.logs("upgrade begins")
        time.sleep(1)
        two.broker.kill_process(pid)
        assert two.logs("upgrade complete")
        client.ping()
        assert pid not in two.broker.child_pids(role)


def test_listeners_and_settings_of_the_running_broker_stay(two: Upgradable) -> None:
    for name in ("extra", "stopped"):
        two.call("listeners add", name=name, settings=["bind=127.0.0.1:0"])
    two.call("listeners stop", name="stopped")
    two.call("config set", key="mqtt.max_inflight", value="7")

    def listed() -> dict[str, tuple[bool, str]]:
        return {row["name"]: (row["running"], row["bind"]) for row in two.call("listeners list")["data"]}

    before = listed()
    assert [running for running, _ in before.values()].count(False) == 1
    two.upgrade_to("0.1.2")
    assert listed() == before
    two.call("listeners start", name="stopped")
    host, port = before["extra"][1].rsplit(":", 1)
    with Client((host, int(port)), 5, "extra") as client:
        two.upgrade_to("0.1.3")
        client.ping()
    assert two.call("config get", key="mqtt.max_inflight")["data"][0]["value"] == "7"


def test_the_service_manager_keeps_its_service(tmp_path: Path) -> None:
    with ServiceManager() as manager:
        broker = Upgradable(tmp_path, Broker(WORKERS))
        manager.supervise(broker.broker)
        with broker:
            manager.until("READY")
            broker.upgrade_to("0.1.2")
            assert manager.until("READY")["STATUS"].startswith("all processes ready")
            os.kill(broker.broker.pid, signal.SIGHUP)
            manager.until("RELOADING")
            manager.until("READY")
            broker.code.replace("shm/layouts.py", '"inbox": 1', '"inbox": 2')
            assert broker.call("upgrade")["way"] == "drained"
            manager.until("STOPPING")
            assert broker.broker.process is not None
            assert broker.broker.process.wait(60) == 1, "Restart=on-failure starts the new one"
            broker.broker.process = None
