"""The dashboard beside 100,000 clients that are really connected: one of them is found, shown and kicked."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.api.rest import ApiBroker, Rest
from tests.dashboard.test_dashboard import browser, look, pytestmark, rest, shoot
from tests.harness import Client, Disconnect, client_id_on, until

__all__ = ["browser", "look", "pytestmark", "rest"]

CLIENTS = 100_000
WORKERS = 8
"""A process may have 20,000 descriptors."""
LOADS = 8
"""Processes of `shardbroker perf`, each from an address of its own: an address has about 28,000 ports."""
CONNECTED_S = 120.0
"""It takes 10 to 20 s on two cores."""


@pytest.fixture(scope="module")
def served() -> Iterator[ApiBroker]:
    program = str(Path(sys.executable).with_name("shardbroker"))
    each = CLIENTS // LOADS
    with ExitStack() as stack:
        broker = stack.enter_context(ApiBroker(WORKERS, {"log.level": "warning"}))
        for number in range(LOADS):
            options = {
                "--port": broker.address[1], "--count": each, "--startnumber": number * each, "--client-id": "crowd-%i",
                "--topic": "crowd/%i", "--ifaddr": f"127.0.{number + 1}.1", "--keepalive": 0,
            }  # fmt: skip
            words = [str(word) for option in options.items() for word in option]
            command = [program, "perf", "conn", *words, "--quiet"]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            stack.callback(process.terminate)
        control = Rest.logged_in(broker)
        until(lambda: control.good("GET", "/stats")[0]["connections.count"] >= CLIENTS, timeout_s=CONNECTED_S)
        yield broker


@pytest.mark.timeout(300)
def test_one_of_a_hundred_thousand_is_found_shown_and_kicked(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    with Client(served.address, 5, client_id_on(WORKERS - 1, WORKERS, "needle"), username="anna", keepalive=0) as needle:
        needle.subscribe("needles/#", 1)
        page = look("/")
        expect(page.get_by_text("100.0K").first).to_be_visible()
        shoot(page, "overview-100000")
        page.goto(f"http://127.0.0.1:{served.api_port}/dashboard/clients")
        expect(page.get_by_text("crowd-", exact=False).first).to_be_visible()
        shoot(page, "clients-100000")
        for label, text in (("Client id contains", "needle"), ("User name contains", "anna")):
            page.get_by_label(label).fill(text)
            page.get_by_role("button", name="Search").click()
            expect(page.get_by_role("cell", name=needle.client_id)).to_be_visible()
            expect(page.get_by_text("crowd-", exact=False)).to_have_count(0)
            page.get_by_label(label).fill("")
        page.get_by_text(needle.client_id).click()
        expect(page.get_by_text("needles/#")).to_be_visible()
        page.get_by_role("button", name="Kick").click()
        expect(page.get_by_text(f"{needle.client_id} is kicked")).to_be_visible()
        assert needle.expect(Disconnect).code == 0x98
    assert rest.good("GET", "/stats")[0]["connections.count"] == CLIENTS


def test_pages_by_cursor_give_each_client_once(rest: Rest) -> None:
    names: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = rest.good("GET", f"/clients?limit=1000&cursor={quote(cursor)}")
        names += [row["clientid"] for row in answer["data"]]
        cursor = answer["meta"]["cursor"]
    assert len(names) == len(set(names)) == CLIENTS
