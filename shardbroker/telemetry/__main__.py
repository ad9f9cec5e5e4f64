"""For the manager: settings and figures on standard input, outcomes on standard output; see `shardbroker.management.telemetry`."""

import os
import signal
import sys
from contextlib import suppress

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
    from shardbroker.telemetry.exporter import Exporter
    from shardbroker.telemetry.points import Points

    settings = read_frame(sys.stdin.buffer)
    if settings is None:
        return
    exporter, points = Exporter(settings), Points(settings["attributes"], settings["started_ns"])
    with suppress(BrokenPipeError):  # the manager has ended meanwhile
        out.write(frame_of(""))
        while (figures := read_frame(sys.stdin.buffer)) is not None:
            out.write(frame_of(exporter.export(points.data(figures["families"], figures["at_ns"]))))


main()
