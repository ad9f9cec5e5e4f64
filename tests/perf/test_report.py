"""The summary in front of a report: what is measured stands below its title, in the text and in the page."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from perf.measure import Result, run_plan
from perf.page import write_page
from perf.plan import Plan
from perf.report import comparison, summary, table, title
from tests.perf.stub import Stub

TITLES = ["clients", "in/s", "out/s", "p50 ms", "p95 ms", "p99 ms", "max ms", "CPU s/M", "lost", "twice"]


@pytest.fixture(scope="module")
def result() -> Result:
    with Stub() as stub:
        return run_plan(Plan(publishers=2, subscribers=2, messages=400, window=50, qos=1), "127.0.0.1", stub.port)


def cells(line: str) -> list[str]:
    return re.split(r"  +", line.strip())


def test_summary_of_a_run(result: Result) -> None:
    lines = table(result | {"broker_cpu_s_per_million": 1.25} | dict.fromkeys(("broker_cpu_s", "broker_pss_idle"), 1.0)
                  | dict.fromkeys(("broker_pss_before", "broker_pss_after", "broker_processes"), 1)).splitlines()  # fmt: skip
    assert lines[0] == "p2p 2-2 qos 1" and cells(lines[1]) == TITLES and not lines[3]
    assert lines[4].startswith("  published"), "the details follow"
    values = dict(zip(TITLES, cells(lines[2]), strict=True))
    assert values["clients"] == "4" and values["CPU s/M"] == "1.250" and values["lost"] == values["twice"] == "0"
    assert values["in/s"] == f"{result['published_per_s']:,.0f}" and values["out/s"] == f"{result['delivered_per_s']:,.0f}"
    latency = result["latency"]
    assert values["p50 ms"] == f"{latency['p50_us'] / 1000:,.3f}" and values["max ms"] == f"{latency['max_us'] / 1000:,.3f}"
    assert latency["p50_us"] / 1000 <= float(values["p95 ms"]) <= float(values["p99 ms"])
    for name in TITLES:
        end = lines[1].index(name) + len(name)
        assert lines[2][:end].rstrip().endswith(values[name]), "figures are aligned with their titles"


def test_what_is_not_measured_is_a_dash(result: Result) -> None:
    values = dict(zip(TITLES, cells(table(result).splitlines()[2]), strict=True))
    assert values["CPU s/M"] == "-"
    with Stub() as stub:
        held = run_plan(Plan(scenario="conn", publishers=0, subscribers=0, others=2, seconds=0.1), "127.0.0.1", stub.port)
    assert cells(table(held).splitlines()[2]) == ["2", *("-",) * 7, "0", "0"]


def test_summary_of_rounds(result: Result) -> None:
    """Medians, but all losses of the rounds, and the longest latency."""
    other: dict[str, Any] = result | {"lost": 3, "latency": result["latency"] | {"max_us": 5_000_000.0}}
    lines = summary([(title(result), [("ours", [result, other, result]), ("theirs", [result])])]).splitlines()
    assert lines[1] == title(result) and len({len(line) for line in (lines[0], *lines[2:])}) == 1
    assert cells(lines[2])[0] == "ours" and cells(lines[2])[-4] == "5,000.000" != cells(lines[3])[-4]
    assert cells(lines[2])[-2:] == ["3", "0"] and cells(lines[3])[-2:] == ["0", "0"]
    text = comparison(("ours", "theirs"), [("ours", result), ("theirs", result)])
    assert text.startswith(lines[0][:10]) and max(map(len, text.splitlines())) <= 100 and "1.000" in text.split("\n\n")[1]


def test_summary_of_a_page(result: Result, tmp_path: Path) -> None:
    file, page = tmp_path / "r.json", tmp_path / "r.html"
    runs = [result | {"broker": "ours"}, result | {"broker": "<b>&", "lost": 2}]
    file.write_text("".join(json.dumps(run) + "\n" for run in runs))
    write_page([file], page, "Load")
    text = page.read_text()
    assert text.index('class="summary"') < text.index("<svg") and "<b>&" not in text
    found = re.search(r'<table class="summary">.*?</table>', text)
    assert found
    rows = [["".join(cell.itertext()) for cell in row] for row in ElementTree.fromstring(found[0]).iter("tr")]
    assert rows[0] == ["scenario", "", *TITLES]
    assert [row[:3] for row in rows[1:]] == [["p2p 2-2 qos 1", "ours", "4"], ["", "<b>&", "4"]]
    assert rows[2][-2:] == ["2", "0"] and '<td class="bad">2</td>' in found[0]
    assert 'href="#p2p-2-2-qos-1"' in found[0] and 'id="p2p-2-2-qos-1"' in text
