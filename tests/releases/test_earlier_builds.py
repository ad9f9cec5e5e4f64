"""Another build takes the place of this one and gives it back: of a running broker under traffic, and of a data directory."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT
from tests.edge.certificates import Authority
from tests.edge.conftest import authority  # noqa: F401 - a fixture
from tests.handoff.conftest import WORKERS, of_all_transports
from tests.handoff.installation import Installation
from tests.handoff.test_handoff import TRANSPORTS
from tests.handoff.test_upgrade import Pair, Upgradable
from tests.harness import Broker, Client, Publish, client_id_on, until
from tests.releases.builds import FIRST_UPGRADABLE, RELEASE, build

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(3600)]
KEPT = {"session_expiry_interval": 3600}
MESSAGES = 50
THIS, OTHER = "0.1.2", "0.1.1"


def test_builds_differ() -> None:
    """Each has modules of its own: nothing is tested with itself."""
    name = "shardbroker/worker/one_pass.*.so"
    this, upgradable, release = [next(tree.glob(name)) for tree in (ROOT, build(FIRST_UPGRADABLE), build(RELEASE))]
    assert not this.samefile(upgradable), "these may be equal: the commit is the latest one with today's formats at times"
    assert this.read_bytes() != release.read_bytes()


@pytest.mark.parametrize("first", ["earlier", "this"])
def test_a_running_broker_gets_another_build_and_the_former_one_back(
    authority: Authority,  # noqa: F811
    tmp_path: Path,
    first: str,
) -> None:
    """Under traffic over all transports at each QoS: no client is disconnected, nothing is lost, repeated or out of order."""
    builds = {"earlier": (build(FIRST_UPGRADABLE), OTHER), "this": (ROOT, THIS)}
    then = "this" if first == "earlier" else "earlier"
    whole = of_all_transports(authority)
    tree, version = builds[first]
    with Upgradable(tmp_path, whole, version, tree) as broker:
        assert broker.call("status")["version"] == builds[first][1]
        waiting = Waiting(whole)
        with ExitStack() as stack:
            pairs = [Pair(whole, authority, transport, qos, stack) for transport in TRANSPORTS for qos in (0, 1, 2)]
            threads = [thread for pair in pairs for thread in pair.threads]
            for thread in threads:
                thread.start()
            try:
                for name in (then, first, then):
                    before, pids = [len(pair.got) for pair in pairs], broker.pids()
                    broker.code.use(*builds[name])
                    assert {way for part, way in broker.ways().items() if part.startswith("worker-")} == {"moved"}
                    state = broker.upgrade()
                    assert (state["phase"], state["version"]) == ("done", builds[name][1]), f"{state}\n{broker.log}"
                    assert not pids & broker.pids(), "a process has the former code"
                    assert broker.call("status")["version"] == builds[name][1]
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
        waiting.check()


class Waiting:
    """What a broker keeps for absent clients: messages of each QoS in flight and queued, subscriptions, a retained message."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.names = [client_id_on(worker, WORKERS, "absent") for worker in range(WORKERS)]
        for name in self.names:
            with self.client(name, auto_ack=False) as client:
                client.subscribe(f"wait/{name}/#", 2)
                self.publish(name, "a", 0)
                for _ in range(3):  # in flight: the client saw them, and has not acknowledged them
                    client.expect(Publish)
        with Client(broker.address, 5, "retains") as client:
            client.publish("wait/retained", b"kept", 1, retain=True)
        for name in self.names:
            self.publish(name, "b", MESSAGES)

    def client(self, name: str, **given: Any) -> Client:
        return Client(self.broker.address, 5, name, clean=False, properties=KEPT | {"receive_maximum": 5}, timeout=30, **given)

    def publish(self, name: str, part: str, first: int) -> None:
        with Client(self.broker.address, 5, "publishes", timeout=30) as client:
            for number in range(first, first + MESSAGES):
                client.publish(f"wait/{name}/{part}", b"%d" % number, 1 + number % 2)

    def check(self) -> None:
        """All of it is there, in order, and only what was in flight is repeated."""
        for name in self.names:
            with self.client(name) as client:
                assert client.connack.session_present
                got = [client.expect(Publish) for _ in range(2 * MESSAGES)]
                client.fence()
                client.expect_none()
            assert [int(message.payload) for message in got] == [*range(2 * MESSAGES)]
            assert [message.dup for message in got[5:]] == [False] * (2 * MESSAGES - 5)
        with Client(self.broker.address, 5, "looks") as client:
            client.subscribe("wait/retained", 1)
            assert client.expect(Publish).payload == b"kept"


@contextmanager
def running(code: Installation, data_dir: Path) -> Iterator[Broker]:
    broker = Broker(WORKERS, {}, data_dir)
    broker.program = (str(code.program),)
    broker.environment = code.environment
    with broker:
        yield broker


@pytest.mark.parametrize("ends", ["stopped", "killed"])
@pytest.mark.parametrize("first", ["release", "this"])
def test_a_data_directory_is_used_as_it_is(tmp_path: Path, first: str, ends: str) -> None:
    """An upgrade from the release, which knows no hand-over, and the downgrade: the broker ends, and the other build starts."""
    builds = {"release": (build(RELEASE), OTHER), "this": (ROOT, THIS)}
    tree, version = builds[first]
    code = Installation(tmp_path, version, tree)
    with running(code, tmp_path / "data") as broker:
        assert version in broker.ready_line
        waiting = Waiting(broker)
        if ends == "killed":
            broker.kill()
        else:
            broker.stop()
        tree, version = builds["this" if first == "release" else "release"]
        code.use(tree, version)
        broker.start()
        assert version in broker.ready_line
        waiting.check()
