"""Figures with what is demanded of them, as a table and as lines of JSON."""

import json
from dataclasses import asdict, dataclass

__all__ = ["Figure", "as_json", "shown"]


@dataclass(frozen=True)
class Figure:
    """One line of the result."""

    what: str
    measured: float
    unit: str
    demand: float | None
    """None: nothing is demanded."""
    at_most: bool
    """Whether the demand is the largest value, or the least one."""

    @property
    def met(self) -> bool:
        if self.demand is None:
            return True
        return self.measured <= self.demand if self.at_most else self.measured >= self.demand


def shown(figures: list[Figure]) -> str:
    """Returns a table."""
    lines = [f"{'':42} {'measured':>12} {'demand':>14}"]
    for one in figures:
        bound = "" if one.demand is None else f"{'at most' if one.at_most else 'at least'} {_number(one.demand)}"
        lines.append(f"{one.what:42} {_number(one.measured):>12} {bound:>14} {one.unit}{'' if one.met else '   missed'}".rstrip())
    return "\n".join(lines)


def as_json(figure: Figure, scenario: str) -> str:
    """Returns a line of JSON."""
    return json.dumps({"scenario": scenario, **asdict(figure), "met": figure.met})


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
