"""The ExProto gateway: a program with gRPC's own server, devices with a protocol of lines, MQTT clients on the other side."""

import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_tools import protoc

from shardbroker.config.gateways import ExProtoGateway
from shardbroker.gateways.exproto.contract import ADAPTER, message, methods
from shardbroker.gateways.exproto.session import FIGURES, WAITING_BYTES, ExProtoSession
from shardbroker.gateways.session import Link
from tests.edge.certificates import Authority
from tests.gateways.conftest import GatewayBroker
from tests.gateways.exproto_program import Program
from tests.harness import Client, Publish, free_port, until

SUCCESS, UNKNOWN, GONE, MISSED, WRONG, DENIED = range(6)


class Device:
    """A device that speaks lines, over TCP or UDP."""

    def __init__(self, at: tuple[str, int], kind: int = socket.SOCK_STREAM, context: ssl.SSLContext | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, kind)
        self.socket.settimeout(20)
        deadline_s = time.monotonic() + 20
        while True:
            try:
                self.socket.connect(at)
                break
            except (ConnectionRefusedError, ConnectionAbortedError):
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self._data = b""

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def write(self, line: str) -> None:
        self.socket.send(f"{line}\n".encode())

    def read(self) -> str:
        while b"\n" not in self._data:
            data = self.socket.recv(65536)
            if not data:
                return ""
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        return line.decode()

    def ask(self, line: str) -> str:
        self.write(line)
        return self.read()

    def answer(self, line: str) -> str:
        """As `ask`, without messages that arrive meanwhile."""
        self.write(line)
        while (found := self.read()).startswith("MSG "):
            pass
        return found

    def connect(self, name: str, *rest: str) -> None:
        assert self.ask(" ".join(["CONNECT", name, *rest])) == "CODE 0 "


def settings_of(adapter: int, program: int, **more: str) -> dict[str, Any]:
    return {"server.bind": f"127.0.0.1:{adapter}", "handler.address": f"http://127.0.0.1:{program}", "idle_timeout": "6s"} | {
        name.replace("__", "."): value for name, value in more.items()
    }


class World:
    """A broker with the gateway, and a program."""

    def __init__(self, service: str = "ConnectionUnaryHandler", tls: Any = None, **more: str) -> None:
        adapter, port = free_port(), free_port()
        self.udp = "127.0.0.1", free_port()
        own = {
            "listeners.u.bind": f"127.0.0.1:{self.udp[1]}", "listeners.u.type": "udp", "handler.service_name": service,
        }  # fmt: skip
        gateway = own | settings_of(adapter, port, **more)
        self.broker = GatewayBroker(3, gateway, "exproto")
        self.program = Program(port, f"localhost:{adapter}", service, tls)

    def __enter__(self) -> "World":
        self.program.start()
        self.broker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.broker.stop()
        finally:
            self.program.__exit__()

    def device(self, kind: int = socket.SOCK_STREAM) -> Device:
        return Device(self.broker.at if kind == socket.SOCK_STREAM else self.udp, kind)

    def messages_for(self, topic: str) -> set[bytes]:
        """Payloads that the program has got."""
        events = [one for method, one in list(self.program.heard) if method == "OnReceivedMessages"]
        return {one.payload for event in events for one in event.messages if one.topic == topic}

    def connected(self, name: str) -> Device:
        """A device that is connected, as soon as gateway and program are there."""

        def attempt() -> Device | None:
            with suppress(OSError), ExitStack() as stack:
                device = stack.enter_context(self.device())
                if device.answer(f"CONNECT {name}") == "CODE 0 ":
                    stack.pop_all()
                    return device
            return None

        found: Device = until(attempt)
        return found

    def conn_of(self, device: Device) -> str:
        """The name of the connection of a device."""
        own = device.socket.getsockname()[1]

        def find() -> str | None:
            rows = (one for method, one in list(self.program.heard) if method == "OnSocketCreated")
            return next((one.conn for one in rows if one.conninfo.peername.port == own), None)

        found: str = until(find)
        return found


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(handler__request_timeout="60s") as one:  # a test fills a socket while the program does not answer
        yield one


KINDS = [pytest.param(socket.SOCK_STREAM, id="tcp"), pytest.param(socket.SOCK_DGRAM, id="udp")]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_both_ways(world: World, name: str, kind: int) -> None:
    with world.device(kind) as device, Client(world.broker.address, 5, f"{name}m") as client:
        device.connect(name)
        assert device.ask(f"SUB 2 {name}/down") == "CODE 0 "
        client.subscribe(f"{name}/up", 2)
        for qos in (0, 1, 2):
            assert device.ask(f"PUB {qos} {name}/up hello {qos}") == "CODE 0 "
            client.expect(Publish, topic=f"{name}/up", payload=f"hello {qos}".encode(), qos=qos)
            client.publish(f"{name}/down", f"answer {qos}".encode(), qos)
            assert device.read() == f"MSG {qos} {name}/down answer {qos}"
        assert device.ask(f"UNSUB {name}/down") == "CODE 0 "
        client.publish(f"{name}/down", b"to nobody", 1)
        assert device.ask("ECHO still here") == "still here"


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_program_hears_of_a_connection(world: World, name: str, kind: int) -> None:
    with world.device(kind) as device:
        if kind == socket.SOCK_DGRAM:
            device.write("ECHO first")
        conn = world.conn_of(device)
        created = next(one for method, one in world.program.heard if method == "OnSocketCreated" and one.conn == conn)
        info = created.conninfo
        assert (info.peername.host, info.peername.port) == device.socket.getsockname()
        assert (info.sockname.host, info.sockname.port) == device.socket.getpeername()
        assert info.socktype == (0 if kind == socket.SOCK_STREAM else 2) and not info.peercert.cn
        device.connect(name) if kind == socket.SOCK_STREAM else device.read()
        device.write("BYE")
        until(lambda: world.program.methods_of(conn)[-1] == "OnSocketClosed")
    heard = world.program.methods_of(conn)
    assert heard[0] == "OnSocketCreated" and heard.count("OnSocketClosed") == 1 and "OnReceivedBytes" in heard


def test_a_device_that_goes_is_told_of(world: World, name: str) -> None:
    with world.device() as device:
        device.connect(name)
        conn = world.conn_of(device)
    until(lambda: world.program.methods_of(conn)[-1] == "OnSocketClosed")
    assert world.program.call("Send", conn=conn, bytes=b"x").code == GONE


def test_a_client_is_an_ordinary_one(world: World, name: str) -> None:
    with world.device() as device:
        device.connect(name, "someone", "secret")
        (row,) = until(lambda: world.broker.ctl("clients list", clientid=name)["data"])
        assert (row["username"], row["proto_name"], row["listener"]) == ("someone", "ExProto", "exproto:tcp:default")
        world.broker.ctl("clients kick", clientids=[name])
        assert device.read() == ""


def test_calls_that_cannot_be(world: World, name: str) -> None:
    call = world.program.call
    with world.device() as device:
        conn = world.conn_of(device)
        info = message("ClientInfo")
        assert call("Send", bytes=b"x").code == MISSED
        assert call("Send", conn="none", bytes=b"x").code == GONE
        assert call("Close", conn="none").code == GONE
        for before in ("Publish", "Subscribe", "Unsubscribe"):
            assert call(before, conn=conn, topic="a").code == DENIED, before
        assert call("StartTimer", conn=conn, interval=5).code == DENIED
        whole = {"proto_name": "x", "proto_ver": "1", "clientid": name}
        for lacking in whole:
            fields = {key: value for key, value in whole.items() if key != lacking}
            assert call("Authenticate", conn=conn, clientinfo=info(**fields)).code == MISSED
        long = info(proto_name="x", proto_ver="1", clientid="x" * 65536)
        assert call("Authenticate", conn=conn, clientinfo=long).code == WRONG
        device.connect(name)
        again = call("Authenticate", conn=conn, clientinfo=info(proto_name="x", proto_ver="1", clientid=name))
        assert again.code == DENIED and "already" in again.message
        assert call("Publish", conn=conn).code == MISSED
        for topic, qos in (("a/#", 0), ("a", 3), ("", 0), ("x" * 70000, 1), ("a\0b", 1)):
            assert call("Publish", conn=conn, topic=topic, qos=qos).code in (MISSED, WRONG), topic[:10]
        assert call("Publish", conn=conn, topic="a", payload=bytes(2 << 20)).code == WRONG
        for filter, qos in (("a/#/b", 0), ("a", 3), ("", 0)):
            assert call("Subscribe", conn=conn, topic=filter, qos=qos).code in (MISSED, WRONG), filter
        assert call("StartTimer", conn=conn, type=0, interval=0).code == WRONG
        assert device.ask("ECHO still here") == "still here"


def test_raw_publish(world: World, name: str) -> None:
    with Client(world.broker.address, 5, f"{name}m") as client:
        client.subscribe(f"{name}/raw", 1)
        for qos in (0, 1, 2):
            assert world.program.call("RawPublish", topic=f"{name}/raw", qos=qos, payload=b"raw").code == SUCCESS
            client.expect(Publish, payload=b"raw", qos=min(qos, 1))
        assert world.program.call("RawPublish", topic="a/+", qos=0).code == WRONG


def test_silent_devices_are_sent_away(world: World, name: str) -> None:
    with world.device() as device, world.device() as unknown:
        device.connect(name)
        conn, other = world.conn_of(device), world.conn_of(unknown)
        assert device.ask("TIMER 4") == "CODE 0 "
        for _ in range(5):
            time.sleep(1)
            assert device.ask("ECHO here") == "here"
        assert device.read() == ""
        until(lambda: world.program.methods_of(conn)[-2:] == ["OnTimerTimeout", "OnSocketClosed"])
        assert unknown.read() == "", "it is not authenticated within idle_timeout"
        until(lambda: world.program.methods_of(other) == ["OnSocketCreated", "OnSocketClosed"])


@pytest.mark.own_broker
def test_forged_addresses_hold_little_and_not_for_long(name: str) -> None:
    """Datagrams from many addresses over UDP; none of them is authenticated. Devices find a place, and the others come back."""
    with World(**{"listeners.u.max_connections": "20", "idle_timeout": "6s"}) as world, world.connected("first"):

        def count() -> int:
            rows = {one["name"]: one for one in world.broker.ctl("gateways list")["data"]}
            return next(int(one["current_connections"]) for one in rows["exproto"]["listeners"] if one["name"] == "u")

        with ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(world.device(socket.SOCK_DGRAM)).socket.send(b"unfinished")
            until(lambda: count() == 20)
            with world.device(socket.SOCK_DGRAM) as device:
                device.connect(name)
                until(lambda: count() == 1, timeout_s=60)
                assert device.ask("ECHO here") == "here"


def test_bytes_keep_their_order_and_a_slow_program_slows_its_devices(world: World, name: str) -> None:
    with world.device() as device:
        device.connect(name)
        conn = world.conn_of(device)
        world.program.hold.clear()
        sent = 0
        piece = b"ECHO " + b"x" * 1000 + b"\n"
        device.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            for number in range(100_000):
                device.socket.sendall(piece[:-1] + b"%d\n" % number)
                sent = number
        assert 0 < sent < 50_000, "the socket fills"
        world.program.hold.set()
        device.socket.settimeout(20)
        for number in range(100):
            assert device.read() == "x" * 1000 + str(number)
        world.program.call("Close", conn=conn)


def test_what_a_device_does_not_read_is_bounded(world: World, name: str) -> None:
    with world.device() as device:
        device.connect(name)
        conn = world.conn_of(device)
        codes: list[int] = []

        def push() -> None:
            for _ in range(400):
                codes.append(world.program.call("Send", conn=conn, bytes=bytes(100_000)).code)

        threads = [threading.Thread(target=push, daemon=True) for _ in range(16)]
        for thread in threads:
            thread.start()
        until(lambda: UNKNOWN in codes)
        gateway = psutil.Process(world.broker.child_pids("sb-gateway-expr")[0])
        assert gateway.memory_info().rss < 250 << 20
    for thread in threads:
        thread.join(20)
    assert codes[-1] == GONE


def test_no_message_is_lost_while_the_program_is_away(name: str) -> None:
    """It hears of a message again, if it has not answered; QoS 1 and 2 wait in the session."""
    with World(session_expiry_interval="1h") as world, Client(world.broker.address, 5, f"{name}m") as client:
        with world.device() as device:
            device.connect(name)
            assert device.ask(f"SUB 1 {name}/d") == "CODE 0 "
            conn = world.conn_of(device)
            world.program.stop()
            client.publish(f"{name}/d", b"1", 1)
            assert device.read() == "", "its connection ends with the program"
        world.broker.wait_for_log("gateway client disconnected", "does not answer")
        client.publish(f"{name}/d", b"2", 1)
        world.program.start()
        with world.device() as device:
            device.write(f"CONNECT {name}")
            assert sorted(device.read() for _ in range(3)) == ["CODE 0 ", f"MSG 1 {name}/d 1", f"MSG 1 {name}/d 2"]
        assert world.program.call("Send", conn=conn, bytes=b"x").code == GONE


def test_a_killed_gateway_loses_nothing_acknowledged(name: str) -> None:
    with World(session_expiry_interval="1h") as world, Client(world.broker.address, 5, f"{name}m") as client:
        client.subscribe(f"{name}/up", 1)
        acknowledged: list[str] = []
        with world.device() as device:
            device.connect(name)
            assert device.ask(f"SUB 1 {name}/down") == "CODE 0 "
        for round in range(3):
            with world.connected(name) as device:
                for number in range(200):
                    text = f"{round}-{number}"
                    if number == 150:
                        world.broker.kill_process(world.broker.child_pids("sb-gateway-expr")[0])
                    try:
                        if device.answer(f"PUB 1 {name}/up {text}") != "CODE 0 ":
                            break
                    except OSError:
                        break
                    acknowledged.append(text)
            client.publish(f"{name}/down", f"{round}".encode(), 1)
        got: set[str] = set()
        while not set(acknowledged) <= got:
            one = client.expect(Publish)
            got.add(one.payload.decode())
        with world.connected(name):
            until(lambda: world.messages_for(f"{name}/down") == {b"0", b"1", b"2"})


def test_streams_of_the_older_service(name: str) -> None:
    with World("ConnectionHandler") as world, Client(world.broker.address, 5, f"{name}m") as client, world.device() as device:
        device.connect(name)
        assert device.ask(f"SUB 1 {name}/d") == "CODE 0 "
        client.publish(f"{name}/d", b"hello", 1)
        assert device.read() == f"MSG 1 {name}/d hello"
        conn = world.conn_of(device)
        device.socket.close()
        until(lambda: "OnSocketClosed" in world.program.methods_of(conn))


def test_without_a_program_devices_are_refused_and_it_is_said(name: str) -> None:
    world = World(handler__request_timeout="500ms")
    world.broker.start()
    try:
        with world.device() as device:
            assert device.read() == ""
        world.broker.wait_for_log("gateway client disconnected", "OnSocketCreated", "no answer in time")
        world.program.start()
        with world.device() as device:
            device.connect(name)
    finally:
        world.__exit__()


def test_an_address_of_the_service_that_is_taken_is_tried_again(name: str) -> None:
    world = World()
    taken = int(world.broker.settings["gateways.exproto.server.bind"].rpartition(":")[2])  # type: ignore[attr-defined]
    with socket.create_server(("127.0.0.1", taken)):
        world.__enter__()
        world.broker.wait_for_log("gateway service not opened", "gateways.exproto.server")
    try:
        world.program.call("Send", conn="none")
        with world.device() as device:
            device.connect(name)
    finally:
        world.__exit__()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_tls_between_gateway_and_program(authority: Authority, name: str) -> None:
    """Both sides show certificates, and want one of the other; a program without is not let in."""
    both, ca = authority.issue("program", "localhost", ("localhost",)), authority.cafile
    chain = [(both.read_bytes(), both.read_bytes())]
    tls = (
        grpc.ssl_server_credentials(chain, ca.read_bytes(), require_client_auth=True),
        grpc.ssl_channel_credentials(ca.read_bytes(), *chain[0]),
    )
    options = f'{{ enable = true, cacertfile = "{ca}", certfile = "{both}", keyfile = "{both}" }}'
    world = World(tls=tls, server__ssl_options=options, handler__ssl_options=options)
    handler = world.broker.settings["gateways.exproto.handler.address"]
    world.broker.settings["gateways.exproto.handler.address"] = str(handler).replace("http://127.0.0.1", "https://localhost")
    with world, world.device() as device:
        device.connect(name)
        assert device.ask("ECHO here") == "here"
        stranger = grpc.secure_channel(world.program.adapter, grpc.ssl_channel_credentials(ca.read_bytes()))
        request, answer = methods(ADAPTER)["RawPublish"]
        call = stranger.unary_unary(f"/{ADAPTER}/RawPublish", request.SerializeToString, answer.FromString)
        with pytest.raises(grpc.RpcError):
            call(request(topic="a"), timeout=5)
        stranger.close()


def test_devices_with_tls_show_their_certificate(authority: Authority, name: str) -> None:
    own, device_7 = authority.issue("own", "localhost", ("localhost",)), authority.issue("device", "device-7")
    tls = f'{{ certfile = "{own}", keyfile = "{own}", cacertfile = "{authority.cafile}", verify = "verify_peer" }}'
    world = World(listeners__default__type="ssl", listeners__default__tls=tls)
    with world, Device(world.broker.at, context=authority.client(device_7)) as device:
        device.connect(name)
        conn = world.conn_of(device)
        (created,) = [one for method, one in world.program.heard if method == "OnSocketCreated" and one.conn == conn]
        assert created.conninfo.socktype == 1
        assert (created.conninfo.peercert.cn, created.conninfo.peercert.dn) == ("device-7", "CN=device-7")


def test_devices_over_dtls(authority: Authority, name: str) -> None:
    own = authority.issue("own", "localhost", ("localhost",))
    tls = f'{{ certfile = "{own}" }}'
    with World(listeners__u__type="dtls", listeners__u__tls=tls) as world:
        command = ["openssl", "s_client", "-dtls1_2", "-quiet", "-connect", f"127.0.0.1:{world.udp[1]}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
            assert client.stdin is not None and client.stdout is not None
            client.stdin.write(f"CONNECT {name}\n".encode())
            client.stdin.flush()
            assert client.stdout.readline() == b"CODE 0 \n"
            (row,) = until(lambda: world.broker.ctl("clients list", clientid=name)["data"])
            assert row["listener"] == "exproto:dtls:u"
            (created,) = [one for method, one in world.program.heard if method == "OnSocketCreated"]
            assert created.conninfo.socktype == 3
            client.kill()


def test_the_program_of_the_page(tmp_path: Path, name: str) -> None:
    """docs/gateway-exproto.md, with other ports."""
    text = Path("docs/gateway-exproto.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    adapter, port = free_port(), free_port()
    (tmp_path / "program.py").write_text(program.replace("127.0.0.1:9100", f"127.0.0.1:{adapter}").replace(":9001", f":{port}"))
    shutil.copy("shardbroker/gateways/exproto/exproto.proto", tmp_path)
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--grpc_python_out=.", "exproto.proto"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with (
        subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path) as process,
        GatewayBroker(3, settings_of(adapter, port), "exproto") as broker,
        Client(broker.address, 5, f"{name}m") as client,
    ):
        try:
            client.subscribe(f"lines/{name}/up", 1)
            with Device(broker.at) as device:
                assert device.ask(name) == "0 "
                device.write("21.5")
                client.expect(Publish, topic=f"lines/{name}/up", payload=b"21.5")
                client.publish(f"lines/{name}/down", b"on", 1)
                assert device.read() == "on"
        finally:
            process.kill()


class Quiet:
    """A hub whose program has not answered yet."""

    node = "n"

    def opened(self, session: ExProtoSession) -> None: ...
    def closed(self, session: ExProtoSession) -> None: ...
    def wake(self, session: ExProtoSession) -> None: ...
    def now_ms(self) -> int:
        return 0


@pytest.mark.parametrize("size", [0, 1, 1400])
def test_datagrams_that_wait_for_the_program_are_bounded_however_short(size: int) -> None:
    """Each is an event of its own, so short ones must not be more than their bytes suggest."""
    figures = dict.fromkeys(FIGURES, 0)
    session = ExProtoSession(Quiet(), ExProtoGateway(), 128, "conn", "s", figures, 0.0)
    session.began(Link("udp", ("127.0.0.1", 1), ("127.0.0.1", 2), None, lambda: None))
    for _ in range(100_000):
        session.from_device(bytes(size), 1.0)
    waiting = figures["received"]
    assert waiting <= WAITING_BYTES // 64 + 1 and waiting * size <= WAITING_BYTES + size
    assert figures["messages_dropped"] == 100_000 - waiting
    events = 0
    while session.next_event() is not None:
        events += 1
    assert events == waiting + 1 and session.reads_device, "and the creation of the socket"
    session.from_device(b"x", 2.0)
    event = session.next_event()
    assert event is not None and event.fields == {"bytes": b"x"}


def test_its_proto_compiles_to_its_descriptors(tmp_path: Path) -> None:
    folder = Path("shardbroker/gateways/exproto")
    made = tmp_path / "made"
    assert not protoc.main(["", f"-I{folder}", f"--descriptor_set_out={made}", "exproto.proto"])
    assert made.read_bytes() == (folder / "exproto.binpb").read_bytes()
