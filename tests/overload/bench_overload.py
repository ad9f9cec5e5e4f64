"""All scenarios of overload, with their figures: `python -m tests.overload.bench_overload [NAME...] [--large]`."""

import sys

from tests.overload import attacks, scenarios

LARGE = {
    "retained-million": lambda: scenarios.retained_to_many(1_000_000, 1, deadline_s=120),
    "retained-million-miss": lambda: scenarios.retained_to_many(1_000_000, 20, deadline_s=30, filter="+/+/999999"),
    "offline-20": lambda: scenarios.offline_queues(20, topics=20, limit_mb=1500),
}


def main(names: list[str]) -> None:
    """Runs the scenarios named, or all."""
    known = {**scenarios.ALL, **attacks.ALL, **LARGE}
    chosen = [name for name in names if name != "--large"] or [*scenarios.ALL, *attacks.ALL, *(LARGE if "--large" in names else ())]
    for name in chosen:
        print(known[name](), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
