"""From nothing to rows in PostgreSQL by the dashboard: connector, action and rule in ten clicks, against the real server."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.api.rest import ApiBroker, Rest
from tests.dashboard.test_dashboard import browser, look, pytestmark, rest, served, shoot, until
from tests.harness import Client
from tests.servers.postgresql import Postgresql, postgresql

__all__ = ["browser", "look", "pytestmark", "rest", "served"]

CLICKS_MAX = 10
"""From the first page after the login on; what is typed does not count."""
COUNT = "addEventListener('pointerdown', event => { if (event.isTrusted) window.counted() }, true)"


@pytest.fixture
def server() -> Iterator[Postgresql]:
    account = "CREATE ROLE broker LOGIN PASSWORD 'dbsecret'; GRANT CREATE ON SCHEMA public TO broker;"
    with postgresql(account, access="host all all 127.0.0.1/32 scram-sha-256") as one:
        yield one


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name)


def test_ten_clicks_from_nothing_to_rows(served: ApiBroker, rest: Rest, look: Callable[..., Page], server: Postgresql) -> None:
    clicks: list[None] = []
    page = look("/")
    page.expose_function("counted", lambda: clicks.append(None))
    page.add_init_script(COUNT)
    page.reload()
    probe = page.get_by_test_id("probe")

    page.get_by_text("Connectors", exact=True).click()
    expect(page.get_by_text("No connector yet.")).to_be_visible()
    shoot(page, "ten-clicks-1-connectors")
    button(page, "New connector").click()
    expect(page.get_by_text("TimescaleDB", exact=True)).to_be_visible()
    shoot(page, "ten-clicks-2-types")
    page.get_by_text("PostgreSQL", exact=True).click()
    expect(page.get_by_label("name", exact=True)).to_have_value("main")
    page.get_by_label("server", exact=True).fill(f"127.0.0.1:{server.port}")
    page.get_by_label("username", exact=True).fill("broker")
    page.get_by_label("password", exact=True).fill("dbsecret")
    button(page, "Test connection").click()
    expect(probe).to_have_text("The server can be used.")
    shoot(page, "ten-clicks-3-connector")
    button(page, "Save").click()
    expect(page.get_by_text("pgsql:main is in force")).to_be_visible()
    expect(page.get_by_test_id("card")).to_contain_text("connected")
    shoot(page, "ten-clicks-4-saved")

    button(page, "New action over it").click()
    expect(page.get_by_text("New action: PostgreSQL")).to_be_visible()
    expect(page.get_by_label("name", exact=True)).to_have_value("messages")
    expect(page.get_by_label("connector", exact=True)).to_have_value("main")
    server.psql("SET ROLE broker; " + page.get_by_test_id("needs").inner_text())
    button(page, "Test connection").click()
    expect(probe).to_have_text("The server can be used.")
    shoot(page, "ten-clicks-5-action")
    button(page, "Save").click()
    expect(page.get_by_text("pgsql:messages is in force")).to_be_visible()
    expect(page.get_by_test_id("card")).to_contain_text("connected")
    shoot(page, "ten-clicks-6-saved")

    button(page, "New rule for it").click()
    expect(page.get_by_label("Id", exact=True)).to_have_value("messages")
    expect(page.get_by_test_id("result")).to_contain_text('"clientid": "sensor-1"')
    shoot(page, "ten-clicks-7-rule")
    button(page, "Save").click()
    expect(page.get_by_text("messages is in force")).to_be_visible()
    shoot(page, "ten-clicks-8-in-force")

    with Client(served.address, 5, "kitchen") as client:
        client.publish("t/1", b'{"temp": 21.5}', 1)
    shown = "SELECT client, topic, qos, at > now() - interval '1 minute', convert_from(payload, 'UTF8') FROM mqtt_messages"
    until(page, lambda: server.psql(shown) == 'kitchen|t/1|1|t|{"temp": 21.5}\n')
    assert len(clicks) <= CLICKS_MAX, f"{len(clicks)} clicks"
    print(f"{len(clicks)} clicks")
    page.goto(f"http://127.0.0.1:{served.api_port}/dashboard/actions")
    expect(page.get_by_test_id("card")).to_contain_text("used by messages")
    shoot(page, "ten-clicks-9-rows")
    rest.good("DELETE", "/rules/messages")
    rest.good("DELETE", "/actions/pgsql:messages")
    rest.good("DELETE", "/connectors/pgsql:main")


def test_errors_are_beside_their_field_and_say_what_is_missing(rest: Rest, look: Callable[..., Page], server: Postgresql) -> None:
    """A wrong address and password, a table that is missing, a statement with a value in quotes."""
    page = look("/connectors")
    probe = page.get_by_test_id("probe")

    def beside(label: str) -> Locator:
        return page.locator(".q-field", has=page.get_by_label(label, exact=True)).locator(".q-field__messages")

    button(page, "New connector").click()
    page.get_by_text("PostgreSQL", exact=True).click()
    page.get_by_label("name", exact=True).fill("no name")
    page.get_by_label("server", exact=True).fill("nowhere")
    button(page, "Test connection").click()
    expect(beside("name")).to_contain_text("must be up to 64 letters")
    page.get_by_label("name", exact=True).fill("wrong")
    page.get_by_label("pool_size").fill("many")
    button(page, "Save").click()
    expect(beside("server")).to_contain_text("must be HOST:PORT")
    expect(beside("pool_size")).to_contain_text("must be")
    shoot(page, "connector-errors")
    page.get_by_label("server", exact=True).fill(f"127.0.0.1:{server.port}")
    page.get_by_label("pool_size").fill("2")
    page.get_by_label("username", exact=True).fill("broker")
    page.get_by_label("password", exact=True).fill("wrong")
    button(page, "Test connection").click()
    expect(probe).to_contain_text('password authentication failed for user "broker"')
    expect(page.get_by_text("must be HOST:PORT")).to_have_count(0)
    page.get_by_label("password", exact=True).fill("dbsecret")
    button(page, "Save").click()
    button(page, "New action over it").click()
    button(page, "Test connection").click()
    expect(probe).to_contain_text('relation "mqtt_messages" does not exist')
    shoot(page, "action-probe")
    page.get_by_label("sql", exact=True).fill("INSERT INTO t VALUES ('${topic}')")
    button(page, "Test connection").click()
    expect(probe).to_contain_text("line 1")
    rest.good("DELETE", "/connectors/pgsql:wrong")
