"""A process is killed at each step of a replacement: clients stay, or the worker restarts with its sessions."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from shardbroker.control import ControlError
from tests.handoff.conftest import WORKERS, replace
from tests.handoff.faulty import VARIABLE
from tests.harness import Broker, Client, Closed, Publish, client_id_on, until, wire

pytestmark = pytest.mark.own_broker
STAYS, REPLACED, RESTARTS = "stays", "replaced", "restarts"
STEPS = {
    # the worker that is to be replaced is killed
    "predecessor._be_quiet:before": RESTARTS,
    "state.collect:before": RESTARTS,
    "state.collect:after": RESTARTS,
    "predecessor.Peer.send_all:before": RESTARTS,
    "predecessor.Peer.send_all:after": REPLACED,
    "state.leave:before": REPLACED,
    "state.leave:after": REPLACED,
    # its successor is killed, gives up, or hangs
    "successor.Succession.receive:before": STAYS,
    "successor.Succession.receive:after": STAYS,
    "successor.Succession.adopt:before": STAYS,
    "successor.Succession.adopt:after": STAYS,
    "successor.Succession.adopt:sleep": STAYS,
    "state.adopt:raise": STAYS,
    "successor.Succession.commit:after": RESTARTS,
    "successor.Succession.finish:before": RESTARTS,
}


@contextmanager
def broken_at(step: str, level: str) -> Iterator[Broker]:
    broker = Broker(WORKERS, {"durability.level": level})
    broker.program = (sys.executable, "-m", "tests.handoff.faulty")
    broker.environment = dict(os.environ) | {VARIABLE: step}
    broker.expects('cause="signal SIGKILL"')
    broker.expects(r'process died process=worker-0 .*cause="exit code [01]"')  # the other one of the two
    with broker:
        yield broker


@pytest.mark.parametrize("level", ["process", "machine"])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_costs_no_more_than_a_restart(step: str, level: str) -> None:
    names = [client_id_on(0, WORKERS, f"kept{number}-") for number in range(3)]
    with broken_at(step, level) as broker, Client(broker.address, 5, client_id_on(1, WORKERS, "other")) as other:
        kept = [
            Client(broker.address, 5, name, clean=False, properties={"session_expiry_interval": 100}, auto_ack=False)
            for name in names
        ]
        clean = Client(broker.address, 5, client_id_on(0, WORKERS, "clean"))
        for client in (*kept, clean):
            client.subscribe("kept", 2)
        kept[0].send_raw(wire.publish("unreleased", b"", qos=2, packet_id=9))
        kept[0].expect(wire.Pubrec)
        other.publish("kept", b"in flight", 2)
        in_flight = [client.expect(Publish, payload=b"in flight") for client in kept]
        clean.expect(Publish)
        pid = broker.child_pids("worker-0")
        ends = STEPS[step]
        with suppress(ControlError):
            replace(broker, 0)
            assert ends == REPLACED, "it was replaced all the same"
        assert ends == STAYS or until(lambda: broker.child_pids("worker-0") not in ([], pid))
        other.publish("kept", b"behind", 2)
        if ends == RESTARTS:
            with pytest.raises(Closed):
                clean.recv(20)
            for client in kept:
                client.close()
            kept = [
                Client(broker.address, 5, name, clean=False, properties={"session_expiry_interval": 100}, auto_ack=False)
                for name in names
            ]
            for client in kept:
                assert client.connack is not None and client.connack.session_present
                client.expect(Publish, payload=b"in flight", dup=True)
        else:
            clean.expect(Publish, payload=b"behind")
            assert (broker.child_pids("worker-0") == pid) == (ends == STAYS)
        for client, message in zip(kept, in_flight, strict=True):
            behind = client.expect(Publish, payload=b"behind")
            assert (behind.packet_id, behind.dup) == (message.packet_id + 1, False)
            client.ack(message)
            client.expect(wire.Pubrel, packet_id=message.packet_id)
        kept[0].release(9)
        clean.close()
        for client in kept:
            client.close()
