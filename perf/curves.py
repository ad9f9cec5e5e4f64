"""Cost curves: CPU cost, throughput and latency of messages over payload, subscribers, topics and connections.

`python -m perf.curves DIRECTORY` draws them into files there; see docs/performance.md. Each point is two runs on a broker of its
own kind of load: as fast as the window allows, and at half of the resulting rate, from which latency is taken.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from perf.launch import launched, on_core
from perf.measure import FAULTS, Result, run_plan, sound
from perf.plan import WINDOW_MAX, Plan
from perf.svg import Line, document, lines

__all__ = ["CURVES", "main"]

UNDER_WAY = 8 << 20
"""Bytes of all publishers' windows: the larger the payloads, the smaller the windows."""
SECONDS = 2.0
ENOUGH = 20_000_000
"""Messages; unlimited in practice, since time ends a run."""


def _sized(size: int) -> Plan:
    return _plan(payload=size, window=max(2, min(2000, UNDER_WAY // 5 // size)))


def _plan(**values: object) -> Plan:
    return Plan(**{"messages": ENOUGH, "seconds": SECONDS} | values)  # type: ignore[arg-type]


CURVES: dict[str, tuple[str, dict[int, Plan]]] = {
    "payload": (
        "bytes of payload, 5 to 5",
        {size: _sized(size) for size in (24, 64, 256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20)},
    ),
    "subscribers": (
        "subscribers of one topic",
        {
            n: _plan(scenario="fanout", publishers=1, subscribers=n, window=max(10, 5000 // n))
            for n in (1, 3, 10, 30, 100, 300, 1000, 3000)
        },
    ),
    "topics": (
        "topics of each of 5 publishers",
        {n: _plan(scenario="wildcard", subscribers=10, topics=n) for n in (1, 10, 100, 1000, 10_000, 100_000)},
    ),
    "connections": (
        "connections, half of them publish",
        {2 * n: _plan(publishers=n, subscribers=n, window=max(2, 10_000 // n)) for n in (5, 15, 50, 150, 500, 1500, 5000)},
    ),
}
"""Title of the x axis, and the plan of each point."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf.curves", description=__doc__)
    own = Path(sys.executable).with_name("shardbroker")
    options = "--listen tcp://127.0.0.1:{port} --data-dir {dir} --workers 1 --acceptors 1 --set mqtt.max_packet_size=2MB"
    options += " --set api.bind=disabled"
    parser.add_argument("directory", type=Path, help="directory of the plots")
    parser.add_argument("--broker", default=f"{own} serve {options}", help="command; {port} and {dir} are filled in")
    parser.add_argument("--curve", choices=CURVES, action="append", help="draw only this curve; may be given several times")
    parser.add_argument("--broker-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    arguments = parser.parse_args(argv)
    for name in arguments.curve or CURVES:
        points: list[tuple[int, Result, Result]] = []
        with launched(arguments.broker, arguments.broker_core) as broker, on_core(arguments.load_core):
            for x, plan in CURVES[name][1].items():
                points.append((x, *_measure(plan, broker.port, broker.pid)))
                print(json.dumps({"curve": name, "x": x} | _figures(*points[-1][1:])), flush=True)
        _draw(arguments.directory, name, points)
    return 0


def _measure(plan: Plan, port: int, pid: int) -> tuple[Result, Result]:
    """Measures a plan at full speed, and at half of that rate."""
    full = run_plan(plan, "127.0.0.1", port, pid)
    window = max(plan.window, min(WINDOW_MAX, UNDER_WAY // plan.publishers // plan.payload))
    half = dataclasses.replace(plan, rate=max(1.0, full["published_per_s"] / 2), window=window, run=f"{plan.run}h")
    return full, run_plan(half, "127.0.0.1", port, pid)


def _figures(full: Result, half: Result) -> dict[str, object]:
    return {
        "cpu_s_per_million": full["broker_cpu_s_per_million"],
        "per_s": full["delivered_per_s"],
        "own_cpu_s_per_million": full["own_cpu_s_per_million"],
        "p50_ms": half["latency"]["p50_us"] / 1000,
        "p99_ms": half["latency"]["p99_us"] / 1000,
        "faults": {name: value for result in (full, half) if not sound(result) for name in FAULTS if (value := result.get(name))},
    }


def _draw(directory: Path, name: str, points: list[tuple[int, Result, Result]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    rows = [(x, _figures(full, half)) for x, full, half in points]
    plots = (
        ("cpu", "Broker CPU", "CPU s per million deliveries", {"cpu_s_per_million": "broker"}),
        ("rate", "Throughput", "deliveries per second", {"per_s": "broker"}),
        ("latency", "Latency at half of the rate", "ms", {"p50_ms": "p50", "p99_ms": "p99"}),
    )
    for kind, title, unit, figures in plots:
        data = [
            Line(text, number, [(x, float(str(row[key]))) for x, row in rows]) for number, (key, text) in enumerate(figures.items())
        ]
        plot = lines(title, data, CURVES[name][0], unit, logarithmic=True)
        (directory / f"{name}-{kind}.svg").write_text(document(title, plot, [*figures.values()] if len(figures) > 1 else []))


if __name__ == "__main__":
    sys.exit(main())
