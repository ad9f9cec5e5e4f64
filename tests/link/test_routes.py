"""Routes of peers behind a kill of link-0."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardbroker.cluster.messages import Route
from shardbroker.link.routes import open_routes
from shm.epochs import Epochs
from shm.remote_routes import RemoteRoutes
from shm.topology import Topology


def test_no_route_is_hidden_by_a_kill_before_its_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of topics are looked up again only once an epoch is raised; the row is there when the peer sends it again."""
    name = str(tmp_path / "epochs")
    epochs = Epochs.create(name)
    folders: Any = {"routes_dir": tmp_path / "routes", "remote_routes_dir": tmp_path / "remote", "epochs_name": name}
    topology = cast(Topology, SimpleNamespace(**folders))
    row, mark = Route(b"t/+"), (7, 1)

    def killed(_self: RemoteRoutes, _filters: list[bytes]) -> None:
        raise KeyboardInterrupt

    source, store = open_routes(topology)
    generation = store.begin(2)
    before = epochs.of(b"t/1")
    with monkeypatch.context() as patch:
        patch.setattr(RemoteRoutes, "_bump", killed)
        with pytest.raises(KeyboardInterrupt):
            store.put(2, generation, [row], mark)
    assert epochs.of(b"t/1") == before
    cast(Any, store).close()
    cast(Any, source)._log.env.close()
    source, again = open_routes(topology)
    again.put(2, again.begin(2), [row], mark)
    assert epochs.of(b"t/1") > before
    cast(Any, again).close()
    cast(Any, source)._log.env.close()
