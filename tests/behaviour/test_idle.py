"""Workers that have had work of each kind rest afterwards: they wait for events and wake for their timers alone.

`Broker.stop` looks for a worker that never sleeps after each test. Here is looked for one that sleeps, but is woken all the time.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import Broker, Client, Publish, Will, client_id_on
from tests.harness.idle import never_asleep

pytestmark = pytest.mark.own_broker
WORKERS = 3
LOOK_S = 1.0
WAKES_MAX, CPU_MAX_S = 200, 0.25
"""Of one worker in LOOK_S: of the timers, some 20 and 10 ms. One that polls each millisecond has a thousand."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
LASTS = {"session_expiry_interval": 60}
FILTERS = 2000


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(WORKERS, {"mqtt.max_subscriptions": 0, "mqtt.exclusive_subscription": "true"}) as own:
        yield own


def wakes(pid: int) -> int:
    (found,) = re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def work(broker: Broker) -> None:
    """Of each kind, within each worker and between them; clients end in each way, and leave behind what lasts."""
    def client(worker: int, name: str, **options: object) -> Client:
        made = Client(broker.address, 5, client_id_on(worker, WORKERS, name), **options)  # type: ignore[arg-type]
        return stack.enter_context(made)

    with ExitStack() as stack:
        away = client(1, "away", properties=LASTS)
        away.subscribe([("work/#", 2), ("$exclusive/work", 1)])
        away.drop()
        gone = client(2, "gone", will=Will("work/will", b"will", 1, properties={"will_delay_interval": 600}), properties=LASTS)
        gone.drop()
        receivers = [client(number, "receiver") for number in range(WORKERS)]
        for number, receiver in enumerate(receivers):
            receiver.subscribe([("to/+", 2), ("$share/group/shared", 1)])
            receiver.publish(f"retained/{number}", b"kept", 1, retain=True)
        for number, sender in enumerate([client(number, "sender") for number in range(WORKERS)]):
            for qos in range(3):
                sender.publish(f"to/{number}", b"message", qos)
                sender.publish("work/queued", bytes(1000), qos)
                sender.publish("shared", b"", qos)
            sender.publish("to/large", bytes(900_000), 1)
            sender.publish("$delayed/600/to/later", b"later", 1)
        for receiver in receivers:
            for _ in range(4 * WORKERS):
                while not receiver.expect(Publish).topic.startswith("to/"):
                    pass
        for start in range(0, FILTERS, 500):
            receivers[0].subscribe([(f"many/{number}/+", 0) for number in range(start, start + 500)])
        receivers[1].cut()


def test_a_worker_wakes_for_its_timers_alone(broker: Broker) -> None:
    work(broker)
    workers = broker.child_pids("worker")
    assert len(workers) == WORKERS
    with Client(broker.address, 5, "connected") as connected:
        connected.subscribe("nothing/#", 1)
        assert not never_asleep(workers)
        before = [(wakes(pid), cpu_s(pid)) for pid in workers]
        time.sleep(LOOK_S)
        used = [(wakes(pid) - woken, round(cpu_s(pid) - cpu, 2)) for pid, (woken, cpu) in zip(workers, before, strict=True)]
        print("wakes and seconds of CPU:", used)
        assert all(woken < WAKES_MAX and cpu < CPU_MAX_S for woken, cpu in used), used
