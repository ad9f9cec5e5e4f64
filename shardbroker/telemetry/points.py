"""Figures as data points of the library of OpenTelemetry."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

__all__ = ["Points"]

PREFIX = "shardbroker."
UNITS = {"seconds": "s", "bytes": "By"}
"""End of a name -> unit, as UCUM writes it."""

Series = tuple[str, tuple[tuple[str, object], ...]]


class Points:
    """Makes data points of figures, one export after another. attributes: those of the resource. started_ns: start of the broker,
    since when counters count."""

    def __init__(self, attributes: Mapping[str, str], started_ns: int) -> None:
        self._resource = Resource(dict(attributes))
        self._scope = InstrumentationScope("shardbroker", attributes.get("service.version"))
        self._started_ns = started_ns
        self._last: dict[Series, tuple[float, int]] = {}
        """Counter -> its value at the last export, and since when it counts."""
        self._last_ns = started_ns

    def data(self, families: Iterable[Mapping[str, Any]], now_ns: int) -> MetricsData:
        """Returns figures as the exporter takes them. families: as `plain()` of management/families.py returns them."""
        seen: dict[Series, tuple[float, int]] = {}
        metrics = [metric for family in families for metric in self._metrics(family, now_ns, seen)]
        self._last, self._last_ns = seen, now_ns
        scope = ScopeMetrics(self._scope, metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _metrics(self, family: Mapping[str, Any], now_ns: int, seen: dict[Series, tuple[float, int]]) -> list[Metric]:
        name, text, samples = PREFIX + family["name"], family["text"], family["samples"]
        match family["kind"]:
            case "gauge":
                points = [NumberDataPoint(labels, 0, now_ns, value) for labels, value in samples]
                return [Metric(name, text, _unit(name), Gauge(points))]
            case "counter":
                return [self._sum(name, text, samples, now_ns, seen)]
            case "summary":  # the library has none; these two are what Prometheus gets of one
                return [
                    self._sum(f"{name}.{part}", text, [(labels, values[at]) for labels, *values in samples], now_ns, seen)
                    for at, part in enumerate(("sum", "count"))
                ]
            case _:
                return [self._histogram(name, family, now_ns, seen)]

    def _sum(
        self,
        name: str,
        text: str,
        samples: Iterable[tuple[dict[str, Any], float]],
        now_ns: int,
        seen: dict[Series, tuple[float, int]],
    ) -> Metric:
        points = [
            NumberDataPoint(labels, self._since((name, (*labels.items(),)), value, seen), now_ns, value)
            for labels, value in samples
        ]
        return Metric(name, text, _unit(name), Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True))

    def _histogram(self, name: str, family: Mapping[str, Any], now_ns: int, seen: dict[Series, tuple[float, int]]) -> Metric:
        bounds, counts, total = family["samples"]
        count = sum(counts)
        since_ns = self._since((name, ()), count, seen)
        point = HistogramDataPoint({}, since_ns, now_ns, count, total, counts, bounds, *_extremes())
        return Metric(name, family["text"], _unit(name), Histogram([point], AggregationTemporality.CUMULATIVE))

    def _since(self, series: Series, value: float, seen: dict[Series, tuple[float, int]]) -> int:
        """Returns since when a counter counts: one that is smaller than at the last export was reset after it."""
        before, since_ns = self._last.get(series, (value, self._started_ns))
        if value < before:
            since_ns = self._last_ns
        seen[series] = value, since_ns
        return since_ns


def _extremes() -> Sequence[Any]:
    """Returns the least and the greatest value of a histogram, neither of which is known; the type of the library has numbers."""
    return None, None


def _unit(name: str) -> str:
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
