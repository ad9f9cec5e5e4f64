"""Routes of peers behind a kill of link-0."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardbroker.cluster.messages import Route
from shardbroker.link.routes import open_peer_routes
from shardbroker.link.stored_routes import StoredRoutes
from shm.epochs import Epochs
from shm.remote_routes import RemoteRoutes


def test_no_route_is_hidden_by_a_kill_before_its_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of topics are looked up again only once an epoch is raised; the row is there when the peer sends it again."""
    name = str(tmp_path / "epochs")
    epochs = Epochs.create(name)
    settings = SimpleNamespace(
        cluster=SimpleNamespace(static=SimpleNamespace(seeds=["n2"]), has_core=False), durability=SimpleNamespace(level="process"),
    )
    topology: Any = SimpleNamespace(
        remote_routes_dir=tmp_path / "remote", peer_routes_dir=tmp_path / "data" / "cluster" / "routes", epochs_name=name,
        settings=settings,
    )  # fmt: skip
    bell = os.eventfd(0)

    def opened() -> StoredRoutes:
        return open_peer_routes(topology, lambda *_: None, bell, is_new=False)

    row, mark = Route(b"t/+"), (7, 1)

    def killed(_self: RemoteRoutes, _filters: list[bytes]) -> None:
        raise KeyboardInterrupt

    store = opened()
    generation = store.begin(2)
    before = epochs.of(b"t/1")
    with monkeypatch.context() as patch:
        patch.setattr(RemoteRoutes, "_bump", killed)
        with pytest.raises(KeyboardInterrupt):
            store.put(2, generation, [row], mark)
    assert epochs.of(b"t/1") == before
    store.close()
    store._table.close()
    again = opened()
    again.put(2, again.begin(2), [row], mark)
    assert epochs.of(b"t/1") > before
    again.close()
    os.close(bell)
