"""docs/ as a site (`make docs`): every link leads somewhere, every page is in the navigation, nothing comes from elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc=["']?https?:|<link[^>]*\shref=["']?https?:|url\(["']?https?:""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the site is made from, built."""
    copy = tmp_path_factory.mktemp("site")
    (copy / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text())
    shutil.copytree(ROOT / "docs", copy / "docs")
    done = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict"], cwd=copy, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "build" / "site"


def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    start = (site / "index.html").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = str(page.relative_to(ROOT / "docs").with_suffix(".html"))
        assert (site / name).exists()
        assert re.search(rf'href="(\./)?{re.escape(name)}"', start), f"{name} is not in the navigation of mkdocs.yml"


def test_every_link_leads_somewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#?:]+)(?:[#?][^"]*)?"', page.read_text()):
            if page.name != "404.html":
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for file in (*site.rglob("*.html"), *site.rglob("*.css")):
        assert not ELSEWHERE.search(file.read_text()), file.name
