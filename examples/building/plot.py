"""Draws the day of `simulate.py` from an export: temperature and CO2 of each room.

    shardbroker export --data-dir data --to building --topics 'building/#' --types message --payload json
    python examples/building/plot.py building building.png
"""

import argparse

import duckdb
import matplotlib

matplotlib.use("Agg")
from matplotlib import dates, pyplot

READINGS = """
    SELECT topic_levels[2]::INT AS floor, topic_levels[3]::INT AS room, topic_levels[4] AS quantity,
           (payload_json->>'$.at')::TIMESTAMP AS moment, (payload_json->>'$.value')::DOUBLE AS value
    FROM read_parquet($path || '/**/part-*.parquet')
    WHERE type = 'message' AND captured AND topic LIKE 'building/%'
"""
"""One row for each message. `captured`: a message counts once, however many workers had sessions for it."""
LINES = f"""
    SELECT quantity, floor, room, list(moment ORDER BY moment), list(value ORDER BY moment) FROM ({READINGS})
    GROUP BY ALL ORDER BY ALL
"""
PANELS = {"temperature": "°C", "co2": "ppm CO2"}
COLOURS = {1: "#4c78a8", 2: "#e45756", 3: "#54a24b"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", help="directory of the export")
    parser.add_argument("picture", help="PNG to write")
    arguments = parser.parse_args()
    lines = duckdb.execute(LINES, {"path": arguments.path}).fetchall()
    figure, axes = pyplot.subplots(len(PANELS), figsize=(9, 5.5), sharex=True)
    for axis, (quantity, unit) in zip(axes, PANELS.items(), strict=True):
        drawn = [line[1:] for line in lines if line[0] == quantity]
        for floor, room, at, value in drawn:
            axis.plot(at, value, color=COLOURS[floor], linewidth=1.1, alpha=0.8, label=f"floor {floor}" if room == 1 else None)
        name_the_extreme(axis, quantity, drawn)
        axis.set_ylabel(unit)
        axis.grid(alpha=0.3)
    axes[0].legend(loc="upper left")
    axes[0].set_title("A day in the building: each line is a room")
    axes[-1].xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    figure.tight_layout()
    figure.savefig(arguments.picture, dpi=90)
    print(f"{sum(len(line[3]) for line in lines)} readings of {len(lines)} sensors drawn to {arguments.picture}")


def name_the_extreme(axis: pyplot.Axes, quantity: str, drawn: list) -> None:
    """Writes which room is the coldest during work, or has the most CO2."""
    by_room = {(floor, room): list(zip(at, value, strict=True)) for floor, room, at, value in drawn}
    working = [(value, at, where) for where, line in by_room.items() for at, value in line if 9 <= at.hour < 17]
    value, at, (floor, room) = (max if quantity == "co2" else min)(working)
    text, place = f"floor {floor}, room {room}", (24, -6 if quantity == "co2" else 6)
    axis.annotate(text, (at, value), xytext=place, textcoords="offset points", arrowprops={"arrowstyle": "-"})


if __name__ == "__main__":
    main()
