"""All pages of the dashboard at several sizes, dark and light, with connectors and actions in each state, and hostile texts."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from shardbroker.api.dashboard import MENU
from tests.api.rest import ApiBroker, Rest
from tests.dashboard.test_dashboard import browser, look, pytestmark, rest, served, shoot, until
from tests.harness import Client
from tests.servers.postgresql import postgresql

__all__ = ["browser", "look", "pytestmark", "rest", "served"]

WALK = (*(page.path for group in MENU.values() for page in group), "/settings?section=mqtt")
SIZES = {"wide": (1400, 900), "tablet": (1024, 768), "phone": (390, 844)}
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
CUT = """() => [...document.querySelectorAll('[data-testid=card]')].flatMap(card =>
    [...card.querySelectorAll('*')].filter(one => one.getBoundingClientRect().right > card.getBoundingClientRect().right + 1)
    .map(one => one.textContent))"""
"""Texts that stick out of a card."""
CONTRAST = """() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const parts = color => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data]; };
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = one => { for (; one; one = one.parentElement) {
        const color = parts(getComputedStyle(one).backgroundColor); if (color[3] > 127) return color; }
        return [255, 255, 255]; };
    const read = '[data-testid=card] .q-badge, td .q-badge, [data-testid=core], [data-testid=evacuation], ' +
        '[data-testid=card] .nicegui-label, [data-testid=probe], .q-btn';
    return [...document.querySelectorAll(read)]
        .filter(one => one.textContent.trim()).map(one => {
            const [a, b] = [light(parts(getComputedStyle(one).color)), light(behind(one))];
            return [one.textContent, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]; })
        .filter(([, ratio]) => ratio < 4.5); }"""
"""Texts with less contrast than WCAG AA demands."""
LONG = "a-name-that-is-as-long-as-names-of-connectors-and-actions-may-be"


class Refusing(BaseHTTPRequestHandler):
    """A stand-in for a service that rejects each row."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(422)

    def do_HEAD(self) -> None:
        self.send_error(405)

    do_GET = do_OPTIONS = do_HEAD

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing."""


@contextmanager
def refusing() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def states(served: ApiBroker, rest: Rest) -> Iterator[dict[str, str]]:
    """Id of a connector -> its state; the actions over them have the same names, and the same states but for `stopped`."""
    with refusing() as port, socket.create_server(("127.0.0.1", 0)) as silent:
        urls = {"refusing": f"http://127.0.0.1:{port}", LONG: "http://127.0.0.1:1"}
        made = [("http", name, {"url": url}) for name, url in urls.items()]
        made.append(("pgsql", "silent", {"server": f"127.0.0.1:{silent.getsockname()[1]}", "timeout": "1h"}))
        for type, name, settings in made:
            rest.good("POST", "/connectors", {"type": type, "name": name, "description": "Readings of plant 1. " * 9, **settings})
            parameters = {"sql": "INSERT INTO t VALUES (${topic})"} if type == "pgsql" else {}
            action = {"type": type, "name": name, "connector": name, "description": "x" * 300, "parameters": parameters}
            rest.good("POST", "/actions", action)
        rest.good("POST", "/connectors", {"type": "disk_log", "name": "file", "filepath": "walk.log"})
        for name in ("written", "halted"):
            rest.good("POST", "/actions", {"type": "disk_log", "name": name, "connector": "file"})
        rest.good("POST", "/connectors", {"type": "disk_log", "name": "off", "filepath": "off.log", "enable": False})
        rest.good("POST", "/actions/disk_log:halted/stop")
        actions = ["http:refusing", f"http:{LONG}", "disk_log:written"]
        for number in range(3):
            rest.good("POST", "/rules", {"id": f"walk-{number}", "sql": 'SELECT * FROM "walk/#"', "actions": actions})
        with Client(served.address, 5, "walker") as client:
            for number in range(20):
                client.publish(f"walk/{number}", b"{}", 1)
        yield {
            "http:refusing": "connected", f"http:{LONG}": "disconnected", "pgsql:silent": "connecting",
            "disk_log:file": "connected", "disk_log:off": "stopped",
        }  # fmt: skip
        for number in range(3):
            rest.good("DELETE", f"/rules/walk-{number}")
        for id in ("http:refusing", f"http:{LONG}", "pgsql:silent", "disk_log:written", "disk_log:halted"):
            rest.good("DELETE", f"/actions/{id}")
        for id in (*(f"{type}:{name}" for type, name, _ in made), "disk_log:file", "disk_log:off"):
            rest.good("DELETE", f"/connectors/{id}")


def checked_at_all_sizes(page: Page, name: str) -> list[str]:
    """Returns what is wrong with a page, dark and light."""
    found = []
    for theme in ("light", "dark"):
        expect(page.locator(f"body.body--{theme}")).to_be_attached()
        for size, (width, height) in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_timeout(300)
            shoot(page, f"walk-{name}-{size}-{theme}")
            if (overflow := page.evaluate(OVERFLOW)) > 0:
                found.append(f"{name} {size} {theme}: {overflow} pixels too wide")
            found += [f"{name} {size} {theme}: sticks out: {text[:80]}" for text in page.evaluate(CUT)]
            found += [f"{name} {size} {theme}: contrast {ratio:.1f}: {text[:80]}" for text, ratio in page.evaluate(CONTRAST)]
        page.set_viewport_size({"width": 1400, "height": 900})
        page.get_by_role("button").filter(has_text="contrast").click()
        page.wait_for_timeout(300)  # the cookie is written
    return found


@pytest.mark.timeout(300)
def test_all_pages_at_all_sizes_dark_and_light(
    served: ApiBroker, rest: Rest, look: Callable[..., Page], states: dict[str, str]
) -> None:
    page = look("/")

    def are_there() -> bool:
        shown = {f"{one['type']}:{one['name']}": one["status"] for one in rest.good("GET", "/connectors")}
        return shown == states and rest.good("GET", "/actions/http:refusing/metrics")["metrics"]["failed"] == 60

    until(page, are_there)
    found = []
    for path in WALK:
        page.goto(f"http://127.0.0.1:{served.api_port}/dashboard{path}")
        page.wait_for_load_state("networkidle")
        if path in ("/connectors", "/actions"):
            for status in ("connected", "connecting", "disconnected", "stopped"):
                expect(page.get_by_test_id("card").filter(has_text=status).first).to_be_visible()
        if path == "/actions":
            expect(page.get_by_test_id("card").filter(has_text="http:refusing")).to_contain_text("60 failed")
            expect(page.get_by_test_id("card").filter(has_text=LONG)).to_contain_text(re.compile(r"[1-9]\d* behind, "))
        found += checked_at_all_sizes(page, re.sub(r"\W+", "-", path.strip("/")) or "overview")
    for path, id in (("connectors", f"http:{LONG}"), ("actions", f"http:{LONG}")):
        page.goto(f"http://127.0.0.1:{served.api_port}/dashboard/{path}")
        page.wait_for_load_state("networkidle")  # a click before the page is connected has no effect
        page.get_by_text(id, exact=True).click()
        page.get_by_role("button", name="Test connection").click()
        expect(page.get_by_test_id("probe")).to_contain_text("refused")
        found += checked_at_all_sizes(page, f"{path}-form")
    assert not found, "\n".join(found)


IMAGE = "<img src=x onerror=\"window.pwned = document.title = 'pwned'\">"
SAFE = "() => [window.pwned, document.title, document.querySelectorAll('img[src=x]').length]"


def test_hostile_texts_are_shown_as_text(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    """In names, descriptions, errors of a server, statements, topics and payloads; and in links to the pages."""
    assert rest.refused("POST", "/actions", {"type": "http", "name": IMAGE, "connector": "x"})[0] == 400
    with postgresql() as server:
        settings = {
            "server": f"127.0.0.1:{server.port}",
            "username": "mqtt",
            "database": IMAGE,
            "description": IMAGE,
            "tags": [IMAGE],
        }
        rest.good("POST", "/connectors", {"type": "pgsql", "name": "hostile", **settings})
        action = {"connector": "hostile", "description": IMAGE, "parameters": {"sql": f"INSERT INTO t VALUES (${{x}}) -- {IMAGE}"}}
        rest.good("POST", "/actions", {"type": "pgsql", "name": "hostile", **action})
        rule = {
            "id": "hostile",
            "name": IMAGE,
            "description": IMAGE,
            "sql": f"SELECT *, '{IMAGE.replace(chr(39), '')}' AS x FROM \"h/#\"",
        }
        rest.good("POST", "/rules", {**rule, "actions": ["pgsql:hostile"]})
        with Client(served.address, 5, f"client {IMAGE}") as client:
            client.publish(f"h/{IMAGE}".replace("#", ""), json.dumps({"x": IMAGE}).encode(), 1)
        page = look("/")

        def safe() -> None:
            page.wait_for_timeout(300)
            pwned, title, images = page.evaluate(SAFE)
            assert (pwned, images) == (None, 0) and "pwned" not in title

        start = f"http://127.0.0.1:{served.api_port}/dashboard"
        for kind in ("connectors", "actions"):
            answer = page.goto(f"{start}/{kind}")
            assert (
                answer is not None and "content-security-policy" not in answer.headers
            )  # none of its own: escaping is all there is
            expect(page.get_by_test_id("card")).to_contain_text(IMAGE)
            until(page, lambda: f'database "{IMAGE}" does not exist' in page.get_by_test_id("card").inner_text())
            page.get_by_text("pgsql:hostile", exact=True).click()
            page.get_by_role("button", name="Test connection").click()
            expect(page.get_by_test_id("probe")).to_contain_text(f'database "{IMAGE}" does not exist')
            page.get_by_test_id("card").locator(".text-xs").nth(1).hover()
            shoot(page, f"hostile-{kind}")
            safe()
            page.get_by_role("button", name=f"New {kind[:-1]}").click()
            page.get_by_text("PostgreSQL", exact=True).click()
            page.get_by_label("name", exact=True).fill(IMAGE)
            page.get_by_role("button", name="Save").click()
            expect(page.get_by_text("must be up to 64 letters")).to_be_visible()
            page.get_by_label("name", exact=True).fill("other")
            field = "server" if kind == "connectors" else "connector"
            if kind == "connectors":
                page.get_by_label(field, exact=True).fill(IMAGE)
                page.get_by_role("button", name="Save").click()
                expect(page.get_by_text("must be HOST:PORT")).to_be_visible()
            safe()
        page.goto(f"{start}/rules")
        page.locator("tbody tr", has_text="hostile").click()
        expect(page.get_by_label("Id", exact=True)).to_have_value("hostile")
        page.get_by_role("button", name="Try on the last 100 messages").click()
        expect(page.get_by_test_id("past")).to_contain_text("onerror")
        shoot(page, "hostile-rules")
        safe()
        for link in ("actions?connector=", "rules?action=", "actions?connector=pgsql:", "rules?action=pgsql:"):
            page.goto(f"{start}/{link}{IMAGE}")
            safe()
        rest.good("DELETE", "/rules/hostile")
        rest.good("DELETE", "/connectors/pgsql:hostile?also_delete_dep_actions=true")
