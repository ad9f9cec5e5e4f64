"""The harness itself: a test tool that lets everything pass would be worse than none."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.harness import Broker, Client, Connack, Pingresp, Publish, client_id_on, until, wire, worker_of
from tests.harness.faults import faults
from tests.harness.idle import never_asleep
from tests.harness.wire import WireError


@contextmanager
def server(answer: bytes, close: bool = False) -> Iterator[tuple[str, int]]:
    """Sends `answer` to the first client, whatever that says; closes at once or when the test is over."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(answer)
                if not close:
                    over.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            over.set()
            thread.join()


def publish(**options: object) -> bytes:
    return wire.publish("a/b", b"payload", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_round_trip(version: int, qos: int) -> None:
    properties = {"topic_alias": 3, "user_property": [("k", "v"), ("k", "w")]} if version == 5 else {}
    raw = publish(version=version, qos=qos, packet_id=7 if qos else None, retain=True, properties=properties)
    expected = Publish("a/b", b"payload", qos, True, False, 7 if qos else None, properties)
    assert wire.parse(raw + b"\xd0\x00", version) == (expected, len(raw))
    assert all(wire.parse(raw[:cut], version) is None for cut in range(len(raw)))


@pytest.mark.parametrize("name", wire.PROPERTIES)
def test_every_property_round_trip(name: str) -> None:
    kind = wire.PROPERTIES[name][1]
    value: object = {"string": "text", "binary": b"\0\xff", "pair": ("a", "b")}.get(kind, 1)
    block = wire.properties({name: value})
    homes = [home for home, allowed in wire._SERVER_PROPERTIES.items() if name in allowed]
    for home in homes:
        found = wire._Reader(block).properties(home)
        assert found == {name: [value] if name in wire.REPEATABLE else value}
    for stranger in wire._SERVER_PROPERTIES.keys() - set(homes):
        with pytest.raises(WireError):
            wire._Reader(block).properties(stranger)


@pytest.mark.parametrize(
    ("raw", "version"),
    [
        ("21 02 00 00", 4),  # flags of CONNACK
        ("20 02 02 00", 4),  # reserved acknowledge flag
        ("20 02 01 00", 3),  # MQTT 3.1 has no Session Present
        ("20 02 01 05", 4),  # Session Present in a refusal
        ("20 02 00 06", 4),  # unknown return code
        ("20 03 00 00 00", 4),  # a byte too many
        ("20 82 00 00 00", 4),  # length not in its shortest form
        ("36 05 00 01 74 00 01", 4),  # QoS 3
        ("38 03 00 01 74", 4),  # DUP at QoS 0
        ("32 05 00 01 74 00 00", 4),  # packet id 0
        ("30 04 00 02 C3 28", 4),  # topic is not UTF-8
        ("30 03 00 01 23", 4),  # wildcard in a topic
        ("30 02 00 00", 4),  # empty topic
        ("30 03 00 00 00", 5),  # neither topic nor alias
        ("90 03 00 01 03", 4),  # SUBACK code 3
        ("60 02 00 01", 4),  # flags of PUBREL
        ("E0 00", 4),  # DISCONNECT from a server before 5.0
        ("C0 00", 4),  # PINGREQ from a server
        ("40 03 00 01 00", 4),  # reason code before 5.0
        ("D0 01 00", 5),  # PINGRESP with a body
        ("20 08 00 00 05 21 00 01 21 00", 5),  # property cut off
    ],
)
def test_parser_refuses_what_a_server_may_not_send(raw: str, version: int) -> None:
    with pytest.raises(WireError):
        wire.parse(bytes.fromhex(raw), version)


def test_client_ids_land_on_their_worker() -> None:
    for worker in range(5):
        assert worker_of(client_id_on(worker, 5, "any"), 5) == worker


def test_refused_connect_fails() -> None:
    with server(b"\x20\x02\x00\x05") as address, pytest.raises(AssertionError, match="code=5"):
        Client(address, 4, "x")


def test_expect_close_fails_on_an_open_connection() -> None:
    with (
        server(b"\x20\x02\x00\x00") as address,
        Client(address, 4, "x") as client,
        pytest.raises(AssertionError, match="still open"),
    ):
        client.expect_close(timeout=0.1)


def test_expect_close_fails_on_packets_before_the_end() -> None:
    with (
        server(b"\x20\x02\x00\x00\xd0\x00", close=True) as address,
        Client(address, 4, "x") as client,
        pytest.raises(AssertionError, match="expected the end"),
    ):
        client.expect_close()


def test_expect_none_fails_on_a_packet() -> None:
    with (
        server(b"\x20\x02\x00\x00\xd0\x00") as address,
        Client(address, 4, "x") as client,
        pytest.raises(AssertionError, match="expected nothing"),
    ):
        client.expect_none()


def test_packets_put_aside_stay_in_order() -> None:
    answer = (
        b"\x20\x02\x00\x00"
        + b"".join(wire.publish("t", b"%d" % n, version=4) for n in range(3))
        + b"\xd0\x00"
        + wire.publish("t", b"3", version=4)
    )
    with server(answer) as address, Client(address, 4, "x") as client:
        assert client.connack == Connack(False, 0)
        client.fence()
        assert [client.expect(Publish).payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        with pytest.raises(AssertionError, match="expected Pingresp"):
            client.expect(Pingresp, timeout=0.05)


@pytest.mark.own_broker
def test_broker_that_cannot_start_says_why() -> None:
    broker = Broker(1, {"mqtt.no_such_key": 1})
    with pytest.raises(AssertionError, match="no_such_key"):
        broker.start()
    broker._clean()
    assert not broker.data_dir.exists()


@pytest.mark.own_broker
def test_broker_leaves_nothing_behind() -> None:
    with Broker(2) as broker:
        assert broker.ready_line and broker.leftovers()
        children = broker.children()
        assert len(broker.child_pids("worker")) == 2
    assert not broker.leftovers()
    assert not broker.data_dir.exists()
    assert not any(child.is_running() for child in children)


@pytest.mark.own_broker
def test_broker_that_died_is_noticed() -> None:
    broker = Broker(1)
    broker.start()
    broker.kill()
    with pytest.raises(AssertionError, match="had ended by itself"):
        broker.stop()
    assert not broker.leftovers()


@pytest.mark.own_broker
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_worker_that_died_and_was_started_again_is_noticed(number: int) -> None:
    """At the end of a test, and when the broker stops: whoever looks first."""
    broker = Broker(1)
    broker.start()
    (worker,) = broker.child_pids("sb-worker")
    os.kill(worker, number)
    until(lambda: any("process died" in line for line in broker.output))
    with pytest.raises(AssertionError, match=f"worker-0 .*signal {signal.Signals(number).name}"):
        broker.check()
    broker.check()  # once is enough
    (again,) = until(lambda: broker.child_pids("sb-worker"))
    os.kill(again, number)
    until(lambda: sum("process died" in line for line in broker.output) == 2)
    with pytest.raises(AssertionError, match="process died"):
        broker.stop()
    assert not broker.leftovers()


@pytest.mark.own_broker
def test_a_kill_that_is_announced_is_no_fault() -> None:
    with Broker(1) as broker:
        (worker,) = broker.child_pids("sb-worker")
        broker.kill_process(worker)
        until(lambda: any("process died" in line for line in broker.output))
        broker.check()
        (again,) = until(lambda: broker.child_pids("sb-worker"))
        broker.expects("signal SIGSEGV|Fatal Python error")
        os.kill(again, signal.SIGSEGV)
        until(lambda: sum("process died" in line for line in broker.output) == 2)


NOW = "2026-11-21T06:46:15.547+00:00"


@pytest.mark.parametrize(
    "line",
    [
        f'{NOW} ERROR supervisor: process died process=worker-0 pid=7 cause="signal SIGSEGV" age=1.0s restart_in=0s',
        f'{NOW} ERROR supervisor: process died process=worker-0 pid=7 cause="exit code 1" age=1.0s restart_in=0s',
        f'{NOW} ERROR supervisor: process died process=worker-0 pid=8 cause="signal SIGKILL" age=1.0s restart_in=0s',
        f"{NOW} ERROR supervisor: process killed after drain timeout process=worker-0 pid=7",
        f"{NOW} ERROR internal error while a connection was closing: KeyError(1)",
        f'{NOW} INFO client disconnected client_id=a peer=[::1]:1 reason=0x83 side=server detail="internal error: KeyError(1)"',
        "Traceback (most recent call last):",
        "  + Exception Group Traceback (most recent call last):",
        "Exception ignored in: 'shardbroker.worker.one_pass.Worker.run'",
        "Fatal Python error: Segmentation fault",
        "malloc(): corrupted top size",
        "==17==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x6",
        "shardbroker/mqtt/codec.c:17:3: runtime error: signed integer overflow",
    ],
)
def test_what_tells_of_a_crash(line: str) -> None:
    assert [*faults(["before\n", f"{line}\n"], {7})] == [f"{line}\n"]
    assert not [*faults([f"{line}\n"], {7}, [re.escape(line)])]


@pytest.mark.own_broker
def test_no_client_can_write_what_looks_like_a_crash() -> None:
    """Its id, its user name and what it says stand in the log, but not as lines or words of ours."""
    crash = f'{NOW} ERROR supervisor: process died process=worker-0 pid=7 cause="signal SIGSEGV" age=1.0s'
    with Broker(1, {"log.level": "debug"}) as broker:
        for n, evil in enumerate(("Traceback (most recent call last):", 'x detail="internal error: y"', "internal error", crash)):
            for at, text in enumerate((evil, f"x\n{evil}", f"x\r{evil}", f'" {evil}')):
                with Client(broker.address, 5, text, username=text) as client:
                    client.send_raw(wire.disconnect(code=0x80, properties={"reason_string": text}))
                    client.expect_close()
                gone = 4 * n + at + 1
                until(lambda gone=gone: sum(" client disconnected " in line for line in broker.output) >= gone)


SPINNING = "print(flush=True)\nwhile True: pass"
SLEEPING = "import time\nprint(flush=True)\nwhile True: time.sleep(0.05)"


def test_processes_that_spin_are_told_from_idle_ones() -> None:
    """Five for two cores: each of them has to wait for one, too."""
    with ExitStack() as stack:

        def start(program: str) -> int:
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline()
            return process.pid

        spinning, sleeping = {start(SPINNING) for _ in range(5)}, {start(SLEEPING) for _ in range(2)}
        assert never_asleep(spinning | sleeping, patience_s=0.5) == spinning
        os.kill(ended := spinning.pop(), signal.SIGSTOP)
        assert ended not in never_asleep([ended], patience_s=0.5), "it stands still"


def test_a_broker_that_spins_fails_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.harness.broker.never_asleep", lambda pids: {max(pids)})
    broker = Broker(1)
    broker.start()
    with pytest.raises(AssertionError, match=r"never idle, although no client is connected: \['sb-(worker|acceptor)"):
        broker.stop()
    assert broker.process is not None and broker.process.poll() is not None and not broker.data_dir.exists()
