"""The dashboard in headless Chromium: what a person would do with it, against a running broker with three workers.

Screenshots of each page are kept in the directory $SHARDBROKER_SCREENSHOTS, where that is set.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from shardbroker.config.sinks.types import SINK_TYPES
from shardbroker.control import Control
from tests.api.rest import ApiBroker, Rest
from tests.harness import Client, Disconnect, Publish, client_id_on, free_port
from tests.harness.needed import needed

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(300)]
PATIENCE_MS = 60_000
"""For all that a page shows: only against hanging. It is there within a second on a machine with nothing else to do."""
expect.set_options(timeout=PATIENCE_MS)
SCREENSHOTS = os.environ.get("SHARDBROKER_SCREENSHOTS")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiBroker]:
    settings = tmp_path_factory.mktemp("settings") / "broker.toml"
    broker = ApiBroker(3)
    settings.write_text(
        f'[listeners.default]\nbind = "127.0.0.1:{broker.address[1]}"\n'
        f'[listeners.web]\ntype = "ws"\nbind = "127.0.0.1:{free_port()}"\n[log]\nlevel = "warning"\n'
    )
    broker.command = lambda: [  # type: ignore[method-assign]
        *(part for part in ApiBroker.command(broker) if not part.startswith("--listen")), f"--config={settings}"
    ]  # fmt: skip
    with broker:
        yield broker


@pytest.fixture(scope="module")
def rest(served: ApiBroker) -> Rest:
    return Rest.logged_in(served)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = needed("chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def look(served: ApiBroker, browser: Browser) -> Iterator[Callable[..., Page]]:
    """look("/clients", name, password): a page, logged in; nothing of it may come from elsewhere."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    foreign: list[str] = []
    broken: list[str] = []

    def open_page(path: str = "/", name: str = "admin", password: str = "") -> Page:
        page = context.new_page()
        page.on("request", lambda one: foreign.append(one.url) if urlsplit(one.url).hostname not in ("127.0.0.1", None) else None)
        page.on("pageerror", lambda error: broken.append(str(error)))
        start = f"http://127.0.0.1:{served.api_port}"
        page.goto(f"{start}/")
        page.get_by_label("User name").fill(name)
        page.get_by_label("Password").fill(password or served.password)
        page.get_by_role("button", name="Log in").click()
        if path != "/":
            page.goto(f"{start}/dashboard{path}")
        return page

    yield open_page
    context.close()
    assert not foreign and not broken


def shoot(page: Page, name: str) -> None:
    if SCREENSHOTS:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        page.wait_for_timeout(500)
        page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}.png"))


@contextmanager
def load(broker: ApiBroker) -> Iterator[None]:
    """Messages, until the context ends."""
    over = threading.Event()

    def run() -> None:
        with (
            Client(broker.address, 5, client_id_on(0, 3)) as subscriber,
            Client(broker.address, 5, client_id_on(1, 3)) as publisher,
        ):
            subscriber.subscribe("load", 1)
            while not over.is_set():
                publisher.publish("load", b"x" * 100, qos=1)
                subscriber.expect(Publish)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def figure(page: Page, name: str) -> float:
    text = page.get_by_test_id(name).inner_text()
    found = re.fullmatch(r"([\d.]+)([KMG]?)", text)
    return float(found[1]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[found[2]] if found else 0.0


def until(page: Page, test: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not test():
        assert time.monotonic() < deadline, "it never came"
        page.wait_for_timeout(100)


def test_a_wrong_password_and_no_password_show_nothing(served: ApiBroker, look: Callable[..., Page]) -> None:
    page = look("/", "admin", "wrong")
    expect(page.get_by_text("wrong user name or password")).to_be_visible()
    answer = page.goto(f"http://127.0.0.1:{served.api_port}/dashboard/clients")
    assert answer is not None and answer.headers["x-frame-options"] == "DENY"
    expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_lost_messages_stand_on_the_overview_with_their_reason(served: ApiBroker, look: Callable[..., Page]) -> None:
    """300 a second for a client that is away, and whose queue is full."""
    over = threading.Event()

    def lose() -> None:
        with Client(served.address, 5, client_id_on(0, 3), properties={"session_expiry_interval": 60}) as away:
            away.subscribe("lost", 1)
            away.disconnect()
        with Client(served.address, 5, client_id_on(1, 3)) as publisher:
            while not over.wait(0.1):
                for _ in range(30):
                    publisher.publish("lost", b"", 1)

    thread = threading.Thread(target=lose)
    with Control(served.data_dir) as control:
        control.call("config set", key="mqtt.max_mqueue_len", value="1")
        page = look("/")
        thread.start()
        try:
            until(page, lambda: figure(page, "lost") > 50)
            until(page, lambda: page.get_by_test_id("losses").inner_text().startswith("queue_full "))
            page.wait_for_timeout(5000 if SCREENSHOTS else 0)
            shoot(page, "overview-losses")
        finally:
            over.set()
            thread.join()
            control.call("config reset", key="mqtt.max_mqueue_len")
        until(page, lambda: figure(page, "lost") == 0 and not page.get_by_test_id("losses").inner_text())


def test_rates_move_under_load_and_every_worker_is_there(served: ApiBroker, look: Callable[..., Page]) -> None:
    page = look("/")
    with load(served):
        until(page, lambda: figure(page, "received") > 0 and figure(page, "connections") == 2)
        until(page, lambda: page.get_by_test_id("hop").inner_text().endswith(("µs", "ms")))
        page.wait_for_timeout(5000 if SCREENSHOTS else 0)
        shoot(page, "overview-light")
        page.get_by_role("button").filter(has_text="contrast").click()
        expect(page.locator("body.body--dark")).to_be_attached()
        shoot(page, "overview-dark")
    assert page.locator("tbody tr").count() == 3
    until(page, lambda: figure(page, "received") == 0)
    page.reload()
    expect(page.locator("body.body--dark")).to_be_attached()


def test_a_broker_alone_has_a_helpful_page_of_the_cluster(look: Callable[..., Page]) -> None:
    page = look("/cluster")
    expect(page.get_by_test_id("alone")).to_contain_text("docs/cluster.md")
    expect(page.get_by_test_id("evacuation")).to_have_text("accepts clients")
    expect(page.get_by_test_id("running")).not_to_be_visible()
    shoot(page, "cluster-alone")


def test_a_client_is_found_shown_and_kicked(served: ApiBroker, look: Callable[..., Page]) -> None:
    with Client(served.address, 5, "needle-7", username="anna") as needle, Client(served.address, 5, "hay") as hay:
        needle.subscribe("needles/#", 1)
        page = look("/clients")
        expect(page.get_by_text("hay", exact=True)).to_be_visible()
        page.get_by_label("Client id contains").fill("needle")
        page.get_by_role("button", name="Search").click()
        expect(page.get_by_text("hay", exact=True)).to_have_count(0)
        shoot(page, "clients")
        page.get_by_text("needle-7").click()
        expect(page.get_by_text("needles/#")).to_be_visible()
        shoot(page, "client")
        page.get_by_role("button", name="Kick").click()
        expect(page.get_by_text("needle-7 is kicked")).to_be_visible()
        assert needle.expect(Disconnect).code == 0x98
        hay.ping()


def test_subscriptions_are_found_by_topic(served: ApiBroker, look: Callable[..., Page]) -> None:
    with Client(served.address, 5, "listens") as client:
        client.subscribe("found/+/x", 2)
        page = look("/subscriptions")
        page.get_by_label("Gets messages of topic").fill("found/1/x")
        page.get_by_role("button", name="Search").click()
        expect(page.get_by_role("cell", name="listens")).to_be_visible()
        shoot(page, "subscriptions")


def test_the_web_client_subscribes_and_publishes(served: ApiBroker, look: Callable[..., Page]) -> None:
    with Client(served.address, 5, "outside") as outside:
        outside.subscribe("test/#", 1)
        page = look("/websocket")
        expect(page.get_by_text("ws:web")).to_be_visible()
        page.get_by_role("button", name="Connect", exact=False).first.click()
        expect(page.get_by_test_id("state")).to_have_text("connected")
        page.get_by_role("button", name="Subscribe").click()
        page.wait_for_timeout(300)
        page.get_by_label("Payload").fill("hello from the page")
        page.get_by_role("button", name="Publish").click()
        message = outside.expect(Publish)
        assert (message.topic, message.payload) == ("test/1", b"hello from the page")
        expect(page.get_by_role("cell", name="hello from the page")).to_be_visible()
        outside.publish("test/2", b"from outside", qos=1)
        expect(page.get_by_role("cell", name="from outside")).to_be_visible()
        shoot(page, "websocket")


def test_a_viewer_has_no_web_client(rest: Rest, look: Callable[..., Page]) -> None:
    """Its connection comes from the broker's own address, which access rules often allow everything."""
    rest.good("POST", "/users", {"username": "webviewer", "password": "look and see", "role": "viewer"})
    try:
        page = look("/websocket", "webviewer", "look and see")
        expect(page.get_by_text("WebSocket client").first).to_be_visible()
        for name in ("Connect", "Subscribe", "Publish"):
            expect(page.get_by_role("button", name=name)).to_have_count(0)
        expect(page.get_by_text("only for administrators")).to_be_visible()
    finally:
        rest.good("DELETE", "/users/webviewer")


def test_the_web_client_ends_when_its_account_becomes_a_viewer(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    def names() -> list[str]:
        return [row["clientid"] for row in rest.good("GET", "/clients")["data"] if row["connected"]]

    rest.good("POST", "/users", {"username": "second", "password": "look and see", "role": "administrator"})
    try:
        with Client(served.address, 5, "outside") as outside:
            outside.subscribe("test/#", 1)
            page = look("/websocket", "second", "look and see")
            page.get_by_role("button", name="Connect", exact=False).first.click()
            expect(page.get_by_test_id("state")).to_have_text("connected")
            page.get_by_role("button", name="Subscribe").click()
            page.get_by_role("button", name="Publish").click()
            outside.expect(Publish)
            expect(page.get_by_role("cell", name="test/1")).to_have_count(1)
            rest.good("PUT", "/users/second", {"role": "viewer"})
            page.get_by_role("button", name="Publish").click()
            expect(page.get_by_text("FORBIDDEN")).to_be_visible()
            expect(page.get_by_test_id("state")).to_contain_text("disconnected")
            until(page, lambda: names() == ["outside"])
            page.get_by_role("button", name="Connect", exact=False).first.click()
            page.wait_for_timeout(500)
            outside.ping()
            outside.expect_none()
            assert names() == ["outside"]
    finally:
        rest.good("DELETE", "/users/second")


def test_a_retained_message_is_shown_and_deleted(rest: Rest, look: Callable[..., Page]) -> None:
    rest.good("POST", "/publish", {"topic": "kept/1", "payload": '{"temperature": 21.5}', "retain": True})
    page = look("/retained")
    page.get_by_label("Filter").fill("kept/#")
    page.get_by_role("button", name="Search").click()
    page.get_by_text("kept/1").click()
    expect(page.get_by_text('{"temperature": 21.5}')).to_be_visible()
    shoot(page, "retained")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("kept/1 is deleted")).to_be_visible()
    assert rest.refused("GET", "/mqtt/retainer/message/kept/1") == (404, "NOT_FOUND")


def test_settings_say_where_they_come_from_and_change(rest: Rest, look: Callable[..., Page]) -> None:
    page = look("/settings")
    expect(page.get_by_role("cell", name="log.level")).to_be_visible()
    page.get_by_label("Section").click()
    page.get_by_role("option", name="mqtt", exact=True).click()
    row = page.get_by_role("row").filter(has_text=re.compile(r"^mqtt\.max_inflight"))
    row.click()
    page.get_by_label("Value, as in TOML").fill("12")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(row).to_contain_text("runtime.toml")
    assert rest.good("GET", "/configs/mqtt")["max_inflight"] == 12
    shoot(page, "settings")
    rest.good("POST", "/configs_reset/mqtt.max_inflight")
    (last,) = rest.good("GET", "/audit", limit=1, by="dashboard:admin")["data"]
    assert last["args"] == {"key": "mqtt.max_inflight", "value": "12"}


def test_a_viewer_cannot_kick(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    rest.good("POST", "/users", {"username": "looker", "password": "look and see", "role": "viewer"})
    with Client(served.address, 5, "stays-here") as client:
        page = look("/clients", "looker", "look and see")
        page.get_by_text("stays-here").click()
        expect(page.get_by_role("button", name="Kick")).to_be_disabled()
        client.ping()


def test_who_logs_out_is_out(served: ApiBroker, look: Callable[..., Page]) -> None:
    page = look("/")
    page.get_by_role("button").filter(has_text="logout").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.goto(f"http://127.0.0.1:{served.api_port}/dashboard/")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_rules_are_tried_out_and_bans_come_and_go(rest: Rest, look: Callable[..., Page]) -> None:
    page = look("/access")
    page.get_by_label("Topic or filter").fill("a/b")
    page.get_by_role("button", name="Test").click()
    expect(page.get_by_test_id("verdict")).to_have_text("allowed")
    page.get_by_label("Whom").fill("villain")
    page.get_by_label("Reason").fill("rude")
    page.get_by_role("button", name="Ban", exact=True).click()
    expect(page.get_by_role("cell", name="villain")).to_be_visible()
    (ban,) = rest.good("GET", "/banned")["data"]
    assert (ban["who"], ban["by"], ban["reason"]) == ("villain", "admin", "rude")
    shoot(page, "access")
    page.get_by_role("row").filter(has_text="villain").get_by_role("checkbox").click()
    page.get_by_role("button", name="End the ban").click()
    expect(page.get_by_role("cell", name="villain")).to_have_count(0)
    assert rest.good("GET", "/banned")["data"] == []


def test_a_rule_is_made_from_nothing(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    """Typed, tried, saved, seen to work, changed and deleted."""
    page = look("/rules")
    result = page.get_by_test_id("result")
    expect(result).to_contain_text('"temp": 31')
    sql = page.get_by_test_id("sql").locator(".cm-content")
    sql.fill('SELECT payload.t * 2 AS double, clientid FROM "rooms/#" WHERE payload.t > 10')
    expect(result).to_contain_text("nomatch: FROM does not match")
    context = page.locator(".cm-content").nth(2)
    context.fill('{"topic": "rooms/1", "payload": "{\\"t\\": 21}"}')
    expect(result).to_contain_text('"double": 42')
    sql.fill("SELECT FROM")
    expect(result).to_contain_text("parse: ")
    sql.fill('SELECT payload.t * 2 AS double FROM "rooms/#" WHERE payload.t > 10')
    page.locator(".cm-content").nth(1).fill(
        '[{"function": "republish", "args": {"topic": "double/rooms", "payload": "${double}", "qos": 1}}]'
    )
    page.get_by_label("Id", exact=True).fill("double")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("double is in force")).to_be_visible()
    with Client(served.address, 5, "rooms") as client:
        client.subscribe("double/#", 1)
        client.publish("rooms/1", b'{"t": 21}', 1)
        assert client.expect(Publish).payload == b"42"
    until(page, lambda: page.locator("tbody tr", has_text="rooms/#").locator("td").nth(4).inner_text() == "1")
    page.get_by_role("button", name="Try on the last 100 messages").click()
    expect(page.get_by_test_id("past")).to_contain_text('rooms/1  {"double": 42}')
    shoot(page, "rules")
    page.get_by_role("button", name="New rule").click()
    page.get_by_label("Columns of").click()
    page.get_by_role("option", name="client connected").click()
    expect(result).to_contain_text('"event": "client.connected"')
    shoot(page, "rules-event")
    page.locator("tbody tr", has_text="rooms/#").click()
    expect(page.get_by_label("Id", exact=True)).to_have_value("double")
    page.get_by_role("switch", name="Enabled").click()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("double is disabled")).to_be_visible()
    assert rest.good("GET", "/rules/double")["enable"] is False
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("double is deleted")).to_be_visible()
    assert rest.good("GET", "/rules")["data"] == []


def test_a_connector_and_an_action_are_made_from_nothing(rest: Rest, look: Callable[..., Page]) -> None:
    """Filled in, refused, probed, saved, changed with the secret that is not shown, and deleted."""
    page = look("/connectors")
    page.get_by_role("button", name="New connector").click()
    page.get_by_text("HTTP", exact=True).click()
    page.get_by_label("name", exact=True).fill("service")
    page.get_by_label("url", exact=True).fill("ftp://a")
    page.get_by_label("headers (JSON)").fill('{"authorization": "s3cret"}')
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("must be http://HOST/PATH or https://HOST/PATH")).to_be_visible()
    page.get_by_label("url", exact=True).fill("http://127.0.0.1:1")
    page.get_by_role("button", name="Test connection").click()
    expect(page.get_by_test_id("probe")).not_to_have_text(re.compile(r"^(\.\.\.)?$"))
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("http:service is in force")).to_be_visible()
    page.get_by_label("pool_size").fill("3")
    page.get_by_role("button", name="Save").click()
    until(page, lambda: rest.good("GET", "/connectors/http:service")["pool_size"] == 3)
    assert "s3cret" not in page.content()
    shoot(page, "connectors")
    page.goto(page.url.replace("/connectors", "/actions"))
    page.get_by_role("button", name="New action").click()
    page.get_by_text("HTTP", exact=True).click()
    page.get_by_label("name", exact=True).fill("rooms")
    page.get_by_role("combobox", name="connector", exact=True).click()
    page.get_by_role("option", name="service").click()
    page.get_by_label("path", exact=True).fill("/rooms/${clientid}")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("http:rooms is in force")).to_be_visible()
    assert rest.good("GET", "/actions/http:rooms")["parameters"]["path"] == "/rooms/${clientid}"
    shoot(page, "actions")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No action yet.")).to_be_visible()
    page.goto(page.url.replace("/actions", "/connectors"))
    page.get_by_text("http:service", exact=True).click()
    expect(page.get_by_label("pool_size")).to_have_value("3")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No connector yet.")).to_be_visible()


@pytest.mark.parametrize("kind", ["connector", "action", "source"])
def test_each_type_has_a_form(served: ApiBroker, look: Callable[..., Page], kind: str) -> None:
    """It is filled with the defaults, so that it can be read again, and is refused by the broker alone."""
    page = look(f"/{kind}s")
    for type, row in SINK_TYPES.items():
        if kind == "source" and row.source is None:
            continue
        page.get_by_role("button", name=f"New {kind}").click()
        page.get_by_text(row.title, exact=True).click()
        expect(page.get_by_text(f"New {kind}: {row.title}", exact=True)).to_be_visible()
        page.get_by_label("name", exact=True).fill(f"{type} ")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("must be up to 64 letters")).to_be_visible()
    assert "Traceback" not in served.log


def test_a_source_is_made_over_a_new_connector(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    """Messages of this very broker, as it is a server of MQTT too; seen, changed and deleted."""
    rest.good("POST", "/connectors", {"type": "mqtt", "name": "near", "server": f"127.0.0.1:{served.address[1]}"})
    page = look("/sources?connector=mqtt:near")
    expect(page.get_by_text("New source: MQTT", exact=True)).to_be_visible()
    page.get_by_label("name", exact=True).fill("loop")
    page.get_by_label("topic (JSON)", exact=True).fill('["from/#"]')
    page.get_by_text("local", exact=True).click()
    page.get_by_label("topic", exact=True).fill("seen/${topic}")
    shoot(page, "source-form")
    page.get_by_role("button", name="Test connection").click()
    expect(page.get_by_test_id("probe")).to_have_text("The server can be used.")
    page.get_by_role("button", name="Save").click()
    card = page.get_by_test_id("card").filter(has_text="mqtt:loop")
    expect(card).to_contain_text("connected")
    with Client(served.address, 5, "looker") as client:
        client.subscribe("seen/#")
        client.publish("from/1", b"hey", 1)
        client.expect(Publish, topic="seen/from/1", payload=b"hey")
    shoot(page, "sources")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No source yet.")).to_be_visible()
    rest.good("DELETE", "/connectors/mqtt:near")


def test_a_viewer_sees_rules_and_makes_none(rest: Rest, look: Callable[..., Page]) -> None:
    rest.good("POST", "/rules", {"id": "shown", "sql": 'SELECT * FROM "shown/#"'})
    rest.good("POST", "/users", {"username": "reader", "password": "reader-123", "role": "viewer"})
    page = look("/rules", "reader", "reader-123")
    expect(page.locator("tbody tr", has_text="shown/#")).to_be_visible()
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    expect(page.get_by_test_id("result")).to_contain_text("Only administrators try rules.")
    rest.good("DELETE", "/rules/shown")
    rest.good("DELETE", "/users/reader")


def test_a_gateway_is_started_and_stopped(look: Callable[..., Page], rest: Rest) -> None:
    bind = f"127.0.0.1:{free_port()}"
    rest.good("PUT", "/configs/gateways", {"stomp": {"listeners": {"default": {"bind": bind}}}})
    page = look("/gateways")
    row = page.get_by_role("row", name=re.compile("stomp unloaded"))
    row.get_by_role("checkbox").click()
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("row", name=re.compile("stomp running"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile(f"stomp:tcp:default {bind} yes"))).to_be_visible()
    shoot(page, "gateways")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("row", name=re.compile("stomp unloaded"))).to_be_visible()
    rest.good("POST", "/configs_reset/gateways.stomp.enable")


def test_plugins_are_loaded_seen_and_unloaded(served: ApiBroker, look: Callable[..., Page], tmp_path: Path, rest: Rest) -> None:
    (tmp_path / "loud.py").write_text(
        "from shardbroker.hooks import ok\n\n"
        "def load(plugin):\n"
        "    mark = plugin.settings['mark'].encode()\n"
        "    plugin.hook('message.publish', lambda message: ok(message.replace(payload=message.payload + mark)))\n"
    )
    rest.good("PUT", "/configs/plugins", {"dir": str(tmp_path)})
    page = look("/plugins")
    row = page.get_by_role("row", name=re.compile("^Choose the row loud"))
    expect(row).to_contain_text("not loaded")
    row.get_by_role("checkbox").click()
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_text("KeyError: 'mark'").first).to_be_visible()
    page.get_by_label("Settings").fill("mark=!!")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(row.get_by_role("cell").nth(2)).to_have_text("loaded")
    with Client(served.address, 5, "plugged") as client:
        client.subscribe("plugged")
        client.publish("plugged", b"hey")
        client.expect(Publish, payload=b"hey!!")
    hooks = page.get_by_role("row", name="loud:load.<locals>.<lambda>")
    expect(hooks.get_by_role("cell").nth(3)).to_have_text("1")
    shoot(page, "plugins")
    page.get_by_role("button", name="Unload").click()
    expect(row).to_contain_text("not loaded")
    expect(hooks).to_have_count(0)
