"""`shardbroker ctl users|acl|banned` against a running broker."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.access.guarded import Guarded

pytestmark = pytest.mark.own_broker


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Guarded({"auth.chain": ["scram", "builtin"], "acl.sources": ["builtin"]}) as broker:
        yield broker


def ctl(broker: Guarded, *words: str, typed: str = "", code: int = 0) -> Any:
    program = Path(sys.executable).with_name("shardbroker")
    done = subprocess.run(
        [program, "ctl", f"--data-dir={broker.data_dir}", "--json", *words], input=typed, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


def test_users(guarded: Guarded) -> None:
    ctl(guarded, "users", "add", "ada", "--superuser", typed="secret\n")
    guarded.client("u1", username="ada", password="secret").close()
    assert ctl(guarded, "users", "list")["data"] == [{"name": "ada", "superuser": True}]
    ctl(guarded, "users", "add", "ada", typed="other\n")
    guarded.refused("u1", 0x86, username="ada", password="secret")
    ctl(guarded, "users", "delete", "ada")
    guarded.refused("u1", 0x86, username="ada", password="other")
    assert "NOT_FOUND" in ctl(guarded, "users", "delete", "ada", code=1)
    ctl(guarded, "users", "add", "sue", "--scram", typed="secret\n")
    assert ctl(guarded, "users", "list", "--scram")["data"][0]["name"] == "sue"
    ctl(guarded, "users", "add", "nobody", typed="\n", code=1)
    assert not any(secret in line for line in guarded.output for secret in ("secret", "other"))


def test_rules(guarded: Guarded) -> None:
    ctl(guarded, "users", "add", "bob", typed="secret\n")
    ctl(guarded, "acl", "add", "username", "bob", "--topic", "a/#", "--action", "subscribe")
    ctl(guarded, "acl", "set", "all", "--rules", '{"permission": "allow", "action": "publish", "topic": "b"}')
    assert {row["kind"] for row in ctl(guarded, "acl", "list")["data"]} == {"username", "all"}
    with guarded.client("r1", username="bob", password="secret") as bob:
        assert bob.subscribe([("a/x", 0), ("b", 0)], check=False).codes == (0, 0x87)
        assert bob.publish("b", b"", 1).code == 0x10  # type: ignore[union-attr]
    assert "permission" in ctl(guarded, "acl", "set", "all", "--rules", '{"permission": "maybe"}', code=1)
    ctl(guarded, "acl", "delete", "username", "bob")
    assert ctl(guarded, "acl", "reload") == {"reloaded": True}


def test_bans(guarded: Guarded) -> None:
    ctl(guarded, "users", "add", "eve", typed="secret\n")
    inside = guarded.client("b1", username="eve", password="secret")
    ctl(guarded, "banned", "add", "username", "eve", "--seconds", "60", "--reason", "noise")
    ended = inside.expect_close()
    assert ended is not None and ended.code == 0x98
    guarded.refused("b1", 0x8A, username="eve", password="secret")
    (row,) = ctl(guarded, "banned", "list")["data"]
    assert row["value"] == "eve" and row["by"] == "ctl" and row["reason"] == "noise"
    ctl(guarded, "banned", "delete", "username", "eve")
    assert "got 'x'" in ctl(guarded, "banned", "add", "peerhost_net", "x", code=1)


def test_a_secret_is_not_set_on_a_command_line(guarded: Guarded) -> None:
    assert "is a secret" in ctl(guarded, "config", "set", "auth.redis.password", "x", code=1)
