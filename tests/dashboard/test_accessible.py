"""Each page by axe-core, light and dark: no finding that it calls serious or critical, and no error in the console."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from shardbroker.api.dashboard import MENU
from tests.api.rest import ApiBroker, Rest
from tests.dashboard.test_dashboard import browser, look, pytestmark, rest, served
from tests.harness import Client
from tests.harness.needed import needed
from tests.harness.npm import installed

__all__ = ["browser", "look", "pytestmark", "rest", "served"]

PATHS = (*(page.path for group in MENU.values() for page in group), "/settings?section=mqtt")
OTHERS = [[".cm-editor"], [".q-uploader"]]
"""Parts of CodeMirror and Quasar, whose markup is theirs: the editor of a rule, and the field for a file."""
FINDINGS = """async others => (await axe.run({ exclude: others })).violations
    .filter(one => ['serious', 'critical'].includes(one.impact))
    .map(one => [one.id, one.nodes.length, one.nodes.slice(0, 3).map(node => node.html.slice(0, 150)).join(' ')])"""


@pytest.mark.timeout(600)
def test_axe_finds_nothing_serious(served: ApiBroker, rest: Rest, look: Callable[..., Page]) -> None:
    needed("npm")
    script = installed(Path(__file__).parent / "axe", "axe-core") / "axe.min.js"
    rest.good("POST", "/publish", {"topic": "kept/axe", "payload": "x", "retain": True})
    page = look("/")
    errors: list[str] = []
    page.on("console", lambda one: errors.append(f"{page.url}: {one.text}") if one.type == "error" else None)
    found: list[Any] = []
    with Client(served.address, 5, "seen-by-axe") as client:
        client.subscribe("axe/#", 1)
        for theme in ("light", "dark"):
            for path in PATHS:
                page.goto(f"http://127.0.0.1:{served.api_port}/dashboard{path}")
                page.wait_for_load_state("networkidle")
                expect(page.locator(f"body.body--{theme}")).to_be_attached()
                page.add_script_tag(path=str(script))
                found += [(theme, path, *one) for one in page.evaluate(FINDINGS, OTHERS)]
            page.get_by_role("button", name="Dark or light").click()
            page.wait_for_timeout(300)  # the cookie is written
    rest.good("DELETE", "/mqtt/retainer/message/kept%2Faxe")
    assert not found, "\n".join(map(str, found))
    assert not errors, "\n".join(errors)
