"""What one hostile client, or a few, can send to cost the broker much more than it costs them.

As in `scenarios`: each runs against a broker of its own; the tests run them small, the benchmark large.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.access.guarded import http_server
from tests.harness import Broker, Client, client_id_on, wire
from tests.overload.scenarios import Outcome, memory_mb, overloaded_broker, wait_for_memory, watched

BACK_SHARE = 0.1
"""How much more than before memory may take once the attack is over."""
FILTERS_A_CLIENT = 1000
"""As many as mqtt.max_subscriptions allows."""
ALIAS_TOPIC_BYTES = 65_000
EMPTY_USER_PROPERTY = b"\x26\0\0\0\0"


def client_on(broker: Broker, worker: int, prefix: str, version: int) -> Client:
    """A client of this worker that stays until it is closed."""
    return Client(broker.address, version, client_id_on(worker, broker.workers, prefix), keepalive=0, timeout=60)


def huge_connect(client_id: str, username: str, user_properties: int) -> bytes:
    """A CONNECT of 5.0 with very many empty user properties."""
    properties = EMPTY_USER_PROPERTY * user_properties
    body = wire.string("MQTT") + bytes((5, 0x82)) + wire.u16(0) + wire.varint(len(properties)) + properties
    return wire.packet(wire.CONNECT, body + wire.string(client_id) + wire.string(username))


def wait_for_share(outcome: Outcome, broker: Broker) -> None:
    """Until memory is back to within a tenth."""
    wait_for_memory(outcome, broker, outcome.before * BACK_SHARE)


def logins_with_properties(clients: int = 40, user_properties: int = 200_000, seconds: float = 2) -> Outcome:
    """CONNECTs of a megabyte, while the back end that is asked about them does not answer."""
    with http_server() as answers:
        answers.answer = lambda path, fields: None if fields.get("username") == "hostile" else (200, b'{"result": "allow"}')
        settings: dict[str, object] = {
            "auth.chain": "http",
            "auth.http.url": f"{answers.url}/auth",
            "auth.http.pool_size": 256,
        }
        name = f"{clients} CONNECTs with {user_properties} user properties"
        with overloaded_broker(settings, limit_mb=250) as broker:
            with watched(name, broker) as outcome, ExitStack() as stack:
                for n in range(clients):
                    client_id = client_id_on(n % 2, broker.workers, f"hostile{n}x")
                    one = stack.enter_context(Client(broker.address, 5, client_id, connect=False))
                    one.send_raw(huge_connect(client_id, "hostile", user_properties))
                time.sleep(seconds)
                outcome.seen["attack_mb"] = memory_mb(broker)
                outcome.seen["asked"] = len([fields for _, _, fields in answers.asked if fields.get("username") == "hostile"])
            wait_for_share(outcome, broker)
    return outcome


def crossed_filters(levels: int) -> list[str]:
    """Every filter that has `+` or `a` at each level, and `#` behind."""
    return ["/".join([*choice, "#"]) for choice in itertools.product("+a", repeat=levels)]


@contextmanager
def subscribed_to_all(broker: Broker, filters: list[str]) -> Iterator[None]:
    """As few clients as may subscribe to so many filters, on the first worker."""
    with ExitStack() as stack:
        for start in range(0, len(filters), FILTERS_A_CLIENT):
            client = stack.enter_context(client_on(broker, 0, f"crossed{start}x", 4))
            part = filters[start : start + FILTERS_A_CLIENT]
            for first in range(0, len(part), 200):
                codes = client.subscribe([(one, 0) for one in part[first : first + 200]]).codes
                assert max(codes) < 0x80, codes
        yield


def wildcard_storm(levels: int = 12, publishes: int = 47, rounds: int = 3, publishers: int = 1, worker: int = 0) -> Outcome:
    """Few kilobytes of PUBLISH, each to a topic of its own that every one of 2^levels filters matches.

    pings: of one client, answered one after the other until a round was acknowledged; of the round with most.
    """
    with overloaded_broker() as broker:
        name = f"{publishes} topics that {2**levels} filters match, {publishers} publishers"
        with watched(name, broker) as outcome, ExitStack() as stack:
            stack.enter_context(subscribed_to_all(broker, crossed_filters(levels)))
            stormy = [stack.enter_context(client_on(broker, worker, f"storm{n}x", 4)) for n in range(publishers)]
            probe = stack.enter_context(client_on(broker, 0, "probe", 4))
            longest, served, pings = 0.0, 0, 0
            started = time.monotonic()
            for turn in range(rounds):
                for number, client in enumerate(stormy):
                    client.send_raw(
                        b"".join(
                            wire.publish("/".join(["a"] * levels) + f"/{number}-{turn}-{n}", b"", version=4, qos=1, packet_id=n + 1)
                            for n in range(publishes)
                        )
                    )
                end, own = served + publishes * len(stormy), 0
                while served < end:
                    asked = time.monotonic()
                    probe.ping()
                    longest = max(longest, time.monotonic() - asked)
                    own += 1
                    for client in stormy:
                        while client.recv(0) is not None:
                            served += 1
                pings = max(pings, own)
            outcome.seen |= {"longest_ping_ms": longest * 1000, "pings": pings, "acknowledged": served}
            outcome.seen["seconds"] = time.monotonic() - started
        wait_for_share(outcome, broker)
    return outcome


def long_topics(topics: int = 4000, size: int = 60_000, allowed: bool = False) -> Outcome:
    """A client that publishes to ever new topics of nearly 64 KB; the rules allow it nothing, or everything."""
    with TemporaryDirectory(prefix="shardbroker-overload-") as folder:
        rules = Path(folder) / "acl.conf"
        last = "{allow, all}" if allowed else "{deny, all}"
        rules.write_text(f'{{allow, all, all, ["ping/#", "$SYS/#"]}}.\n{last}.\n')
        name = f"{topics} topics of {size} bytes, {'allowed' if allowed else 'denied'}"
        with overloaded_broker({"acl.sources": "file", "acl.file.path": rules}) as broker:
            with watched(name, broker) as outcome, ExitStack() as stack:
                client = stack.enter_context(client_on(broker, 0, "hostile", 4))
                for n in range(topics):
                    client.send_raw(wire.publish(f"{n}/" + "x" * size, b"", version=4))
                    if n % 50 == 49:
                        client.ping()
                outcome.seen["attack_mb"] = memory_mb(broker)
            wait_for_share(outcome, broker)
    return outcome


def many_aliases(clients: int = 4, aliases: int = 4000) -> Outcome:
    """Clients that give an alias to ever longer lists of long topics, as many as they are told that they may."""
    with overloaded_broker() as broker:
        name = f"{aliases} aliases of {ALIAS_TOPIC_BYTES} bytes from {clients} clients"
        with watched(name, broker) as outcome, ExitStack() as stack:
            for number in range(clients):
                client = stack.enter_context(client_on(broker, number % 2, f"alias{number}x", 5))
                for n in range(1, aliases + 1):
                    topic = f"{number}/{n}/" + "x" * (ALIAS_TOPIC_BYTES - 20)
                    client.send_raw(wire.publish(topic, b"", properties={"topic_alias": n}))
                    if n % 50 == 0 and not still_there(client):
                        break
            outcome.seen["attack_mb"] = memory_mb(broker)
        wait_for_share(outcome, broker)
    return outcome


def still_there(client: Client) -> bool:
    """Whether the broker still answers."""
    client.send_raw(wire.pingreq())
    packet = client.recv(10)
    return isinstance(packet, wire.Pingresp)


ALL: dict[str, Callable[[], Outcome]] = {
    "wildcards": wildcard_storm,
    "wildcards-many": lambda: wildcard_storm(publishers=20, publishes=20, rounds=1),
    "wildcards-ring": lambda: wildcard_storm(worker=1),
    "logins": logins_with_properties,
    "topics-denied": long_topics,
    "topics-allowed": lambda: long_topics(allowed=True),
    "aliases": many_aliases,
}
