"""The members of the cluster in shared memory."""

from pathlib import Path

import pytest

from shm.view import ViewNode, ViewSegment, ViewState

UUID = bytes(range(16))
PEER = ViewNode(1 << 62, 2, 1, 7, 3, True, 3, 3, UUID, "né@b", "[::1]:5370", -3_600_000)


def test_what_is_written_is_read_by_another_process(tmp_path: Path) -> None:
    view = ViewSegment.create(str(tmp_path / "view"), 5, UUID)
    assert view.read() == ViewState(0, 0, False, 0, False, {})
    reader = ViewSegment.attach(str(tmp_path / "view"))
    assert (reader.incarnation, reader.uuid) == (5, UUID)
    view.write(4, True, 2, True, {250: PEER})
    assert reader.read() == ViewState(1, 4, True, 2, True, {250: PEER})
    assert (reader.link_of(250), reader.knows(250), reader.link_of(1), reader.knows(1)) == (3, True, 0, False)
    gone = PEER._replace(is_member=False)
    view.write(5, False, 4, False, {250: gone})
    assert reader.read() == ViewState(2, 5, False, 4, False, {250: gone})
    assert (reader.link_of(250), reader.knows(250)) == (0, False)
    view.write(6, False, 4, False, {})
    assert reader.read() == ViewState(3, 6, False, 4, False, {})


@pytest.mark.parametrize("node", [0, -1, 256])
def test_node_ids_out_of_range(tmp_path: Path, node: int) -> None:
    view = ViewSegment.create(str(tmp_path / "view"), 5, UUID)
    for call in (view.link_of, view.knows, lambda node: view.write(1, False, 0, False, {node: PEER})):
        with pytest.raises(ValueError, match=f"must be 1 to 255, got {node}"):
            call(node)
    assert view.read().version == 0


def test_names_that_are_too_long_change_nothing(tmp_path: Path) -> None:
    view = ViewSegment.create(str(tmp_path / "view"), 5, UUID)
    view.write(4, True, 2, True, {1: PEER})
    with pytest.raises(ValueError, match="name: must have at most 255 bytes, got 256"):
        view.write(5, True, 2, True, {1: PEER._replace(name="x" * 256)})
    assert view.read() == ViewState(1, 4, True, 2, True, {1: PEER})


def test_another_segment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "view"
    path.write_bytes(bytes(400_000))
    path.chmod(0o600)
    with pytest.raises(ValueError, match="holds no view of this version"):
        ViewSegment.attach(str(path))
