"""Which worker has which sessions: even shares, shares by weight, and the number that tells divisions apart."""

from zlib import crc32

import pytest

from shm.partitions import PARTITIONS, Division, workers_of


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 64, 1000, 1024])
def test_without_weights_it_is_the_partition_modulo_the_workers(workers: int) -> None:
    division = Division(workers)
    assert division == Division(workers, (5,) * workers), "weights that are all the same are none"
    assert list(division.owners) == [partition % workers for partition in range(PARTITIONS)]
    assert division.worker_of(b"client") == crc32(b"client") % PARTITIONS % workers
    assert division.number == workers


@pytest.mark.parametrize("weights", [(2, 1), (1, 2), (3, 1, 1), (100, 1), (1, 2, 3, 4, 5, 6, 7), (7, *[5] * 63), (1, *[100] * 10)])
def test_each_gets_its_share_to_the_partition_all_over(weights: tuple[int, ...]) -> None:
    division = Division(len(weights), weights)
    for partitions in (PARTITIONS, PARTITIONS // 2):
        for worker, weight in enumerate(weights):
            share = division.owners[:partitions].count(worker)
            assert abs(share - partitions * weight / sum(weights)) < 1.5, worker
    assert {*division.owners} == {*range(len(weights))}, "nobody goes empty"
    assert [division.weight(worker) for worker in range(len(weights))] == list(weights)


def test_a_number_tells_divisions_apart_and_says_how_many_workers_there_are() -> None:
    divisions = [Division(2), Division(3), Division(2, (1, 2)), Division(2, (2, 1)), Division(3, (1, 2, 1))]
    assert len({division.number for division in divisions}) == len(divisions)
    assert [workers_of(division.number) for division in divisions] == [2, 3, 2, 2, 3]
