"""Figures of the broker in Prometheus's text format 0.0.4: their names behind `shardbroker_`, with underscores for dots."""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from shardbroker.management.context import Context
from shardbroker.management.families import AnyFamily, Family, Histogram, Summary, gather

__all__ = ["CONTENT_TYPE", "render", "text_of"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def render(context: Context) -> str:
    """Returns the whole text. Figures of workers that do not answer are left out."""
    return text_of(await gather(context))


def text_of(families: Iterable[AnyFamily]) -> str:
    """Returns families as text."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: AnyFamily) -> Iterator[str]:
    name = f"shardbroker_{family.name.replace('.', '_')}"
    kind = family.kind if isinstance(family, Family) else type(family).__name__.lower()
    yield f"# HELP {name} {family.text}"
    yield f"# TYPE {name} {kind}"
    match family:
        case Family():
            for labels, value in family.samples:
                shown = ",".join(f'{label}="{_escaped(str(one))}"' for label, one in labels.items())
                yield f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"
        case Histogram():
            *passed, total = accumulate(family.counts)
            for bound, count in zip(family.bounds, passed, strict=True):
                yield f'{name}_bucket{{le="{bound:g}"}} {count}'
            yield f'{name}_bucket{{le="+Inf"}} {total}'
            yield f"{name}_sum {family.sum:.6f}"
            yield f"{name}_count {total}"
        case Summary():
            for labels, seconds, count in family.samples:
                shown = ",".join(f'{label}="{one}"' for label, one in labels.items())
                yield f"{name}_sum{{{shown}}} {seconds}"
                yield f"{name}_count{{{shown}}} {count}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
