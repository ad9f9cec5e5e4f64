"""The page of the cluster: two brokers that are linked, a third member that is down, and a stand-in that sends hostile texts."""

import json
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from shardbroker.cluster.faults import ByeReason
from shardbroker.cluster.handshake import Handshake, Identity, cluster_uuid
from shardbroker.cluster.messages import Bye, Hello, Load, Message, Ping, Pong, Welcome
from shardbroker.cluster.view import SIGNALS
from shardbroker.link.codec import decode, encode
from shardbroker.link.frames import FRAME_BYTES_MAX, FrameReader, preface
from tests.api.rest import PASSWORD, Rest
from tests.cluster.real.nodes import COOKIE, Nodes
from tests.dashboard.test_dashboard import browser, look, shoot
from tests.dashboard.test_walk import IMAGE, SAFE, checked_at_all_sizes
from tests.harness import Closed, free_port
from tests.harness.needed import needed
from tests.harness.waiting import until

__all__ = ["browser", "look"]

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(300)]
SETTINGS = {"cluster.registry": "on"}
START_MS = 60_000
"""For what waits for a link, or for the start of a broker."""


@contextmanager
def running(count: int, start: list[int], **arguments: Any) -> Iterator[Nodes]:
    """Nodes of which the first has a dashboard."""
    with tempfile.TemporaryDirectory(prefix="shardbroker-cluster-") as directory:
        port = free_port()
        nodes = Nodes(Path(directory), count, each={1: {"api.bind": f"127.0.0.1:{port}"}}, **{**SETTINGS, **arguments})
        nodes.served = SimpleNamespace(api_port=port, password="")  # type: ignore[attr-defined]
        for number in {*nodes.brokers} - {*start}:
            del nodes.brokers[number]
        try:
            nodes.start(start)
            (password,) = until(lambda: PASSWORD.findall(nodes.output(1)), lambda: nodes.output(1))
            nodes.served.password = password  # type: ignore[attr-defined]
            yield nodes
        finally:
            for broker in nodes.brokers.values():
                broker.kill()
                broker.clear_shared()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with running(3, [1, 2], **{"cluster.join_timeout": "2s"}) as nodes:
        yield nodes


@pytest.fixture
def served(nodes: Nodes) -> SimpleNamespace:
    found: SimpleNamespace = nodes.served  # type: ignore[attr-defined]
    return found


@pytest.fixture
def rest(served: SimpleNamespace) -> Rest:
    status, answer = Rest(served.api_port)("POST", "/login", {"username": "admin", "password": served.password})
    assert status == 200, answer
    return Rest(served.api_port, f"Bearer {answer['token']}")


def row(page: Page, table: str, text: str) -> Locator:
    return page.locator(".q-card", has_text=table).locator("tbody tr", has_text=text)


def colors(row: Locator, text: str) -> list[str]:
    """Returns the colors of the badges with a text."""
    classes = [badge.get_attribute("class") or "" for badge in row.locator(".q-badge").get_by_text(text, exact=True).all()]
    return [name.removeprefix("bg-") for one in classes for name in one.split() if name.startswith("bg-")]


def test_nodes_links_and_load_are_shown(nodes: Nodes, rest: Rest, look: Callable[..., Page]) -> None:
    page = look("/cluster")
    with nodes.connect(2, "c"):
        own, other, away = (row(page, "Nodes", name) for name in ("n1@127.0.0.1 (this node)", "n2@", nodes.addresses[2]))
        expect(own).to_contain_text("running", timeout=START_MS)
        expect(other.get_by_role("cell").nth(4)).to_have_text("1", timeout=START_MS)
        expect(away).to_contain_text("stopped")
        expect(page.get_by_test_id("running")).to_have_text("2 of 3")
        expect(page.get_by_test_id("linked")).to_have_text("1 of 2")
        expect(page.get_by_test_id("isolated")).to_have_text("no")
        titles = page.locator(".q-card", has_text="Links").locator("thead th")
        expect(titles.filter(has_text="Retained messages")).to_have_count(1)
        expect(titles.filter(has_text="Users and rules")).to_have_count(1)
        expect(titles.last).to_have_text("Last error")
        expect(row(page, "Links", "n2@").get_by_role("cell")).to_have_text(
            ["n2@127.0.0.1", "up", "up", "normal", "0", "0 B", "synced", "synced", ""], timeout=START_MS
        )
        assert colors(row(page, "Links", "n2@"), "synced") == ["green-9", "green-9"]
        expect(row(page, "Links", nodes.addresses[2])).to_contain_text("down")
        assert colors(row(page, "Links", nodes.addresses[2]), "none") == ["grey-8", "grey-8"]
        expect(page.get_by_test_id("alone")).not_to_be_visible()
        listed = {one["node"]: one for one in rest.good("GET", "/nodes")}
        assert listed["n2@127.0.0.1"]["connections"] == 1 and listed["n2@127.0.0.1"]["node_status"] == "running"
        assert listed[nodes.addresses[2]] == {
            "node": nodes.addresses[2], "node_status": "stopped", "edition": "shardbroker", "role": "core",
        }  # fmt: skip
        assert rest.good("GET", "/nodes/n2@127.0.0.1")["version"] == listed["n1@127.0.0.1"]["version"]
        assert rest.refused("GET", "/nodes/n9") == (404, "NOT_FOUND")
    assert not checked_at_all_sizes(page, "cluster")


def test_clients_of_all_nodes_are_shown_and_kicked(nodes: Nodes, rest: Rest, look: Callable[..., Page]) -> None:
    with nodes.connect(1, "first"), nodes.connect(2, "second") as client:
        client.subscribe([("a/+", 1)])
        until(lambda: rest.good("GET", "/subscriptions")["data"])
        until(lambda: len(rest.good("GET", "/clients")["data"]) == 2)
        page = look("/clients")
        expect(row(page, "Clients", "second").get_by_role("cell").last).to_have_text("n2@127.0.0.1", timeout=START_MS)
        expect(row(page, "Clients", "first").get_by_role("cell").last).to_have_text("n1@127.0.0.1")
        away = nodes.addresses[2]
        expect(page.get_by_text(f"rows of {away} are missing: node {away}: its link is down")).to_be_visible()
        assert not checked_at_all_sizes(page, "clients-of-all-nodes")
        row(page, "Clients", "second").click()
        expect(page.get_by_role("dialog").get_by_text("a/+")).to_be_visible()
        page.get_by_role("button", name="Kick").click()
        client.expect_close(20)
        until(lambda: len(rest.good("GET", "/clients")["data"]) == 1)
        page.get_by_role("button", name="Search").click()
        expect(row(page, "Clients", "second")).to_have_count(0)


def test_this_node_is_emptied_and_accepts_clients_again(nodes: Nodes, rest: Rest, look: Callable[..., Page]) -> None:
    page = look("/cluster")
    state, button = page.get_by_test_id("evacuation"), page.get_by_role("button", name="Empty this node")
    expect(state).to_have_text("accepts clients")
    button.click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_test_id("confirm")).to_have_count(0)
    assert rest.good("GET", "/load_rebalance/status") == {"status": "disabled"}
    with nodes.connect(1, "c", properties={"session_expiry_interval": 600}) as client:
        button.click()
        page.get_by_label("Accept clients for").fill("soon")
        page.get_by_test_id("confirm").click()
        expect(page.get_by_text("wait: must be a duration from 0s to 1d")).to_be_visible()
        page.get_by_label("Accept clients for").fill("1s")
        page.get_by_label("Wait for clients to move").fill("1s")
        page.get_by_label("Clients a second").fill("7")
        page.get_by_label("Server Reference").fill("10.0.0.2:1883")
        page.get_by_label("Sessions move to").click()
        page.get_by_role("option", name="n2@127.0.0.1").click()
        page.keyboard.press("Escape")
        shoot(page, "cluster-evacuate")
        page.get_by_test_id("confirm").click()
        client.expect_close(20)
    expect(state).to_have_text("prohibiting", timeout=START_MS)
    expect(page.get_by_test_id("may-be-stopped")).to_be_visible()
    expect(page.get_by_test_id("message")).to_contain_text("the node may be stopped")
    expect(page.get_by_text("0 left of 1")).to_have_count(2)
    expect(row(page, "Nodes", "this node")).to_contain_text("turns clients away")
    found = rest.good("GET", "/load_rebalance/status")
    assert (found["connection_eviction_rate"], found["session_recipients"]) == (7, ["n2@127.0.0.1"])
    assert found["redirect_to"] == "10.0.0.2:1883"
    (last,) = rest.good("GET", "/audit", limit=1, by="dashboard:admin")["data"]
    assert last["command"] == "node evacuate start" if "command" in last else last
    assert not checked_at_all_sizes(page, "cluster-emptied")
    page.get_by_role("button", name="Accept clients again").click()
    page.get_by_test_id("confirm").click()
    expect(state).to_have_text("accepts clients")
    expect(row(page, "Nodes", "this node")).to_contain_text("running")
    nodes.connect(1, "c").close()


def test_a_viewer_empties_nothing(rest: Rest, look: Callable[..., Page]) -> None:
    rest.good("POST", "/users", {"username": "looker", "password": "look and see", "role": "viewer"})
    page = look("/cluster", "looker", "look and see")
    expect(row(page, "Nodes", "this node")).to_be_visible()
    expect(page.get_by_role("button", name="Empty this node")).to_be_disabled()
    rest.good("DELETE", "/users/looker")


class StandIn:
    """Connects to a node as its third member, with the right cookie."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        me = Identity(3, name, nodes.addresses[2], cluster_uuid("shardbroker"), b"3" * 16, 7)
        host, _, port = nodes.addresses[2].rpartition(":")
        self._listener = socket.create_server((host, int(port)))
        self._reason = ""
        host, _, port = nodes.addresses[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._socket.sendall(preface(SIGNALS))
        self._reader = FrameReader(FRAME_BYTES_MAX)
        handshake = Handshake(me, COOKIE, b"n" * 16, SIGNALS, True, 0, nodes.addresses[0])
        self.send(*handshake.start())
        while not handshake.is_done:
            match self._next():
                case Hello() as hello:
                    self.send(*handshake.on_hello(hello))
                case Welcome() as welcome:
                    self.send(*handshake.on_welcome(welcome))
                case other:
                    raise AssertionError(other)
        for work in (self._answer, self._accept):
            threading.Thread(target=work, daemon=True).start()

    def send(self, *messages: Message) -> None:
        for message in messages:
            self._socket.sendall(encode(message))

    def _next(self) -> Message:
        while (frame := self._reader.next()) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                raise Closed
            self._reader.feed(data)
        return decode(frame)

    def _answer(self) -> None:
        """Keeps the link alive."""
        with suppress(Closed, OSError):
            while True:
                if isinstance(message := self._next(), Ping):
                    self.send(Pong(message.number, 0))

    def _accept(self) -> None:
        """Refuses what the node dials, once there is a reason."""
        with suppress(OSError):
            while True:
                found, _ = self._listener.accept()
                with found:
                    found.recv(1 << 16)
                    found.sendall(encode(Bye(ByeReason.NOT_A_MEMBER, self._reason)))

    def refuse(self, reason: str) -> None:
        """Ends the link."""
        self._reason = reason
        self.send(Bye(ByeReason.NOT_A_MEMBER, reason))

    def close(self) -> None:
        self._listener.close()
        self._socket.close()


def test_hostile_texts_of_a_peer_are_shown_as_text(nodes: Nodes, rest: Rest, look: Callable[..., Page]) -> None:
    page = look("/cluster")

    def safe() -> None:
        page.wait_for_timeout(300)
        pwned, title, images = page.evaluate(SAFE)
        assert (pwned, images) == (None, 0) and "pwned" not in title

    stand_in = StandIn(nodes, IMAGE)
    stand_in.send(Load((1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1, False, IMAGE[:64]))
    for table in ("Nodes", "Links"):
        expect(row(page, table, IMAGE)).to_be_visible(timeout=START_MS)
    expect(row(page, "Nodes", IMAGE)).to_contain_text(IMAGE[:64], timeout=START_MS)
    expect(row(page, "Nodes", IMAGE)).to_contain_text("4.3G")
    for cell in (6, 7):  # the stand-in sends no sums, so no comparison is done
        expect(row(page, "Links", IMAGE).get_by_role("cell").nth(cell)).to_have_text("syncing", timeout=START_MS)
    assert {*colors(row(page, "Links", IMAGE), "syncing")} == {"deep-orange-10"}
    safe()
    shoot(page, "cluster-hostile")
    page.get_by_role("button", name="Empty this node").click()
    page.get_by_label("Sessions move to").click()
    expect(page.get_by_role("option", name=IMAGE)).to_be_visible()
    safe()
    page.reload()
    stand_in.refuse(IMAGE)
    expect(row(page, "Links", IMAGE).get_by_role("cell").last).to_contain_text("onerror", timeout=START_MS)
    safe()
    stand_in.close()
    assert json.dumps(rest.good("GET", "/nodes")).count("onerror") == 1


def test_etcd_is_shown(browser: Any) -> None:
    needed("etcd")
    with running(1, [1], cores=[1]) as nodes:
        served = nodes.served  # type: ignore[attr-defined]
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(f"http://127.0.0.1:{served.api_port}/")
        page.get_by_label("User name").fill("admin")
        page.get_by_label("Password").fill(served.password)
        page.get_by_role("button", name="Log in").click()
        page.goto(f"http://127.0.0.1:{served.api_port}/dashboard/cluster")
        expect(page.get_by_test_id("core")).to_have_text("connected", timeout=START_MS)
        expect(row(page, "etcd", "n1@")).to_contain_text("leader", timeout=START_MS)
        shoot(page, "cluster-etcd")
        page.close()
