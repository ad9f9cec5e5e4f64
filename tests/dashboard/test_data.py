"""The page of exports and imports, in headless Chromium: with clicks alone from one state of the broker to the same one again."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.api.rest import RULE, ApiBroker, Rest
from tests.api.test_data import packed
from tests.dashboard.test_dashboard import browser, look, pytestmark, rest, served, shoot

__all__ = ["browser", "look", "pytestmark", "rest", "served"]


def test_an_operator_exports_downloads_uploads_and_imports(
    served: ApiBroker, rest: Rest, look: Callable[..., Page], tmp_path: Path
) -> None:
    rest.good("POST", "/rules", RULE)
    rest.good("POST", "/banned", {"as": "clientid", "who": "bad"})
    page = look("/data")
    page.get_by_role("button", name="Export", exact=True).click()
    (made,) = [row["filename"] for row in until_listed(page, rest)]
    expect(page.get_by_role("cell", name=made)).to_be_visible()
    page.get_by_role("row", name=made).get_by_role("checkbox").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    file = tmp_path / "mine.tar.gz"
    waiting.value.save_as(file)
    assert waiting.value.suggested_filename == made and file.read_bytes() == (served.data_dir / "exports" / made).read_bytes()
    shoot(page, "data-files")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("cell", name=made)).to_have_count(0)
    rest.good("DELETE", f"/rules/{RULE['id']}")
    rest.good("DELETE", "/banned/clientid/bad")

    page.locator("input[type=file]").set_input_files(file)
    expect(page.get_by_text("mine.tar.gz is uploaded")).to_be_visible()
    page.get_by_role("row", name="mine.tar.gz").get_by_role("checkbox").click()
    page.get_by_role("button", name="Import", exact=True).click()
    page.get_by_role("button", name="Import now").click()
    expect(page.get_by_text("mine.tar.gz is imported")).to_be_visible()
    expect(page.get_by_role("cell", name="rules", exact=True)).to_be_visible()
    assert rest.good("GET", f"/rules/{RULE['id']}")["sql"] == RULE["sql"]
    assert [one["who"] for one in rest.good("GET", "/banned")["data"]] == ["bad"]
    shoot(page, "data-imported")
    rest.good("DELETE", f"/rules/{RULE['id']}")
    rest.good("DELETE", "/banned/clientid/bad")
    rest.good("DELETE", "/data/files/mine.tar.gz")


def until_listed(page: Page, rest: Rest) -> list[dict[str, str]]:
    """The files, once there is one."""
    expect(page.get_by_role("cell", name="shardbroker-export-")).to_be_visible()
    found: list[dict[str, str]] = rest.good("GET", "/data/files")["data"]
    return found


def test_what_is_refused_is_shown(rest: Rest, look: Callable[..., Page], tmp_path: Path) -> None:
    page = look("/data")
    (tmp_path / "no-archive.tar.gz").write_bytes(b"nothing")
    page.locator("input[type=file]").set_input_files(tmp_path / "no-archive.tar.gz")
    expect(page.get_by_text("must be a whole file of `data export`")).to_be_visible()
    partly = packed({"connectors": [{"id": "nonsense:x", "definition": {}}]})
    (tmp_path / "partly.tar.gz").write_bytes(partly)
    page.locator("input[type=file]").set_input_files(tmp_path / "partly.tar.gz")
    page.get_by_role("row", name="partly.tar.gz").get_by_role("checkbox").click()
    page.get_by_role("button", name="Import", exact=True).click()
    page.get_by_role("button", name="Import now").click()
    expect(page.get_by_role("cell", name="nonsense:x:")).to_be_visible()
    rest.good("DELETE", "/data/files/partly.tar.gz")


def test_a_viewer_gets_no_file(rest: Rest, look: Callable[..., Page]) -> None:
    rest.good("POST", "/data/export", {"parts": ["settings"]})
    rest.good("POST", "/users", {"username": "glancer", "password": "glance-and-go", "role": "viewer"})
    page = look("/data", "glancer", "glance-and-go")
    expect(page.get_by_role("cell", name="shardbroker-export-")).to_be_visible()
    for name in ("Export", "Download", "Import", "Delete"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    expect(page.locator("input[type=file]")).to_have_count(0)
    for row in rest.good("GET", "/data/files")["data"]:
        rest.good("DELETE", f"/data/files/{row['filename']}")
    rest.good("DELETE", "/users/glancer")
