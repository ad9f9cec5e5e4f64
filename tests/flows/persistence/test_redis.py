"""The preset of Redis, against the real server: its keys as redis-cli shows them."""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.persistence.lookups import LOOKUPS, check_lookup
from tests.flows.persistence.scenario import NODE, SCENARIOS, Rows, check, on, running
from tests.harness import until
from tests.servers.redis import PASSWORD, cli, redis

pytestmark = pytest.mark.own_broker
EXPIRED_AFTER_S = 3600
HASHES = """
local answer = {}
for at, pattern in ipairs(KEYS) do
  answer[at] = {}
  for _, key in ipairs(redis.call('KEYS', pattern)) do
    if redis.call('TYPE', key).ok == 'hash' then
      table.insert(answer[at], {key, redis.call('HGETALL', key)})
    end
  end
end
return answer
"""


class Database:
    kind = "redis"

    def __init__(self, port: int) -> None:
        self.port = port
        self.settings = {"server": f"127.0.0.1:{port}", "password": PASSWORD}

    def cli(self, *words: str) -> object:
        return cli(self.port, *words)

    def hash(self, key: str) -> dict[str, str]:
        found = self.cli("HGETALL", key)
        assert isinstance(found, dict), (key, found)
        return found

    def keys(self, start: str) -> list[str]:
        found = self.cli("KEYS", f"{start}:*")
        assert isinstance(found, list)
        return sorted(found)

    def hashes(self, *starts: str) -> list[dict[str, dict[str, str]]]:
        """Returns the hashes below each start by key, all as they are at one moment."""
        answer = self.cli("EVAL", HASHES, str(len(starts)), *(f"{start}:*" for start in starts))
        assert isinstance(answer, list), answer
        return [{key: dict(zip(flat[::2], flat[1::2], strict=True)) for key, flat in sorted(found)} for found in answer]

    def rows(self, part: str) -> Rows:
        rows: Rows = []
        if part == "clients":
            clients, nodes = self.hashes("mqtt:client", "mqtt:node")
            for key, found in clients.items():
                online, offline = int(found["online_at"]), found.get("offline_at")
                known = [node for node, members in nodes.items() if key.removeprefix("mqtt:client:") in members]
                node = known[0].removeprefix("mqtt:node:") if known else None
                assert found["state"] == "0" or node is not None, (key, found, known)
                row = {"clientid": key.removeprefix("mqtt:client:"), "state": int(found["state"]), "online_at": online}
                rows.append(row | {"offline_at": None if offline is None else int(offline), "node": node})
        elif part == "subscriptions":
            for key in self.keys("mqtt:sub"):
                rows += [
                    {"clientid": key.removeprefix("mqtt:sub:"), "topic": topic, "qos": int(qos)}
                    for topic, qos in sorted(self.hash(key).items())
                ]
        elif part == "acked":
            for key in self.keys("mqtt:acked"):
                _, _, client, topic = key.split(":", 3)
                rows.append({"clientid": client, "topic": topic, "mid": self.cli("GET", key)})
        else:
            start = "mqtt:msg" if part == "messages" else "mqtt:retain"
            for key in self.keys(start):
                if self.cli("TYPE", key) == "zset":
                    continue
                found = self.hash(key)
                if not found:
                    continue  # removed since
                if part == "messages":
                    members = self.cli("ZRANGE", f"mqtt:msg:{found['topic']}", "0", "-1")
                    left = self.cli("TTL", key)
                    if self.cli("EXISTS", key):
                        assert isinstance(members, list) and found["id"] in members
                        assert isinstance(left, int) and EXPIRED_AFTER_S - 60 < left <= EXPIRED_AFTER_S
                row = {"msgid": found["id"], "topic": found["topic"], "sender": found["from"], "qos": int(found["qos"])}
                raw = found["payload"].encode(errors="surrogateescape")
                row |= {"retain": int(found["retain"]), "payload": raw, "arrived": int(found["ts"])}
                rows.append(row | {"node": NODE})
        return rows


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with redis() as found:
        yield found


@pytest.fixture
def store(port: int) -> Iterator[Database]:
    yield Database(port)
    cli(port, "FLUSHALL")


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_part_is_kept(store: Database, name: str) -> None:
    check(store, name)


@pytest.mark.parametrize("name", LOOKUPS)
def test_new_subscriptions_get_what_is_kept(store: Database, name: str) -> None:
    check_lookup(store, name)


def test_subscribing_and_unsubscribing_is_published_to_mqtt_channel(store: Database) -> None:
    command = ["redis-cli", "-p", str(store.port), "-a", PASSWORD, "--no-auth-warning", "SUBSCRIBE", "mqtt_channel"]
    with (
        running(store, subscriptions=True) as broker,
        tempfile.NamedTemporaryFile() as file,
        subprocess.Popen(command, stdout=file) as watching,
    ):
        seen = Path(file.name)
        try:
            until(lambda: "1" in str(store.cli("PUBSUB", "NUMSUB", "mqtt_channel")))
            with on(broker, 0, "s") as client:
                client.subscribe("a/\"'", 2)
                client.unsubscribe("a/\"'")
            until(lambda: len(_objects(seen)) == 2, lambda: str(_objects(seen)))
        finally:
            watching.terminate()
        common = {"topic": "a/\"'", "clientid": client.client_id}
        assert _objects(seen) == [{"type": "subscribe", "qos": 2, **common}, {"type": "unsubscribe", **common}]


def _objects(path: Path) -> list[object]:
    """Of the output of another program, which continues where it is: it must not be read from the descriptor that they share."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]


def payloads(store: Database) -> list[str]:
    (found,) = store.hashes("mqtt:msg")
    return [one["payload"] for one in found.values()]


def test_messages_expire_with_their_places_in_the_set_of_their_topic(store: Database) -> None:
    with running(store, messages=["in/#"], expired_after=5) as broker, on(broker, 0, "p") as client:
        client.publish("in/a", b"1", 1)
        until(lambda: store.cli("ZCARD", "mqtt:msg:in/a") == 1)
        until(lambda: payloads(store) == [])
        client.publish("in/a", b"2", 1)
        until(lambda: payloads(store) == ["2"], lambda: str(store.keys("mqtt:msg")))
        assert store.cli("ZCARD", "mqtt:msg:in/a") == 1
        until(lambda: store.cli("DBSIZE") == 0)
