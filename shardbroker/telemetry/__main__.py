"""For the manager: settings and data on standard input, outcomes on standard output; see `shardbroker.management.telemetry`."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shardbroker.telemetry.frames import frame_of, read_frame

NICENESS = 10
"""Below workers, which share a core with it on small machines."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole group; the end is that of standard input
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a library is not an outcome
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]  # the settings of the broker are those of a file that it checks
    settings = read_frame(sys.stdin.buffer)
    if settings is None:
        return
    export = _exports(settings)
    with suppress(BrokenPipeError):  # the manager has ended meanwhile
        out.write(frame_of(""))
        while (given := read_frame(sys.stdin.buffer)) is not None:
            out.write(frame_of(export(given)))


def _exports(settings: dict[str, Any]) -> Callable[[Any], str]:
    """Returns what exports the data of one frame, and returns what went wrong."""
    # Loaded here: they take most of the start, and read the environment.
    from shardbroker.telemetry.exporter import Exporter, SpanExporter, silence
    from shardbroker.telemetry.points import Points
    from shardbroker.telemetry.spans import Spans

    silence()
    if settings["signal"] == "traces":
        spans, span_exporter = Spans(settings["attributes"]), SpanExporter(settings)
        return lambda texts: span_exporter.export(spans.read(texts))
    points, exporter = Points(settings["attributes"], settings["started_ns"]), Exporter(settings)
    return lambda figures: exporter.export(points.data(figures["families"], figures["at_ns"]))


main()
