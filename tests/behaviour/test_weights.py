"""`process.worker_weights`: workers that get more sessions than others, and sessions that move when the weights change."""

import os
import re
from collections import Counter

import pytest

from shardbroker.cli.main import main
from shardbroker.config import ConfigError, load
from shardbroker.control import Control
from shardbroker.supervisor import StartError
from shardbroker.supervisor.layout import lay_out
from shm.partitions import Division
from tests.harness import Broker, Client, Publish, until

pytestmark = pytest.mark.own_broker
KEPT = {"session_expiry_interval": 1000}
NAMES = [f"weighed{number}" for number in range(60)]


def workers_of_sessions(broker: Broker) -> dict[str, int]:
    with Control(broker.data_dir) as control:
        return {row["clientid"]: row["worker"] for row in control.pages("sessions list")}


def start_again(broker: Broker, weights: str, kill: bool) -> None:
    assert broker.process is not None
    if kill:
        broker.kill()
    else:
        broker.terminate()
    broker.process.wait(20)
    broker.settings["process.worker_weights"] = weights
    broker.start()


@pytest.mark.parametrize("kill", [False, True], ids=["clean stop", "killed"])
def test_sessions_are_where_the_weights_say_and_move_when_they_change(kill: bool) -> None:
    """With all that waits for them, in order; and what waits in rings and queues comes once."""
    with Broker(2, {"process.worker_weights": "3,1"}) as broker:
        for name in NAMES:
            with Client(broker.address, 5, name, properties=KEPT) as client:
                client.subscribe("w/#", 2)
        for round, weights in enumerate([(3, 1), (1, 3)]):
            if round:
                start_again(broker, ",".join(map(str, weights)), kill)
            division = Division(2, weights)
            expected = {name: division.worker_of(name.encode()) for name in NAMES}
            until(lambda expected=expected: workers_of_sessions(broker) == expected)
            share = Counter(expected.values())[0] / len(NAMES)
            assert abs(share - weights[0] / sum(weights)) < 0.15
            with Client(broker.address, 5, "publisher") as publisher:
                for number in range(5):
                    publisher.publish(f"w/{round}", b"%d" % number, 2)
        start_again(broker, "auto", kill)
        for name in NAMES:
            with Client(broker.address, 5, name, clean=False, properties=KEPT) as client:
                assert client.connack is not None and client.connack.session_present
                got = [client.expect(Publish) for _ in range(10)]
                assert [(one.topic, int(one.payload)) for one in got] == [(f"w/{n // 5}", n % 5) for n in range(10)]


def test_they_are_seen_in_ctl_and_top(capsys: pytest.CaptureFixture[str]) -> None:
    core = min(os.sched_getaffinity(0))
    with Broker(2, {"process.worker_weights": "2,1", "process.acceptor_cores": str(core)}) as broker:
        with Control(broker.data_dir) as control:
            rows = control.call("workers list")["data"]
        assert main(["ctl", "--data-dir", str(broker.data_dir), "workers", "list"]) == 0
        printed = capsys.readouterr().out
        assert re.search(r"worker-0\s+ready\s+\d+\s+\d+\s+2\s", printed), printed
        assert [row["weight"] for row in rows if row["name"].startswith("worker")] == [2, 1]
        assert [row["cores"] for row in rows if row["name"].startswith("worker")] == [[row["core"]] for row in rows[:2]]
        assert {tuple(row["cores"]) for row in rows if row["name"].startswith("acceptor")} == {(core,)}
        assert main(["top", "--data-dir", str(broker.data_dir), "--once", "--interval", "0.2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"on cores {core}" in lines[0]
    titles = next(line for line in lines if "weight" in line).split()
    at = titles.index("weight")
    assert [line.split()[at] for line in lines if " ready " in line] == ["2", "1"]


@pytest.mark.parametrize("text", ["", "a", "1,", "0,1", "101,1", "1,-1", "1.5,1", "true", ",".join(["100"] * 30 + ["1"])])
def test_what_are_no_weights_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"process.worker_weights = .*allowed is auto, or a number from 1 to 100 for each worker"):
        load(None, {}, [f"process.worker_weights={text!r}"])


def test_one_for_each_worker() -> None:
    with pytest.raises(ConfigError, match=r"allowed is one for each of process.workers = 3, or auto"):
        load(None, {}, ["process.workers=3", "process.worker_weights=2,1"])
    assert load(None, {}, ["process.workers=3", "process.worker_weights=3, 2, 1"]).settings.process.worker_weights == "3,2,1"
    alone = load(None, {}, ["process.worker_weights=2,1"]).settings
    with pytest.raises(StartError, match=r"must be auto or one weight for each of 1 workers, got 2 weights: 2,1"):
        lay_out(alone, [0])
