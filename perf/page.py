"""The page of `perf report`: one self-contained HTML file of one or several runs side by side.

Runs with the same title (scenario and numbers) share a section. Within it, runs with the same label share a column and a colour:
the broker's name in a comparison, else the file's. A column of several rounds shows medians, its plots show each round.
"""

import json
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from perf.measure import FAULTS, Result, sound
from perf.plan import ARRIVALS, HELD
from perf.report import COMPARED, COMPARED_HELD, SUMMARY, middle, summarized, title
from perf.svg import COLOURS, Line, bars, lines, short
from perf.svg import STYLE as PLOT_STYLE

__all__ = ["PageError", "write_page"]

Columns = dict[str, list[Result]]

MORE = (
    ("p99.9 ms", "p999_ms"),
    ("max ms", "max_ms"),
    ("connecting p99 ms", "opening_p99_ms"),
    ("load's CPU s per million", "own_cpu_s_per_million"),
)
CHARTS = (("Broker CPU per million", "broker_cpu_s_per_million", "s"), ("PSS per connection", "pss_kb_per_connection", "KB"))
STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5d6b7a; --rule: #dde3e9; --paper: #fff; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ee; --soft: #9aa7b5; --rule: #333d48; --paper: #14191f; --bad: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1120px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; border-top: 1px solid var(--rule);
  padding-top: 1rem; } h3 { font-size: .9rem; margin: .6rem 0 .2rem; color: var(--soft); font-weight: 600; }
p { color: var(--soft); margin: .2rem 0; } .bad { color: var(--bad); font-weight: 600; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; } .wide { overflow-x: auto; }
th, td { padding: .2rem .9rem .2rem 0; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { color: var(--soft); font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: .5rem 1.5rem; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
.key { background: var(--c); } .summary td:nth-child(2) { text-align: left; }
.summary td:first-child { white-space: normal; min-width: 9em; } a { color: inherit; }
"""


class PageError(Exception):
    """A file holds no runs; the text has the place, the content and the expected form."""


def write_page(files: Sequence[Path], page: Path, heading: str) -> None:
    """Reads all runs and writes the page. Raises PageError, OSError."""
    runs = [(path, result) for path in files for result in _read(path)]
    text = _page(runs, heading, len(files) > 1)
    try:
        page.write_text(text)
    except OSError as error:
        raise PageError(f"argument --out: {page}: {error.strerror}; allowed is a file that can be written") from None


def _read(path: Path) -> list[Result]:
    wanted = "wanted are lines that --json or --out gave"
    try:
        rows = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PageError(f"{path}: {getattr(error, 'strerror', 'is not text')}; {wanted}") from None
    results: list[Result] = []
    for number, row in enumerate(rows, 1):
        if not row.strip():
            continue
        try:
            result: Any = json.loads(row)
            title(result)
            if not isinstance(result["latency"], dict):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            raise PageError(f"{path}, line {number}: {row[:40]!r} is not a run; {wanted}") from None
        results.append(result)
    if not results:
        raise PageError(f"{path}: holds no run; {wanted}")
    return results


def _page(runs: list[tuple[Path, Result]], heading: str, several_files: bool) -> str:
    sections: dict[str, Columns] = {}
    for path, result in runs:
        label = " ".join(filter(None, [path.stem if several_files or "broker" not in result else "", result.get("broker", "")]))
        sections.setdefault(title(result), {}).setdefault(label, []).append(result)
    labels = list(dict.fromkeys(label for columns in sections.values() for label in columns))
    colours = {label: number % COLOURS for number, label in enumerate(labels)}
    first = time.strftime("%Y-%m-%d %H:%M", time.localtime(min(result["time"] for _, result in runs)))
    keys = " ".join(f'<span class="key c{colours[label]}"></span>{escape(label)}&ensp;' for label in labels)
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{escape(heading)}</title><style>{STYLE}{PLOT_STYLE}</style><h1>{escape(heading)}</h1>",
        f"<p>{len(runs)} {'run' if len(runs) == 1 else 'runs'}, the first at {first}</p><p>{keys}</p>",
        _summary(sections, colours),
        _overview(sections, colours),
        *(_section(name, columns, colours) for name, columns in sections.items()),
        "</html>\n",
    ]
    return "".join(parts)


def _summary(sections: dict[str, Columns], colours: dict[str, int]) -> str:
    """Returns the table of all runs: a row for each scenario and label."""
    head = "".join(f"<th>{escape(name)}</th>" for name, _, _ in SUMMARY)
    rows = []
    for section, columns in sections.items():
        for number, (label, results) in enumerate(columns.items()):
            name = f'<a href="#{_anchor(section)}">{escape(section)}</a>' if not number else ""
            key = f'<span class="key c{colours[label]}"></span>{escape(label)}'
            cells = zip(SUMMARY, summarized(results), strict=True)
            figures = "".join(f"<td{_mark(figure, text)}>{text}</td>" for (_, figure, _), text in cells)
            rows.append(f"<tr><td>{name}</td><td>{key}</td>{figures}</tr>")
    note = "Messages a second to the broker (in) and from it (out), latency, CPU seconds of the broker per million, and faults."
    return (
        f'<div class="wide"><table class="summary"><thead><tr><th>scenario</th><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div><p>{note}</p>"
    )


def _mark(figure: str, text: str) -> str:
    return ' class="bad"' if figure in FAULTS and text not in ("0", "-") else ""


def _anchor(section: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in section)


def _overview(sections: dict[str, Columns], colours: dict[str, int]) -> str:
    """Returns the most important figures of all scenarios; empty for a single run."""
    if sum(len(columns) for columns in sections.values()) < 2:
        return ""
    plots = []
    for heading, name, unit in CHARTS:
        data = [
            (section, colours[label], value)
            for section, columns in sections.items()
            for label, results in columns.items()
            if (value := middle(results, name)) is not None and (name != "pss_kb_per_connection" or results[0]["scenario"] in HELD)
        ]
        plots.append(_plot(heading, bars(heading, data, unit)))
    return f'<div class="plots">{"".join(plots)}</div>'


def _section(name: str, columns: Columns, colours: dict[str, int]) -> str:
    every = [(label, result) for label, results in columns.items() for result in results]
    held = every[0][1]["scenario"] in HELD
    latency = [Line(label, colours[label], _curve(result, "latency")) for label, result in every]
    opening = [Line(label, colours[label], _curve(result, "opening")) for label, result in every]
    rate = [Line(label, colours[label], _rates(result)) for label, result in every]
    what = "connections" if every[0][1]["scenario"] in ARRIVALS else "messages"
    plots = [
        _plot("Latency", lines("latency", latency, "percent of the messages" if what == "messages" else "percent", "ms", True)),
        _plot("Course", lines("course", rate, "seconds", f"{what} per second")),
        _plot("Connecting", lines("connecting", opening, "percent of the clients", "ms", True) if held else ""),
    ]
    faults = "".join(_faults(label, result) for label, result in every)
    return (
        f'<h2 id="{_anchor(name)}">{escape(name)}</h2>{_numbers(columns, colours, held)}{faults}'
        f'<div class="plots">{"".join(plots)}</div>'
    )


def _plot(heading: str, svg: str) -> str:
    return f"<div><h3>{escape(heading)}</h3>{svg}</div>" if svg else ""


def _numbers(columns: Columns, colours: dict[str, int], held: bool) -> str:
    head = "".join(
        f'<th><span class="key c{colours[label]}"></span>{escape(label)}{f", {len(results)} runs" if len(results) > 1 else ""}</th>'
        for label, results in columns.items()
    )
    rows = []
    compared = len(columns) == 2
    for column, name in (*(COMPARED_HELD if held else COMPARED), *MORE):
        values = [middle(results, name) for results in columns.values()]
        if any(value is not None for value in values):
            cells = "".join(f"<td>{_number(value)}</td>" for value in values)
            rows.append(f"<tr><td>{escape(column)}</td>{cells}{_ratio(values) if compared else ''}</tr>")
    return (
        f'<div class="wide"><table><thead><tr><th></th>{head}{"<th>ratio</th>" if compared else ""}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _ratio(values: list[float | None]) -> str:
    first, second = values
    return f"<td>{first / second:.3f}</td>" if first is not None and second else "<td></td>"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _faults(label: str, result: Result) -> str:
    if sound(result):
        return ""
    faults = ", ".join(f"{short(result[name])} {name}" for name in FAULTS if result.get(name))
    return f'<p class="bad">{escape(label)}: {escape(faults)}</p>'


def _curve(result: Result, name: str) -> list[tuple[float, float]]:
    """Returns (percent, ms), without points that a plot cannot separate."""
    points: list[tuple[float, float]] = []
    for percent, microseconds in result.get(f"{name}_curve", ()):
        if microseconds > 0:
            points.append((percent, microseconds / 1000))
    return points


def _rates(result: Result) -> list[tuple[float, float]]:
    """Returns (seconds, per second) from the running counts."""
    points: list[tuple[float, float]] = []
    place = 3 if result["scenario"] in ARRIVALS else 2 if result.get("delivered") else 1
    before_s, before = 0.0, 0.0
    for row in result.get("course", ()):
        if row[0] > before_s:
            points.append(((row[0] + before_s) / 2, (row[place] - before) / (row[0] - before_s)))
            before_s, before = row[0], row[place]
    return points if before else []
