"""Restarts under a service manager: listening sockets outlive the broker, clients are sent away paced, sessions lose nothing."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from shardbroker.supervisor import StartError
from shardbroker.supervisor.held import HeldSockets
from tests.harness import Broker, Client, Disconnect, Publish
from tests.harness.broker import free_port
from tests.harness.service_manager import ServiceManager

pytestmark = pytest.mark.own_broker


DRAIN_S = 1.5


@contextmanager
def listening(port: int = 0, backlog: int = 4096) -> Iterator[socket.socket]:
    with socket.socket() as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        end.bind(("127.0.0.1", port))
        end.listen(backlog)
        yield end


def stop(broker: Broker) -> None:
    assert broker.process is not None
    broker.terminate()
    assert broker.process.wait(20) == 0, "".join(broker.output)


def refuses(broker: Broker, why: str) -> None:
    """The broker does not start, and says why."""
    with pytest.raises(AssertionError, match=why):
        broker.start()
    broker.process = None
    broker.stop()


def test_sockets_of_a_socket_unit_are_used_and_stay_open() -> None:
    with listening() as end, ServiceManager() as manager:
        port = end.getsockname()[1]
        with manager.supervise(Broker(2, port=port), {"default": [end.fileno()]}) as broker:
            assert f"tcp://127.0.0.1:{port}" in broker.ready_line
            for _ in range(4):
                Client(broker.address, 5).close()
        with socket.create_connection(("127.0.0.1", port), 5):
            pass  # nobody accepts, and nobody refuses


def test_a_socket_that_no_listener_is_there_for_is_named() -> None:
    with listening() as end, ServiceManager() as manager:
        broker = manager.supervise(Broker(1), {"typo": [end.fileno()]})
        refuses(broker, "sockets named typo: allowed as FileDescriptorName= are the names of the listeners, default")


def test_each_socket_of_a_unit_needs_an_acceptor() -> None:
    with listening() as one, listening() as other, ServiceManager() as manager:
        broker = Broker(1, arguments=("--acceptors=1",))
        given = {"default": [one.fileno(), other.fileno()]}
        refuses(manager.supervise(broker, given), "2 sockets of the service manager for 1 acceptor")


def test_what_is_no_listening_socket_is_refused(tmp_path: Path) -> None:
    with ServiceManager() as manager, open(tmp_path / "file", "w") as file:
        broker = manager.supervise(Broker(1), {"default": [file.fileno()]})
        refuses(broker, "descriptor 3, default, which is not a listening socket")


def test_nothing_is_taken_that_was_meant_for_another_process() -> None:
    held = HeldSockets.handed_over({"LISTEN_PID": "1", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "a:b:c"})
    assert not held.by_name


def test_own_sockets_are_kept_for_the_next_start_with_another_number_of_acceptors(tmp_path: Path) -> None:
    port = free_port()
    with ServiceManager() as manager:
        first = manager.supervise(Broker(1, port=port, data_dir=tmp_path, arguments=("--acceptors=2",)))
        first.start()
        manager.until("READY")
        for _ in range(2):
            manager.until("FDSTORE")
        stop(first)
        waiting = socket.create_connection(("127.0.0.1", port), 5)
        given = {name: list(numbers) for name, numbers in manager.kept.items()}
        assert [*given] == ["shardbroker.default"]
        # An address that is not wanted any more, of a listener that is gone.
        with listening() as stale, manager.supervise(
            Broker(1, port=port, data_dir=tmp_path, arguments=("--acceptors=3",)), given | {"shardbroker.gone": [stale.fileno()]}
        ) as second, waiting:
            waiting.sendall(b"\x10\x0c\0\4MQTT\4\2\0\0\0\0")
            assert waiting.recv(4) == b"\x20\2\0\0"
            for _ in range(6):
                Client(second.address, 5).close()


def test_the_service_manager_forgets_the_sockets_of_a_listener_that_was_removed(tmp_path: Path) -> None:
    """Else the port stays taken, and clients that connect to it wait for ever."""
    port = free_port()
    with ServiceManager() as manager:
        arguments = (f"--listen=tcp://127.0.0.1:{port}", "--acceptors=1")
        first = manager.supervise(Broker(1, data_dir=tmp_path, arguments=arguments))
        first.start()
        manager.until("READY")
        manager.until("FDSTORE")
        manager.until("FDSTORE")
        stop(first)
        assert {*manager.kept} == {"shardbroker.default", "shardbroker.listen-2"}
        given = {name: list(numbers) for name, numbers in manager.kept.items()}
        with manager.supervise(Broker(1, data_dir=tmp_path, arguments=("--acceptors=1",)), given) as second:
            Client(second.address, 5).close()
            assert manager.until("FDSTOREREMOVE")["FDNAME"] == "shardbroker.listen-2"
            assert {*manager.kept} == {"shardbroker.default"}


def test_kept_sockets_of_another_address_are_closed() -> None:
    with listening() as end, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        kept = os.dup(end.fileno())
        held = HeldSockets({"shardbroker.default": [kept]})
        assert held.take("default", f"127.0.0.1:{other.getsockname()[1]}").descriptors == ()
        with pytest.raises(OSError):
            os.fstat(kept)
        kept = os.dup(end.fileno())
        held = HeldSockets({"shardbroker.default": [kept], "alien": [os.dup(end.fileno())]})
        assert held.take("default", f"127.0.0.1:{end.getsockname()[1]}").descriptors == (kept,)
        with pytest.raises(StartError, match="alien"):
            held.finish(["default"])
        os.close(kept)


def test_clients_are_sent_away_over_the_drain_time() -> None:
    broker = Broker(2, {"process.drain_time": "2s"})
    with broker, ExitStack() as stack:
        clients = [stack.enter_context(Client(broker.address, 5)) for _ in range(20)]
        began = time.monotonic()
        broker.terminate()
        ended: list[float] = []

        def wait(client: Client) -> None:
            gone = client.expect_close(10)
            assert isinstance(gone, Disconnect)
            assert gone.code == 0x8B
            ended.append(time.monotonic() - began)

        threads = [threading.Thread(target=wait, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert broker.process.wait(20) == 0  # type: ignore[union-attr]
        broker.process = None
        ended.sort()
        assert len(ended) == 20
        assert ended[10] - ended[0] > 0.4
        assert ended[-1] - ended[0] > 1.2


def test_clients_are_served_while_they_wait_for_their_turn() -> None:
    broker = Broker(1, {"process.drain_time": "3s", "process.drain_server_reference": "other.example:1883"})
    with broker, ExitStack() as stack:
        clients = [stack.enter_context(Client(broker.address, 5)) for _ in range(10)]
        for client in clients:
            client.subscribe("t")
        broker.terminate()
        assert isinstance(clients[0].expect_close(10), Disconnect)
        clients[9].publish("t", b"still here")
        got = clients[8].recv(5)
        assert isinstance(got, Publish)
        assert got.payload == b"still here"
        gone = clients[8].expect_close(10)
        assert isinstance(gone, Disconnect)
        assert gone.code == 0x9C
        assert gone.properties["server_reference"] == "other.example:1883"
        assert broker.process.wait(20) == 0  # type: ignore[union-attr]
        broker.process = None


class Reconnecting(threading.Thread):
    """A device with a persistent session: publishes QoS 1 numbers to itself, and comes back whenever it is sent away."""

    def __init__(self, name: str, address: tuple[str, int], until: threading.Event) -> None:
        super().__init__(daemon=True)
        self.client_name, self._address, self._until = name, address, until
        self.acknowledged: set[int] = set()
        self.received: set[int] = set()
        self.refused: list[str] = []
        self.left: list[float] = []
        """When it was sent away."""
        self.connections = 0

    def run(self) -> None:
        import paho.mqtt.client as paho
        from paho.mqtt.properties import Properties

        numbers: dict[int, int] = {}
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, self.client_name, protocol=paho.MQTTv5)
        properties = Properties(1)
        properties.SessionExpiryInterval = 3600

        def on_connect(one: paho.Client, *_: object) -> None:
            self.connections += 1
            one.subscribe(f"own/{self.client_name}", 1)

        client.on_connect = on_connect
        client.on_disconnect = lambda *_: self.left.append(time.monotonic())
        client.on_message = lambda _one, _data, message: self.received.add(int(message.payload))
        client.on_publish = lambda _one, _data, packet, *_: self.acknowledged.add(numbers[packet])
        client.reconnect_delay_set(1, 1)

        def attempt() -> None:
            while True:
                try:
                    client.connect(*self._address, clean_start=False, properties=properties)
                    return
                except OSError as error:
                    self.refused.append(repr(error))
                    time.sleep(0.1)

        attempt()
        number = 0
        while not self._until.is_set():
            if client.loop(0.02):
                attempt()
                continue
            if client.is_connected():
                number += 1
                numbers[client.publish(f"own/{self.client_name}", str(number), 1).mid] = number
        deadline = time.monotonic() + 20
        while not (set(numbers.values()) <= self.acknowledged & self.received) and time.monotonic() < deadline:
            if client.loop(0.05):
                attempt()
        client.disconnect()


def all_connected(devices: list[Reconnecting], times: int) -> None:
    """Waits until each has been let in so often, and some traffic after."""
    deadline = time.monotonic() + 60
    while any(device.connections < times for device in devices):
        assert time.monotonic() < deadline, [device.connections for device in devices]
        time.sleep(0.05)
    time.sleep(0.5)


@pytest.mark.parametrize("kind", ["socket unit", "kept"])
def test_an_upgrade_under_load_refuses_nobody_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    settings = {"process.drain_time": f"{DRAIN_S}s"}
    port = free_port()
    done = threading.Event()
    stop_knocking = threading.Event()
    knocked: list[str] = []

    def knock() -> None:
        """Newcomers all the while: each must be let in, however long it takes."""
        while not stop_knocking.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), 30) as end:
                    end.sendall(b"\x10\x0c\0\4MQTT\4\2\0\0\0\0")
                    knocked.append("in" if end.recv(4) == b"\x20\2\0\0" else "closed")
            except OSError as error:
                knocked.append(repr(error))
            time.sleep(0.01)

    with ExitStack() as stack:
        manager = stack.enter_context(ServiceManager())
        given: dict[str, list[int]] = {}
        if kind == "socket unit":
            given = {"default": [stack.enter_context(listening(port)).fileno()]}
        broker = manager.supervise(Broker(2, settings, tmp_path, port), given)
        broker.start()
        stack.callback(broker.kill)
        devices = [Reconnecting(f"device{i}", broker.address, done) for i in range(10)]
        knocking = threading.Thread(target=knock, daemon=True)
        for thread in (*devices, knocking):
            thread.start()
        try:
            for times, workers in ((1, 3), (2, 2)):
                all_connected(devices, times)
                while manager.take(0.1):
                    pass
                stop(broker)
                kept = {name: list(numbers) for name, numbers in manager.kept.items()} if kind == "kept" else given
                broker = manager.supervise(Broker(workers, settings, tmp_path, port), kept)
                broker.start()
                stack.callback(broker.kill)
            all_connected(devices, 3)
        finally:
            stop_knocking.set()
            done.set()
            for thread in (*devices, knocking):
                thread.join(40)
        stop(broker)
    for device in devices:
        assert not device.refused, device.refused
        assert device.connections >= 3, "each was sent away by each restart"
        assert len(device.left) >= 2
        assert device.acknowledged
        assert device.acknowledged <= device.received, sorted(device.acknowledged - device.received)
    for restart in range(2):
        left = sorted(device.left[restart] for device in devices)
        assert left[-1] - left[0] > DRAIN_S / 2, "they leave, and come again, over the drain time"
    assert set(knocked) == {"in"}, {what: knocked.count(what) for what in set(knocked)}
