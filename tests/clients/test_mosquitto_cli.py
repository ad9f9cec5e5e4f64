"""mosquitto_pub and mosquitto_sub, as scripts use them."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.harness import AnyBroker, Client, Connack

TIMEOUT_S = 10.0
LINE_BUFFERED = ("stdbuf", "-oL")
"""Into a pipe mosquitto_sub would hold back its output until it ends."""

pytestmark = [
    pytest.mark.parametrize("protocol", ["mqttv31", "mqttv311", "mqttv5"]),
    pytest.mark.skipif(not shutil.which("mosquitto_sub"), reason="needs mosquitto_sub"),
]
Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., str]


@pytest.fixture
def start(broker: AnyBroker, protocol: str) -> Iterator[Start]:
    """start("pub" | "sub", *options): a running command; ended with the test."""
    with ExitStack() as stack:

        def command(which: str, *options: str) -> "subprocess.Popen[str]":
            host, port = broker.address
            arguments = [
                *LINE_BUFFERED,
                f"mosquitto_{which}",
                "-h",
                host,
                "-p",
                str(port),
                "-V",
                protocol,
                *options,
            ]
            process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield command


@pytest.fixture
def run(start: Start) -> Run:
    """run("pub" | "sub", *options): the output of a command that must succeed."""

    def command(which: str, *options: str) -> str:
        process = start(which, *options)
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, output
        return output

    return command


def subscribed(start: Start, *options: str) -> "subprocess.Popen[str]":
    """A mosquitto_sub that has its SUBACK; it prints `payload qos retain` a line."""
    process = start("sub", "-d", "-F", "%p %q %r", "-W", "10", *options)
    assert process.stdout is not None
    while "Subscribed" not in (line := process.stdout.readline()):
        assert line, "mosquitto_sub ended"
    return process


def lines(process: "subprocess.Popen[str]") -> list[str]:
    """Messages that it printed until it ended; the debug lines are left out."""
    output, _ = process.communicate(timeout=TIMEOUT_S)
    return [line for line in output.splitlines() if not line.startswith(("Client ", "Subscribed"))]


def test_publish_at_each_qos(start: Start, run: Run, topic: str) -> None:
    subscriber = subscribed(start, "-t", f"{topic}/#", "-q", "2", "-C", "3")
    for qos in "012":
        run("pub", "-t", f"{topic}/{qos}", "-m", f"m{qos}", "-q", qos)
    assert sorted(lines(subscriber)) == ["m0 0 0", "m1 1 0", "m2 2 0"]


def test_retained(run: Run, topic: str) -> None:
    run("pub", "-t", topic, "-m", "kept", "-q", "1", "-r")
    assert run("sub", "-t", topic, "-q", "1", "-C", "1", "-W", "5", "-F", "%p %q %r") == "kept 1 1\n"
    run("pub", "-t", topic, "-n", "-r", "-q", "1")


def test_will(start: Start, topic: str) -> None:
    watcher = subscribed(start, "-t", f"{topic}/will", "-q", "1", "-C", "1")
    subscribed(start, "-t", topic, "--will-topic", f"{topic}/will", "--will-payload", "lost", "--will-qos", "1").kill()
    assert lines(watcher) == ["lost 1 0"]


def test_session_resume(start: Start, run: Run, topic: str, new_id: Callable[[], str], protocol: str) -> None:
    expiry = ["-x", "60"] if protocol == "mqttv5" else []
    session = ["-i", new_id(), "-c", "-t", topic, "-q", "1", *expiry]
    run("sub", *session, "-E")
    run("pub", "-t", topic, "-m", "stored", "-q", "1")
    assert run("sub", *session, "-C", "1", "-W", "5", "-F", "%p %q") == "stored 1\n"


def test_unsubscribe(start: Start, run: Run, topic: str, new_id: Callable[[], str], protocol: str) -> None:
    expiry = ["-x", "60"] if protocol == "mqttv5" else []
    session = ["-i", new_id(), "-c", "-q", "1", *expiry]
    run("sub", *session, "-t", topic, "-E")
    run("sub", *session, "-t", f"{topic}/other", "-U", topic, "-E")
    run("pub", "-t", topic, "-m", "unwanted", "-q", "1")
    run("pub", "-t", f"{topic}/other", "-m", "wanted", "-q", "1")
    assert run("sub", *session, "-t", f"{topic}/other", "-C", "1", "-W", "5") == "wanted\n"


@pytest.mark.parametrize(("qos", "count"), [("1", 200), ("2", 15)])
def test_lines_from_standard_input(start: Start, broker: AnyBroker, topic: str, protocol: str, qos: str, count: int) -> None:
    """At QoS 2 no more than fit into mosquitto_sub's Receive Maximum: mosquitto 2.0.11 itself may overrun it."""
    subscriber = subscribed(start, "-t", topic, "-q", qos, "-C", str(count))
    host, port = broker.address
    subprocess.run(
        ["mosquitto_pub", "-h", host, "-p", str(port), "-V", protocol, "-t", topic, "-q", qos, "-l"],
        input="".join(f"line{n}\n" for n in range(count)),
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert lines(subscriber) == [f"line{n} {qos} 0" for n in range(count)]


def test_raw_client_agrees(run: Run, broker: AnyBroker, topic: str, new_id: Callable[[], str]) -> None:
    """What mosquitto_pub sends arrives unchanged at a client that shares nothing with it."""
    with Client(broker.address, 4, new_id()) as client:
        assert isinstance(client.connack, Connack)
        client.subscribe(topic, 1)
        run("pub", "-t", topic, "-m", "\u00fcber", "-q", "1")
        message = client.recv()
        assert getattr(message, "payload", None) == "\u00fcber".encode()
