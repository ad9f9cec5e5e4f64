"""Destinations of routes: the encoding, which stands in journals on disks."""

from pathlib import Path

import pytest

from shm.destinations import (
    NUMBER_MAX,
    DestinationKind,
    destination,
    destination_kind,
    destination_name,
    destination_number,
    worker_destination,
)
from shm.routes import RouteChange, RouteTable


@pytest.mark.parametrize("kind", DestinationKind)
@pytest.mark.parametrize("number", [0, 7, NUMBER_MAX])
def test_kind_and_number_come_back(kind: DestinationKind, number: int) -> None:
    encoded = destination(kind, number)
    assert (destination_kind(encoded), destination_number(encoded)) == (kind, number)


def test_values_that_are_stored() -> None:
    assert {kind.name: int(kind) for kind in DestinationKind} == {"WORKER": 0, "NODE": 1, "SINK": 2, "STORE": 0x7F}
    assert worker_destination(5) == 5
    assert destination(DestinationKind.NODE, 3) == 0x01000003
    assert destination(DestinationKind.STORE, 0) == 0x7F000000  # docs/journal-format.md


@pytest.mark.parametrize("number", [-1, NUMBER_MAX + 1, 1 << 80])
def test_a_number_out_of_range_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"destination: must be a number from 0 to {NUMBER_MAX}, got {number}"):
        worker_destination(number)


def test_names() -> None:
    assert [destination_name(destination(kind, 3)) for kind in DestinationKind] == ["worker-3", "node-3", "sink-3", "store-3"]
    assert destination_name(destination(9, 4)) == "kind-9-4"


def test_every_kind_fits_into_the_route_table(tmp_path: Path) -> None:
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 20)
    every = [destination(kind, number) for kind in DestinationKind for number in (0, NUMBER_MAX)]
    table.update(RouteChange(True, b"t", to) for to in every)
    assert sorted(table.match(b"t").destinations) == sorted(every)
    table.close()
