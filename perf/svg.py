"""Plots as SVG text: lines over linear or logarithmic axes, and bars. Colours are defined by the page's style (class c0, c1, ...).

`document` makes a stand-alone file of a plot.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["COLOURS", "STYLE", "Line", "bars", "document", "lines", "short"]

COLOURS = 6
"""Classes c0 to c5; further lines reuse them."""
WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 40
BAR, GAP, NAMES = 18, 10, 215
NINES = ((0.0, "0"), (50.0, "50"), (90.0, "90"), (99.0, "99"), (99.9, "99.9"), (99.99, "99.99"), (99.999, "99.999"))

STYLE = """
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.grid { stroke: var(--rule); stroke-width: 1; fill: none; } .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.c0 { --c: #2563b8; } .c1 { --c: #d9822b; } .c2 { --c: #2e8b57; } .c3 { --c: #b8336a; } .c4 { --c: #7a5bc2; } .c5 { --c: #6b7c2a; }
.line { stroke: var(--c); } .bar { fill: var(--c); }
"""
"""Style of a page with plots; the page defines --soft and --rule."""
ALONE = """
text { font: 11px system-ui, sans-serif; fill: #5d6b7a; } .title { font-weight: 600; fill: #1c2733; }
.grid { stroke: #dde3e9; stroke-width: 1; fill: none; } .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.line.c0 { stroke: #2563b8; } .line.c1 { stroke: #d9822b; } .line.c2 { stroke: #2e8b57; } .line.c3 { stroke: #b8336a; }
.line.c4 { stroke: #7a5bc2; } .line.c5 { stroke: #6b7c2a; }
"""
"""Style of a plot in a file of its own: without variables, which some image viewers do not support."""
KEY_HEIGHT = 22

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """Points (x, y) in the order of x; `colour` is the number of a class."""

    name: str
    colour: int
    points: Sequence[tuple[float, float]]


def short(value: float) -> str:
    """Formats a number such as 1.5M, 20k, 0.35."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def lines(
    title: str, data: Sequence[Line], x_title: str, y_title: str, percentiles: bool = False, logarithmic: bool = False
) -> str:
    """Returns a line plot; with `percentiles` x is in percent, drawn by nines, and y is logarithmic; with `logarithmic` both are.

    Empty without a line.
    """
    data = [line for line in data if len(line.points) > 1]
    if not data:
        return ""
    xs = [x for line in data for x, _ in line.points]
    ys = [y for line in data for _, y in line.points]
    if percentiles:
        x_ticks = [(_nines(percent), text) for percent, text in NINES if percent <= _ceiling(xs)]
        place_x, place_y = _linear(0, x_ticks[-1][0], LEFT, WIDTH - RIGHT), _logarithmic(min(ys), max(ys), HEIGHT - BOTTOM, TOP)
        y_ticks = _decades(min(ys), max(ys))
        data = [Line(line.name, line.colour, [(min(_nines(x), x_ticks[-1][0]), y) for x, y in line.points]) for line in data]
    elif logarithmic:
        place_x = _logarithmic(min(xs), max(xs), LEFT, WIDTH - RIGHT)
        place_y = _logarithmic(min(ys), max(ys), HEIGHT - BOTTOM, TOP)
        x_ticks, y_ticks = _decades(min(xs), max(xs)), _decades(min(ys), max(ys))
    else:
        x_ticks = [(x, short(x)) for x in _steps(0, max(xs))]
        y_ticks = [(y, short(y)) for y in _steps(0, max(ys))]
        place_x = _linear(0, max(xs) or 1, LEFT, WIDTH - RIGHT)
        place_y = _linear(0, max(y_ticks[-1][0], max(ys)) or 1, HEIGHT - BOTTOM, TOP)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for x, text in x_ticks:
        parts.append(f'<path class="grid" d="M{place_x(x):.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{place_x(x):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{text}</text>')
    for y, text in y_ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {place_y(y):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{place_y(y) + 4:.1f}" text-anchor="end">{text}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_title)}</text>')
    turned = f"translate(12 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)"
    parts.append(f'<text transform="{turned}" text-anchor="middle">{escape(y_title)}</text>')
    for line in data:
        points = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in line.points)
        name = f"<title>{escape(line.name)}</title>"
        parts.append(f'<polyline class="line c{line.colour % COLOURS}" points="{points}">{name}</polyline>')
    return "".join([*parts, "</svg>"])


def document(title: str, plot: str, names: Sequence[str]) -> str:
    """Returns a plot with its title and the names of its lines, of colours 0, 1, ..., as a file of its own."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT + KEY_HEIGHT}">',
        f'<style>{ALONE}</style><rect width="100%" height="100%" fill="#fff"/>',
        f'<text class="title" x="8" y="16">{escape(title)}</text>',
    ]
    x = WIDTH - RIGHT
    for number, name in reversed(list(enumerate(names))):
        parts.append(f'<text x="{x}" y="16" text-anchor="end">{escape(name)}</text>')
        x -= 6 * len(name) + 6
        parts.append(f'<path class="line c{number % COLOURS}" d="M{x - 14} 12h14"/>')
        x -= 28
    inner = plot.replace("<svg ", f'<svg x="0" y="{KEY_HEIGHT}" width="{WIDTH}" height="{HEIGHT}" ', 1)
    return "".join([*parts, inner, "</svg>\n"])


def bars(title: str, data: Sequence[tuple[str, int, float]], unit: str) -> str:
    """Returns horizontal bars of (name, colour, value)."""
    if not data:
        return ""
    height = TOP + len(data) * (BAR + GAP)
    most = max(value for _, _, value in data) or 1
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for number, (name, colour, value) in enumerate(data):
        y = TOP + number * (BAR + GAP)
        width = value / most * (WIDTH - NAMES - 90)
        parts.append(f'<text x="{NAMES - 8}" y="{y + 13}" text-anchor="end">{escape(_cut(name))}</text>')
        size = f'width="{max(1, width):.1f}" height="{BAR}"'
        parts.append(f'<rect class="bar c{colour % COLOURS}" x="{NAMES}" y="{y}" {size} rx="2"/>')
        parts.append(f'<text x="{NAMES + width + 6:.1f}" y="{y + 13}">{short(value)} {escape(unit)}</text>')
    return "".join([*parts, "</svg>"])


def _cut(text: str, most: int = 36) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _nines(percent: float) -> float:
    """Maps a percentage to its nines: 50 -> 0.3, 90 -> 1, 99 -> 2, 99.9 -> 3, so that the tail has as much room as the rest."""
    return -math.log10(max(1e-6, 1 - percent / 100))


def _ceiling(percents: Sequence[float]) -> float:
    """Returns the tick at the end of the axis: the one after the last point that is not the maximum itself."""
    last = max((percent for percent in percents if percent < 100), default=0.0)
    return next((tick for tick, _ in NINES if tick >= max(last, 90.0)), NINES[-1][0])


def _linear(low: float, high: float, begin: float, end: float) -> Scale:
    return lambda value: begin + (value - low) / ((high - low) or 1) * (end - begin)


def _logarithmic(low: float, high: float, begin: float, end: float) -> Scale:
    ticks = [value for value, _ in _decades(low, high)]
    inner = _linear(math.log10(ticks[0]), math.log10(ticks[-1]), begin, end)
    return lambda value: inner(math.log10(max(value, ticks[0])))


def _decades(low: float, high: float) -> list[tuple[float, str]]:
    """Returns the powers of ten around the values."""
    first, last = math.floor(math.log10(max(low, 1e-3))), math.ceil(math.log10(max(high, 1e-3)))
    return [(10.0**power, short(10.0**power)) for power in range(first, max(last, first + 1) + 1)]


def _steps(low: float, high: float, wanted: int = 5) -> list[float]:
    """Returns round numbers from `low` to beyond `high`, about as many as wanted."""
    rough = (high - low) / wanted or 1
    power: float = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [low + step * number for number in range(math.floor((high - low) / step) + 1)]
