"""Pages for administration in headless Chromium: metrics, access control, listeners, hooks, accounts, audit log, settings."""

import re
import time
from collections.abc import Callable
from contextlib import suppress

from playwright.sync_api import Locator, Page, expect

from tests.api.rest import ApiBroker, Rest
from tests.dashboard.test_dashboard import browser, look, pytestmark, rest, served, shoot, until
from tests.harness import Client, Publish, client_id_on, free_port

__all__ = ["browser", "look", "pytestmark", "rest", "served"]


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_label(label, exact=True).click()
    page.get_by_role("option", name=option, exact=True).click()


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def new(page: Page, what: str, kind: str) -> None:
    page.get_by_role("button", name=f"New {what}").click()
    page.locator(".q-menu .q-item", has_text=re.compile(f"^{kind}$")).click()


def beside(page: Page, label: str) -> Locator:
    return page.locator(".q-field", has=page.get_by_label(label, exact=True)).locator(".q-field__messages")


def test_metrics_are_found_by_name(served: ApiBroker, look: Callable[..., Page]) -> None:
    with Client(served.address, 5, "counted") as client:
        client.publish("counted", b"x", qos=1)
        page = look("/metrics")
        page.get_by_label("Name contains").fill("publish.received")
        row = page.get_by_role("row").filter(has_text=re.compile(r"^packets\.publish\.received"))
        expect(row).to_contain_text("counter")
        before = int(row.get_by_role("cell").nth(2).inner_text().replace(",", ""))
        for _ in range(20):
            client.publish("counted", b"x", qos=1)
        until(page, lambda: int(row.get_by_role("cell").nth(2).inner_text().replace(",", "")) >= before + 20)
        expect(page.get_by_role("row", name=re.compile("bytes.sent"))).to_have_count(0)
        shoot(page, "metrics")
        page.get_by_label("Name contains").fill("retained.count")
        expect(page.get_by_text("nothing here")).to_be_visible()
        page.get_by_role("checkbox", name="Those that are 0, too").click()
        expect(page.get_by_role("row", name=re.compile("retained.count gauge"))).to_be_visible()


def test_a_delayed_message_is_shown_and_deleted(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    with Client(served.address, 5, "later") as client:
        client.publish("$delayed/600/late/1", b"not yet", qos=1)
        page = look("/delayed")
        row = page.get_by_role("row").filter(has_text="late/1")
        expect(row).to_contain_text("later")
        shoot(page, "delayed")
        row.click()
        expect(page.get_by_text("not yet", exact=True)).to_be_visible()
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_text("late/1 is deleted")).to_be_visible()
        expect(row).to_have_count(0)
    assert rest.good("GET", "/mqtt/delayed/messages")["data"] == []


def test_topics_are_shown_with_their_workers(served: ApiBroker, look: Callable[..., Page]) -> None:
    name = client_id_on(1, 3, "topical")
    with Client(served.address, 5, name) as client:
        client.subscribe("topical/+", 1)
        page = look("/subscriptions")
        page.get_by_label("Filter", exact=True).fill("topical/+")
        button(page, "Search").click()
        expect(page.get_by_role("row").filter(has_text="topical/+")).to_have_count(2)
        topic = page.locator("tbody tr").filter(has_text=re.compile(r"^topical/"))
        expect(topic.locator("td").nth(1)).to_have_text(re.compile(r"\b1$"))


def test_an_alarm_is_shown(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    """Of messages that are lost, as the queue of a client is full."""
    rest.good("PUT", "/configs/alarm", {"lost_messages": 0.1})
    rest.good("PUT", "/configs/mqtt", {"max_mqueue_len": 1})
    with Client(served.address, 5, "absent", properties={"session_expiry_interval": 60}) as absent:
        absent.subscribe("lossy", 1)
        absent.disconnect()
    page = look("/diagnose")
    with Client(served.address, 5, "pours") as client:

        def is_shown() -> bool:
            for _ in range(30):
                client.publish("lossy", b"", qos=1)
            return page.get_by_role("cell", name="messages_lost").is_visible()

        until(page, is_shown)
    shoot(page, "alarm")
    rest.good("DELETE", "/clients/absent")
    for key in ("alarm.lost_messages", "mqtt.max_mqueue_len"):
        rest.good("POST", f"/configs_reset/{key}")


def test_authenticators_are_made_changed_ordered_and_removed(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    """With a user, who may log in then; a refused value is shown beside its field."""
    page = look("/authentication")
    members = page.get_by_test_id("member")
    expect(page.get_by_text("No authenticator: all clients may connect.")).to_be_visible()
    page.get_by_label("User name or client id").fill("anna")
    page.get_by_label("Password", exact=True).fill("anna's own")
    button(page, "Add user").click()
    expect(page.get_by_role("cell", name="anna")).to_be_visible()
    new(page, "authenticator", "http")
    page.get_by_label("url", exact=True).fill("ftp://a")
    button(page, "Save").click()
    expect(beside(page, "url")).to_contain_text("http://HOST/PATH")
    page.get_by_label("url", exact=True).fill("http://127.0.0.1:1/auth")
    button(page, "Save").click()
    expect(page.get_by_text("http is in force")).to_be_visible()
    new(page, "authenticator", "builtin")
    button(page, "Save").click()
    expect(members).to_have_count(2)
    shoot(page, "authentication")
    page.get_by_role("button", name="Move builtin up").click()
    expect(members.first).to_contain_text("builtin")
    assert rest.good("GET", "/configs/auth")["chain"] == ["builtin", "http"]
    members.nth(1).click()
    page.get_by_label("pool_size").fill("3")
    shoot(page, "authentication-form")
    button(page, "Save").click()
    until(page, lambda: rest.good("GET", "/configs/auth")["http"]["pool_size"] == 3)
    page.get_by_role("button", name="Remove http").click()
    expect(members).to_have_count(1)
    with Client(served.address, 5, "hers", username="anna", password="anna's own") as client:
        client.ping()
    page.get_by_role("row").filter(has_text="anna").get_by_role("checkbox").click()
    button(page, "Delete user").click()
    expect(page.get_by_role("cell", name="anna")).to_have_count(0)
    page.get_by_role("button", name="Remove builtin").click()
    expect(members).to_have_count(0)
    assert rest.good("GET", "/configs/auth")["chain"] == []
    for key in ("auth.chain", "auth.http.url", "auth.http.pool_size"):
        rest.good("POST", f"/configs_reset/{key}")


def test_sources_of_rules_and_rules_are_made_and_removed(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    page = look("/authorization")
    page.get_by_label("Topic filter").fill("only/#")
    button(page, "Add rule").click()
    expect(page.get_by_role("row").filter(has_text="only/#")).to_contain_text("allow")
    new(page, "source", "builtin")
    button(page, "Save").click()
    expect(page.get_by_text("builtin is in force")).to_be_visible()
    with Client(served.address, 5, "ruled") as client:
        assert client.publish("only/1", b"", qos=1) is not None
    new(page, "source", "redis")
    button(page, "Save").click()
    shoot(page, "authorization")
    page.get_by_role("button", name="Remove builtin").click()
    expect(page.get_by_text("builtin is removed")).to_be_visible()
    page.get_by_role("row").filter(has_text="only/#").get_by_role("checkbox").click()
    button(page, "Delete all rules of this name").click()
    expect(page.get_by_role("row").filter(has_text="only/#")).to_have_count(0)
    for name in [row.get("type", "") for row in rest.good("GET", "/authorization/sources")["sources"]]:
        assert name == "redis"
        page.get_by_role("button", name="Remove redis").click()
        expect(page.get_by_text("redis is removed")).to_be_visible()
    for key in ("acl.sources", "acl.redis.server"):
        rest("POST", f"/configs_reset/{key}")


def test_a_listener_is_opened_changed_stopped_and_removed(rest: Rest, look: Callable[..., Page]) -> None:
    port = free_port()
    page = look("/listeners")
    expect(page.get_by_role("row").filter(has_text=re.compile("^default"))).to_contain_text("yes")
    button(page, "New listener").click()
    page.get_by_label("name", exact=True).fill("second")
    page.get_by_label("bind", exact=True).fill("nowhere")
    button(page, "Save").click()
    expect(beside(page, "bind")).to_contain_text("HOST:PORT")
    page.get_by_label("bind", exact=True).fill(f"127.0.0.1:{port}")
    button(page, "Save").click()
    row = page.get_by_role("row").filter(has_text=re.compile("^second"))
    expect(row).to_contain_text(f"127.0.0.1:{port}")
    with Client(("127.0.0.1", port), 5, "beside") as client:
        client.ping()
    row.get_by_role("cell").nth(1).click()
    expect(page.get_by_label("name", exact=True)).to_be_disabled()
    page.get_by_label("max_connections", exact=True).fill("7")
    button(page, "Save").click()
    expect(page.get_by_text("second is changed")).to_be_visible()
    expect(row).to_contain_text("7")
    shoot(page, "listeners")
    row.get_by_role("checkbox").click()
    button(page, "Stop").click()
    expect(row).to_contain_text("no")
    button(page, "Start").click()
    expect(row).to_contain_text("yes")
    button(page, "Remove").click()
    expect(row).to_have_count(0)
    assert [one["name"] for one in rest.good("GET", "/listeners")] == ["default", "web"]


def test_exhook_servers_are_made_changed_and_removed(rest: Rest, look: Callable[..., Page]) -> None:
    page = look("/exhook")
    members = page.get_by_test_id("member")
    for name in ("first", "second"):
        new(page, "server", "server")
        page.get_by_label("name", exact=True).fill(name)
        page.get_by_label("url", exact=True).fill("http://127.0.0.1:1")
        page.get_by_label("failed_action").click()
        page.get_by_role("option", name="ignore").click()
        button(page, "Save").click()
        expect(page.get_by_text(f"{name} is in force")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="second")).to_contain_text("disconnected")
    shoot(page, "exhook")
    page.get_by_role("button", name="Move second up").click()
    expect(members.first).to_contain_text("second")
    members.first.click()
    page.get_by_role("switch", name="enable", exact=True).click()
    button(page, "Save").click()
    expect(members.first).to_contain_text("disabled")
    for name in ("first", "second"):
        page.get_by_role("button", name=f"Remove {name}").click()
        expect(page.get_by_text(f"{name} is removed")).to_be_visible()
    assert rest.good("GET", "/configs/exhook")["servers"] == []
    rest.good("POST", "/configs_reset/exhook.servers")


def test_accounts_are_made_changed_and_removed(served: ApiBroker, look: Callable[..., Page]) -> None:
    page = look("/accounts")
    page.get_by_label("User name", exact=True).fill("guest")
    page.get_by_label("Password", exact=True).fill("short")
    button(page, "Add user").click()
    expect(page.get_by_text("password:").first).to_be_visible()
    page.get_by_label("Password", exact=True).fill("long enough")
    button(page, "Add user").click()
    row = page.get_by_role("row").filter(has_text="guest")
    expect(row).to_contain_text("viewer")
    Rest.logged_in(served, "guest", "long enough")
    choose(page, "Role", "administrator")
    row.get_by_role("checkbox").click()
    button(page, "Set role").click()
    expect(row).to_contain_text("administrator")
    shoot(page, "accounts")
    row.get_by_role("checkbox").click()
    page.get_by_label("Password", exact=True).fill("another one")
    button(page, "Set password").click()
    until(page, lambda: not row.get_by_role("checkbox").is_checked())
    Rest.logged_in(served, "guest", "another one")
    row.get_by_role("checkbox").click()
    button(page, "Delete user").click()
    expect(row).to_have_count(0)


def test_an_api_key_is_made_shown_once_and_disabled(served: ApiBroker, look: Callable[..., Page]) -> None:
    page = look("/accounts")
    page.get_by_label("Name of the key").fill("meter")
    page.get_by_label("Days; empty: for good").fill("2")
    button(page, "Create key").click()
    key, secret = (page.get_by_test_id(name).inner_text().partition(": ")[2] for name in ("key", "secret"))
    shoot(page, "api-key")
    button(page, "Close").click()
    program = Rest.with_key(served, key, secret)
    program.good("GET", "/stats")
    row = page.get_by_role("row").filter(has_text="meter")
    expect(row).to_contain_text("valid")
    until(page, lambda: secret not in page.content())
    row.get_by_role("checkbox").click()
    button(page, "Disable").click()
    expect(row).to_contain_text("disabled")
    assert program.refused("GET", "/stats")[0] == 401
    row.get_by_role("checkbox").click()
    button(page, "Delete key").click()
    expect(row).to_have_count(0)


def test_changes_are_in_the_audit_log_with_their_author(rest: Rest, look: Callable[..., Page]) -> None:
    topic = f"audited/{time.time_ns()}"
    rest.good("POST", "/mqtt/topic_metrics", {"topic": topic})
    rest.good("DELETE", f"/mqtt/topic_metrics/{topic.replace('/', '%2F')}")
    page = look("/audit")
    row = page.get_by_role("row").filter(has_text=topic)
    expect(row).to_have_count(2)
    expect(row.first).to_contain_text("topic-metrics delete")
    shoot(page, "audit")
    row.first.click()
    expect(page.get_by_role("dialog")).to_contain_text(f'"topic": "{topic}"')
    button(page, "Close").click()
    page.get_by_label("By, such as dashboard:admin").fill("not-there")
    button(page, "Search").click()
    expect(page.get_by_text("nothing here")).to_be_visible()


def test_a_section_is_changed_by_its_form(rest: Rest, look: Callable[..., Page]) -> None:
    """With what is wrong beside its field; a link leads to the section."""
    page = look("/settings?section=mqtt")
    field = page.get_by_label("max_inflight", exact=True)
    field.fill("-3")
    button(page, "Save").click()
    expect(beside(page, "max_inflight")).to_contain_text("an integer from")
    shoot(page, "settings-refused")
    field.fill("17")
    page.get_by_label("retry_interval", exact=True).fill("9s")
    button(page, "Save").click()
    expect(page.get_by_role("row").filter(has_text=re.compile(r"^mqtt\.max_inflight"))).to_contain_text("17")
    found = rest.good("GET", "/configs/mqtt")
    assert (found["max_inflight"], found["retry_interval"]) == (17, "9s")
    field.hover()
    expect(page.get_by_role("tooltip")).to_contain_text("Default: ")
    shoot(page, "settings-form")
    button(page, "Save").click()
    expect(page.get_by_text("nothing has changed")).to_be_visible()
    for key in ("max_inflight", "retry_interval"):
        rest.good("POST", f"/configs_reset/mqtt.{key}")


def test_each_section_has_a_form_that_changes_nothing_by_itself(look: Callable[..., Page]) -> None:
    page = look("/settings")
    for section in ("rewrite", "auto_subscribe", "delayed", "retainer", "sys", "log", "prometheus", "opentelemetry", "alarm",
                    "flapping_detect", "slow_subs", "auth", "acl", "cluster", "api"):  # fmt: skip
        page.goto(f"{page.url.partition('?')[0]}?section={section}")
        page.wait_for_load_state("networkidle")
        button(page, "Save").click()
        expect(page.get_by_text("nothing has changed")).to_be_visible()


def test_flapping_clients_are_banned_once_the_form_says_so(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    page = look("/settings?section=flapping_detect")
    page.get_by_role("switch", name="enable").click()
    page.get_by_label("max_count").fill("3")
    button(page, "Save").click()
    expect(page.get_by_text("changed", exact=True)).to_be_visible()

    def is_banned() -> bool:
        with suppress(AssertionError, OSError), Client(served.address, 5, "flaps"):
            pass
        return [one["who"] for one in rest.good("GET", "/banned")["data"]] == ["flaps"]

    until(page, is_banned)
    rest.good("DELETE", "/banned/clientid/flaps")
    for key in ("enable", "max_count"):
        rest.good("POST", f"/configs_reset/flapping_detect.{key}")


def test_topics_are_rewritten_and_subscribed_by_the_forms(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    page = look("/settings?section=rewrite")
    page.get_by_label("rules (JSON)").fill('[{"source_topic": "old/#", "re": "^old/(.+)$", "dest_topic": "new/$1"}]')
    button(page, "Save").click()
    expect(page.get_by_text("changed", exact=True)).to_be_visible()
    page.goto(page.url.replace("rewrite", "auto_subscribe"))
    page.wait_for_load_state("networkidle")
    page.get_by_label("topics (JSON)").fill('[{"topic": "new/#", "qos": 1}]')
    button(page, "Save").click()
    expect(page.get_by_text("changed", exact=True)).to_be_visible()
    with Client(served.address, 5, "rewritten") as client:
        client.publish("old/1", b"there", qos=1)
        client.expect(Publish, payload=b"there", topic="new/1")
    for key in ("rewrite.rules", "auto_subscribe.topics"):
        rest.good("POST", f"/configs_reset/{key}")


def test_a_viewer_changes_nothing_on_these_pages(rest: Rest, look: Callable[..., Page]) -> None:
    rest.good("POST", "/users", {"username": "watcher", "password": "watch-and-wait", "role": "viewer"})
    page = look("/accounts", "watcher", "watch-and-wait")
    start = page.url.removesuffix("/accounts")
    for path, names in {
        "accounts": ("Add user", "Set password", "Delete user", "Create key", "Delete key"),
        "authentication": ("Add user", "Delete user"),
        "authorization": ("Add rule",),
        "listeners": ("New listener", "Stop", "Remove"),
        "settings?section=mqtt": ("Save",),
    }.items():
        page.goto(f"{start}/{path}")
        for name in names:
            expect(button(page, name)).to_be_disabled()
    rest.good("DELETE", "/users/watcher")
