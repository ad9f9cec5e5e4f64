"""The pages for looking closer, in headless Chromium: traces, diagnosis, journals."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.api.rest import ApiBroker, Rest
from tests.dashboard.test_dashboard import browser, look, pytestmark, rest, served, shoot
from tests.harness import Client, Publish, client_id_on, until

__all__ = ["browser", "look", "pytestmark", "rest", "served"]


def dark(page: Page) -> None:
    page.get_by_role("button").filter(has_text="contrast").click()
    expect(page.locator("body.body--dark")).to_be_attached()


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_label(label).click()
    page.get_by_role("option", name=option, exact=True).click()


def test_a_trace_is_begun_watched_downloaded_and_deleted(
    served: ApiBroker,
    rest: Rest,
    look: Callable[..., Page],
    tmp_path: Path,
) -> None:
    name = client_id_on(1, 3, "traced")
    page = look("/trace")
    page.get_by_label("Name", exact=True).fill("by-hand")
    page.get_by_label("Which").fill(name)
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("cell", name="by-hand")).to_be_visible()
    rest.good("GET", "/journal")
    with Client(served.address, 5, name, username="ann", password="never shown") as client:
        client.subscribe("tra/#", 1)
        page.get_by_role("cell", name="by-hand").click()
        log = page.get_by_test_id("log")
        expect(log).to_contain_text("received SUBSCRIBE")
        client.publish("tra/ced", b"live", qos=1)
        client.expect(Publish)
        expect(log).to_contain_text("payload=live")
        expect(log).not_to_contain_text("never shown")
        shoot(page, "trace-log-light")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    waiting.value.save_as(tmp_path / "by-hand.log")
    assert waiting.value.suggested_filename == "by-hand.log" and "payload=live" in (tmp_path / "by-hand.log").read_text()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("by-hand has ended")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("cell", name="stopped")).to_be_visible()
    shoot(page, "trace-light")
    dark(page)
    shoot(page, "trace-dark")
    page.get_by_role("cell", name="by-hand").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("cell", name="by-hand")).to_have_count(0)
    assert rest.good("GET", "/trace") == []


def test_a_trace_without_sense_is_refused_on_the_page(look: Callable[..., Page]) -> None:
    page = look("/trace")
    choose(page, "Looks for", "Address")
    page.get_by_label("Which").fill("nowhere")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("must be an IPv4 or IPv6 address")).to_be_visible()


def test_loud_clients_slow_subscriptions_and_busy_topics_are_shown(
    served: ApiBroker,
    rest: Rest,
    look: Callable[..., Page],
) -> None:
    page = look("/diagnose")
    page.get_by_label("Topic or filter").fill("busy/#")
    page.get_by_role("button", name="Count", exact=True).click()
    expect(page.get_by_role("cell", name="busy/#")).to_be_visible()
    page.get_by_role("button", name="Measure").click()
    expect(page.get_by_text("whole, longer than 500ms")).to_be_visible()
    with (
        Client(served.address, 5, client_id_on(0, 3, "loud")) as loud,
        Client(served.address, 5, client_id_on(1, 3, "slow"), auto_ack=False) as slow,
    ):
        slow.subscribe("busy/1", 1)
        loud.publish("busy/1", b"x", qos=1)
        message = slow.expect(Publish)
        page.wait_for_timeout(700)
        slow.ack(message)

        def shown() -> bool:
            for _ in range(30):
                loud.publish("busy/2", b"x" * 50, qos=1)
            page.wait_for_timeout(300)
            return page.get_by_role("cell", name=loud.client_id).is_visible()

        until(shown, 30)
        expect(page.get_by_role("cell", name="busy/1")).to_be_visible()
        assert rest.good("GET", "/mqtt/topic_metrics")[0]["metrics"]["messages.in.count"] > 30
        shoot(page, "diagnose-light")
        dark(page)
        shoot(page, "diagnose-dark")
    page.get_by_role("button", name="Stop measuring").click()
    expect(page.get_by_text("not measured")).to_be_visible()
    page.get_by_role("row").filter(has_text="busy/#").get_by_role("checkbox").click()
    page.get_by_role("button", name="Do not count").click()
    expect(page.get_by_role("cell", name="busy/#")).to_have_count(0)
    assert rest.good("GET", "/mqtt/topic_metrics") == []
    for key in ("slow_subs.enable", "topic_metrics.topics"):
        rest.good("POST", f"/configs_reset/{key}")


def test_segments_are_listed_and_sealed(served: ApiBroker, look: Callable[..., Page]) -> None:
    with Client(served.address, 5, client_id_on(1, 3, "stays"), clean=False, properties={"session_expiry_interval": 60}):
        page = look("/journals")
        expect(page.get_by_text("Segments")).to_be_visible()
        before = page.get_by_role("cell", name=".sbj").count()
        page.get_by_role("button", name="Seal").click()
        expect(page.get_by_text("the segments are closed")).to_be_visible()
        until(lambda: page.get_by_role("cell", name=".sbj").count() >= max(before, 1))
        shoot(page, "journals-light")
        dark(page)
        shoot(page, "journals-dark")
