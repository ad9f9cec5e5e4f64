"""docs/architecture.md against the code: the four walks, and each name beside its file."""

import re

import pytest

from tests.docs.names import ROOT, definitions, source
from tests.test_layers import LAYERS, MAY_USE

PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALKS = ("PUBLISH to a subscriber on another worker", "CONNECT", "A change of the configuration", "A record to Spark")
STEPS_MAX = 12

_STEP = re.compile(r"^(\d+)\. (.*)", re.MULTILINE)
_PAIR = re.compile(r"`([\w./]+\.(?:py|pyx|pxd))` `([\w.]+)`")
_NAMED = re.compile(r"`[\w./]+\.(?:py|pyx|pxd)` `[\w.]+`: \S")


def walks_of(page: str) -> dict[str, list[str]]:
    """Steps of each walk, by its heading."""
    walks = page.partition("\n## A reader's walk\n")[2].partition("\n## ")[0].split("\n### ")[1:]
    return {walk.partition("\n")[0]: [step for _, step in _STEP.findall(walk)] for walk in walks}


def wrong_pairs(page: str) -> list[tuple[str, str]]:
    """A file with a name behind it that the file does not define."""
    return [(file, name) for file, name in _PAIR.findall(page) if (path := source(file)) is None or name not in definitions(path)]


def test_the_walks_are_there() -> None:
    assert tuple(walks_of(PAGE)) == WALKS


@pytest.mark.parametrize("walk", WALKS)
def test_steps_of_a_walk(walk: str) -> None:
    steps = walks_of(PAGE)[walk]
    assert 0 < len(steps) <= STEPS_MAX
    assert [step for step in steps if not _NAMED.match(step)] == [], "each step begins with a file and a name"


def rows_of(heading: str) -> list[str]:
    """What stands in backticks first in each row of the table below a heading."""
    return re.findall(r"^\| `([^`]+)`", PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0], re.MULTILINE)


def test_packages_are_those_of_the_layer_test_from_the_bottom_up() -> None:
    packages = [row.replace("/", ".") for row in rows_of("Packages")]
    assert packages[-1] == "spark.pyspark_shardbroker"
    assert sorted(packages[:-1]) == sorted(MAY_USE)
    assert [package for number, package in enumerate(packages[:-1]) if not {*MAY_USE[package]} <= {*packages[:number]}] == []


def test_parts_of_a_worker_are_those_of_the_layer_test_from_the_bottom_up() -> None:
    packages = {path.parent.name for path in (ROOT / "shardbroker" / "worker").glob("*/__init__.py")}
    layer = {name: number for number, names in enumerate(LAYERS["shardbroker.worker"]) for name in {*names} - packages}
    parts = [row.removeprefix("worker/").rpartition(".")[0].replace("/", ".") for row in rows_of("Parts of a worker")]
    assert sorted(parts) == sorted(layer)
    assert [layer[part] for part in parts] == sorted(layer.values())


def test_each_name_is_defined_in_the_file_before_it() -> None:
    assert wrong_pairs(PAGE) == []


def test_a_name_of_another_file_is_found() -> None:
    pairs = [("worker/turn.pyx", "Turn.share_out"), ("worker/connection.pyx", "Turn.share_out"), ("worker/turn.pyx", "Turn.budget")]
    page = " ".join(f"`{file}` `{name}`" for file, name in [*pairs, ("worker/roundabout.pyx", "Turn")])
    assert wrong_pairs(page) == [*pairs[1:], ("worker/roundabout.pyx", "Turn")]
