"""Figures as data points: what the library is given, by hand-made figures."""

import io
from typing import Any

import pytest

from shardbroker.management.families import Family, Histogram, Summary, plain
from shardbroker.telemetry.frames import FRAME_MAX, FrameError, frame_of, length_in, read_frame
from shardbroker.telemetry.points import Points

START_NS, STEP_NS = 1_000, 10


def metrics(points: Points, families: list[Any], now_ns: int) -> dict[str, Any]:
    (resource,) = points.data(plain(families), now_ns).resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def counter(*samples: tuple[dict[str, object], float]) -> Family:
    return Family("rule.matched", "counter", "text", samples)


def test_a_counter_that_has_started_anew_counts_since_the_last_export() -> None:
    points, seen = Points({}, START_NS), []
    for step, value in enumerate((5, 7, 2, 3)):
        now_ns = START_NS + step * STEP_NS
        found = metrics(points, [counter(({"id": "a"}, value), ({"id": "b"}, step))], now_ns)
        one, other = found["shardbroker.rule.matched"].data.data_points
        assert (one.value, one.time_unix_nano, other.start_time_unix_nano) == (value, now_ns, START_NS)
        seen.append(one.start_time_unix_nano)
    assert seen == [START_NS, START_NS, START_NS + STEP_NS, START_NS + STEP_NS]


def test_nothing_is_kept_of_figures_that_are_no_more() -> None:
    points = Points({}, START_NS)
    for step in range(1000):
        metrics(points, [counter(({"id": str(step)}, 1))], START_NS + step)
    assert len(points._last) == 1


def test_units_summaries_and_histograms() -> None:
    found = metrics(
        Points({"service.version": "1"}, START_NS),
        [
            Family("ring_size_bytes", "gauge", "size", [({}, 3)]),
            Summary("claim_seconds", "claims", [({"worker": 0}, 1.5, 2)]),
            Histogram("pass_seconds", "passes", [0.1, 0.2], [1, 0, 2], 3.5),
        ],
        START_NS + 1,
    )
    names = ("ring_size_bytes", "claim_seconds.sum", "claim_seconds.count", "pass_seconds")
    assert list(found) == [f"shardbroker.{name}" for name in names]
    assert [metric.unit for metric in found.values()] == ["By", "", "", "s"]
    assert found["shardbroker.claim_seconds.sum"].data.data_points[0].value == 1.5
    assert found["shardbroker.claim_seconds.count"].data.data_points[0].value == 2
    (point,) = found["shardbroker.pass_seconds"].data.data_points
    assert (point.count, point.sum, point.bucket_counts, point.explicit_bounds) == (3, 3.5, [1, 0, 2], [0.1, 0.2])


def test_frames_are_bounded_and_whole() -> None:
    whole = frame_of({"a": [1, "b"]})
    stream = io.BytesIO(whole * 2)
    assert [read_frame(stream), read_frame(stream), read_frame(stream)] == [{"a": [1, "b"]}] * 2 + [None]
    for end in range(1, len(whole)):
        with pytest.raises(FrameError):
            read_frame(io.BytesIO(whole[:end]))
    with pytest.raises(FrameError):
        length_in((FRAME_MAX + 1).to_bytes(4, "big"))
    with pytest.raises(FrameError):
        frame_of(b"x" * FRAME_MAX)
