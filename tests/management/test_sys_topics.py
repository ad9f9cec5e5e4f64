"""Names and values of $SYS topics."""

from shardbroker import __version__
from shardbroker.management.sys_topics import SysTopics
from shm.counters import NAMES

PREFIX = "$SYS/brokers/n@1"


def totals(**values: int) -> dict[str, int]:
    return dict.fromkeys(NAMES, 0) | {name.replace("__", "."): value for name, value in values.items()}


def test_identity_and_heartbeat() -> None:
    topics = SysTopics("n@1", 0.0)
    identity = dict(topics.identity())
    assert identity["$SYS/brokers"] == "n@1"
    assert identity[f"{PREFIX}/version"] == __version__
    assert "Python" in identity[f"{PREFIX}/sysdescr"]
    heartbeat = dict(topics.heartbeat())
    assert int(heartbeat[f"{PREFIX}/uptime"]) > 0
    assert "T" in heartbeat[f"{PREFIX}/datetime"]


def test_counters_go_below_metrics_and_gauges_below_stats() -> None:
    found = dict(SysTopics("n@1", 0.0).statistics(totals(messages__dropped__no_subscribers=3, connections__count=2), 7))
    assert found[f"{PREFIX}/metrics/messages/dropped/no_subscribers"] == "3"
    assert found[f"{PREFIX}/stats/connections/count"] == "2"
    assert found[f"{PREFIX}/stats/topics/count"] == "7"
    assert not any("/metrics/" in topic and topic.endswith("/count") for topic in found)
    gauges = {topic.removeprefix(f"{PREFIX}/stats/") for topic in found if "/stats/" in topic}
    for name in ("connections", "sessions", "subscriptions", "subscriptions/shared", "subscribers", "topics", "retained"):
        assert {f"{name}/count", f"{name}/max"} <= gauges


def test_max_remembers_the_highest() -> None:
    topics = SysTopics("n@1", 0.0)
    for count in (1, 5, 2):
        found = dict(topics.statistics(totals(sessions__count=count), count))
    assert (found[f"{PREFIX}/stats/sessions/count"], found[f"{PREFIX}/stats/sessions/max"]) == ("2", "5")
    assert (found[f"{PREFIX}/stats/topics/count"], found[f"{PREFIX}/stats/topics/max"]) == ("2", "5")


def test_every_subscription_is_a_subscriber() -> None:
    given = totals(subscriptions__count=3, subscriptions__shared__count=4)
    assert dict(SysTopics("n@1", 0.0).statistics(given, 0))[f"{PREFIX}/stats/subscribers/count"] == "7"


def test_latencies_are_those_since_the_round_before() -> None:
    topics = SysTopics("n@1", 0.0)

    def latencies(*buckets: tuple[int, int]) -> dict[str, str]:
        found = topics.latencies("ring.hop_us", buckets)
        return {topic.removeprefix(f"{PREFIX}/metrics/ring/hop_us/"): value for topic, value in found}

    assert latencies() == {"p50": "0", "p99": "0", "max": "0"}
    assert latencies((5, 99), (1000, 1)) == {"p50": "5", "p99": "5", "max": "1000"}
    assert latencies((5, 99), (7, 1), (1000, 1)) == {"p50": "7", "p99": "7", "max": "7"}
    assert latencies((5, 99), (7, 1), (9, 50), (1000, 51)) == {"p50": "9", "p99": "1000", "max": "1000"}
    assert latencies((5, 99), (7, 1), (9, 50), (1000, 51)) == {"p50": "0", "p99": "0", "max": "0"}
