"""Authenticators and authorizers that others have written, found by entry point."""

from pathlib import Path

import pytest

from tests.access.guarded import Guarded

pytestmark = pytest.mark.own_broker

MODULE = '''
from shardbroker.access.contract import IGNORE, allow, deny


class Base:
    priority = 0

    def __init__(self, settings):
        self.settings = settings

    async def close(self):
        pass


class First(Base):
    priority = 10

    async def authenticate(self, client):
        if client.username == "crash":
            raise RuntimeError("secret detail " + (client.password or b"").decode())
        if client.username == "odd":
            return "yes"
        return deny(0x87) if client.username == "both" else IGNORE


class Second(Base):
    priority = 5

    async def authenticate(self, client):
        if client.username == "both":
            return allow()
        return allow(is_superuser=True) if client.password == self.settings["key"].encode() else IGNORE


class Topics(Base):
    async def authorize(self, client, questions):
        return [True if one.topic.startswith("ours/") else None for one in questions]
'''
ENTRY_POINTS = """
[shardbroker.authenticators]
second = others:Second
first = others:First

[shardbroker.authorizers]
topics = others:Topics
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with modules, where the broker's Python finds it."""
    (tmp_path / "others.py").write_text(MODULE)
    info = tmp_path / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_modules_are_asked_by_priority_and_their_failures_are_failures() -> None:
    secrets = '[auth.module_settings]\n"second.key" = "k3y"\n'
    with Guarded({"auth.chain": ["modules"], "acl.sources": ["topics"]}, secrets=secrets) as broker:
        broker.refused("m1", 0x87, username="both", password="x")
        with broker.client("m2", username="any", password="k3y") as root:
            root.subscribe("#", 0)
        broker.refused("m3", 0x86, username="any", password="wrong")
        broker.client("m4", username="crash", password="k3y").close()
        broker.refused("m5", 0x88, username="odd", password="x")
        assert 'backend=first reason=RuntimeError' in broker.logged("ERROR integrations: backend failed backend=first")
        assert "secret detail" not in "".join(broker.output)


def test_an_authorizer() -> None:
    with Guarded({"acl.sources": ["topics", "builtin"]}) as broker, broker.client("t1") as client:
        assert client.subscribe([("ours/x", 1), ("other", 1)], check=False).codes == (1, 0x87)


def test_what_is_named_must_be_installed() -> None:
    broker = Guarded({"auth.chain": ["nothere"]})
    with pytest.raises(AssertionError, match="nothere: no such module; installed: first, second"), broker:
        pass
