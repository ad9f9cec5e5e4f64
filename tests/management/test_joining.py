"""What a broker that becomes a node takes of an answer, and where it looks for a member."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardbroker.cluster.joining import Admission
from shardbroker.config import Loaded, Settings
from shardbroker.config.sources import load, read_kept, write_kept
from shardbroker.control import ControlError
from shardbroker.management.configuration import Configuration
from shardbroker.management.joining import KEYS, _address, _checked
from shardbroker.stores.node_file import Joined, forget_joined, read_joined, write_joined

LEAST = {"cluster.enable": True, "cluster.name": "plant", "cluster.core.mode": "none", "cluster.discovery": "static"}


def admission(**keys: Any) -> Admission:
    return Admission("n1", b"c" * 16, {**LEAST, **{name.replace("__", "."): value for name, value in keys.items()}})


def test_the_port_of_links_is_the_default() -> None:
    assert [_address(text) for text in ("10.0.0.1", "n1.example.org", "[fd00::1]", "10.0.0.1:7000", "[fd00::1]:7000")] == [
        "10.0.0.1:5370", "n1.example.org:5370", "[fd00::1]:5370", "10.0.0.1:7000", "[fd00::1]:7000",
    ]  # fmt: skip
    for text in "fd00::1", "10.0.0.1:0", "10.0.0.1:70000", ":5370", "a:b":
        with pytest.raises(ControlError, match="address: must be HOST or HOST:PORT"):
            _address(text)


def test_keys_that_are_not_of_all_nodes_are_refused() -> None:
    assert _checked(admission()) == LEAST
    for key in "cluster.cookie_file", "cluster.management", "plugins.dir", "auth.chain", "cluster.etcd.password", "nothing":
        with pytest.raises(ControlError, match=f"its answer has unknown {key}"):
            _checked(Admission("n1", b"c" * 16, {**LEAST, key: "x"}))
    with pytest.raises(ControlError, match=r"its answer has no cluster\.enable = true"):
        _checked(Admission("n1", b"c" * 16, {**LEAST, "cluster.enable": False}))
    with pytest.raises(ControlError, match=r"its answer has no cluster\.name"):
        _checked(Admission("n1", b"c" * 16, {key: value for key, value in LEAST.items() if key != "cluster.name"}))


def test_every_key_is_one_of_the_schema() -> None:
    settings = Settings()
    for key in KEYS:
        value: Any = settings
        for part in key.split("."):
            value = getattr(value, part)


def test_what_a_join_has_written_is_known_again(tmp_path: Path) -> None:
    assert read_joined(tmp_path) is None
    write_joined(tmp_path, Joined(b"c" * 16, {"cluster.enable": "true"}))
    assert read_joined(tmp_path) == Joined(b"c" * 16, {"cluster.enable": "true"})
    (tmp_path / "cluster" / "joined").write_text("{}")
    with pytest.raises(ValueError, match="must be JSON with cluster and keys"):
        read_joined(tmp_path)
    forget_joined(tmp_path)
    assert read_joined(tmp_path) is None


class _Rollout:
    """Publishes nothing: no key of a join is live."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings


def configuration(data_dir: Path, file: Path) -> Configuration:
    loaded = load(file, options={"process.data_dir": str(data_dir)})

    async def check(loaded: Loaded, before: Settings | None) -> None:
        pass

    topology: Any = SimpleNamespace(data_dir=data_dir, loaded=loaded, settings=loaded.settings)
    rollout: Any = _Rollout(loaded.settings)
    return Configuration(topology, rollout, lambda settings: None, check, lambda settings: None)


VALUES = {**LEAST, "cluster.static.seeds": ["10.0.0.1:5370", "10.0.0.2:5370"]}


async def nothing(wanted: Loaded, new: dict[str, str]) -> None:
    pass


def kept(data_dir: Path) -> dict[str, Any]:
    return {".".join(path): value for path, value in read_kept(data_dir / "runtime.toml").items()}


@pytest.fixture(name="file")
def a_file(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text("node.id = 2\ncluster.cookie_file = 'cookie'\n")
    return path


def test_adopted_keys_are_stored_once_and_removed_alone(tmp_path: Path, file: Path) -> None:
    write_kept(tmp_path / "runtime.toml", {("mqtt", "max_inflight"): 7})
    own, stored, before = configuration(tmp_path, file), dict[str, str](), kept(tmp_path)

    async def confirm(wanted: Loaded, new: dict[str, str]) -> None:
        assert wanted.settings.cluster.enable and kept(tmp_path) == before
        stored.update(new)

    done = asyncio.run(own.adopt(VALUES, {}, confirm))
    assert "cluster.enable" in done["needs_restart"] and kept(tmp_path) == {"mqtt.max_inflight": 7, **VALUES}
    before = kept(tmp_path)
    seeds = {**VALUES, "cluster.static.seeds": ["10.0.0.1:5370", "10.0.0.3:5370"]}
    asyncio.run(own.adopt(seeds, dict(stored), confirm))
    assert kept(tmp_path) == {"mqtt.max_inflight": 7, **seeds}
    asyncio.run(own.disown(stored))
    assert kept(tmp_path) == {"mqtt.max_inflight": 7}


def test_no_value_that_was_set_is_hidden(tmp_path: Path, file: Path) -> None:
    file.write_text("node.id = 2\ncluster.cookie_file = 'cookie'\ncluster.name = 'other'\n")
    with pytest.raises(ControlError, match=rf'cluster.name: must be "plant", got "other" \(file {file}\)'):
        asyncio.run(configuration(tmp_path, file).adopt(VALUES, {}, nothing))
    file.write_text("node.id = 2\ncluster.cookie_file = 'cookie'\ncluster.name = 'plant'\n")
    write_kept(tmp_path / "runtime.toml", {("cluster", "registry"): "off"})
    with pytest.raises(ControlError, match=r'cluster.registry: must be "on", got "off" \(file .*runtime.toml\)'):
        asyncio.run(configuration(tmp_path, file).adopt({**VALUES, "cluster.registry": "on"}, {}, nothing))
    assert kept(tmp_path) == {"cluster.registry": "off"}
    asyncio.run(configuration(tmp_path, file).adopt(VALUES, {}, nothing))
    assert "cluster.name" not in kept(tmp_path), "the file has it"


def test_a_join_that_is_not_confirmed_stores_nothing(tmp_path: Path, file: Path) -> None:
    async def confirm(wanted: Loaded, new: dict[str, str]) -> None:
        raise ControlError("NOT_AVAILABLE", "etcd is down")

    with pytest.raises(ControlError, match="etcd is down"):
        asyncio.run(configuration(tmp_path, file).adopt(VALUES, {}, confirm))
    assert not (tmp_path / "runtime.toml").exists()
    with pytest.raises(ControlError, match=r"cluster\.static\.seeds"):
        asyncio.run(configuration(tmp_path, file).adopt(LEAST, {}, nothing))
