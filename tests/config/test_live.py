"""Marks of the schema: which keys take effect while the broker runs, and which processes they reach."""

from shardbroker.config.base import Live
from shardbroker.config.keys import known_keys
from shardbroker.config.live import is_live, reach_of
from shardbroker.config.settings import Settings
from shm.channels import SUPERVISOR
from shm.roles import ACCEPTOR, API, CLUSTER, COAP, EXPROTO, FLOWS, INTEGRATIONS, LINK, MANAGER, MQTTSN, ROLES, STOMP, WORKER

LIVE_SECTIONS = {
    "acl", "actions", "alarm", "auth", "auto_subscribe", "connectors", "delayed", "event_message", "exhook",
    "flapping_detect", "gateways", "journal", "log", "mqtt", "opentelemetry", "persistence", "plugins", "replay", "retainer",
    "rewrite", "rule_engine", "rules", "slow_subs", "snapshot", "sources", "streams", "sys", "topic_metrics", "trace",
}  # fmt: skip
RESTART_KEYS = {"mqtt.shared_subscription_strategy", "journal.segment_bytes", "journal.cycle_bytes"} | {
    f"gateways.{kind}.processes" for kind in ("coap", "exproto", "mqttsn", "stomp")
}
LIVE_KEYS = {"cluster.lost_session"}
"""Keys of sections that need a restart else."""


def test_every_section_has_a_mark() -> None:
    assert [name for name, field in Settings.model_fields.items() if not any(isinstance(one, Live) for one in field.metadata)] == []


def test_marks_name_processes_of_the_broker() -> None:
    reached = {role for key in map(".".join, known_keys()) for role in reach_of(key)}
    assert reached == {WORKER, MANAGER, INTEGRATIONS, API, ACCEPTOR, COAP, EXPROTO, MQTTSN, STOMP, SUPERVISOR}
    assert reached == {SUPERVISOR, *(role.name for role in ROLES)} - {CLUSTER, LINK, FLOWS}, "nodes need a restart; rules a channel"


def test_keys_that_need_a_restart() -> None:
    keys = {".".join(path) for path in known_keys()}
    restart = {key for key in keys if not is_live(key)}
    within = {key for key in restart if key.partition(".")[0] in LIVE_SECTIONS}
    assert within == RESTART_KEYS | {key for key in keys if key.startswith("mqtt.limiter.")}
    assert {key.partition(".")[0] for key in keys - restart - LIVE_KEYS} == LIVE_SECTIONS


def test_the_innermost_mark_counts() -> None:
    assert reach_of("mqtt.max_inflight") == {WORKER}
    assert reach_of("mqtt.idle_timeout") == {WORKER, ACCEPTOR}
    assert reach_of("mqtt") == {WORKER}
    assert reach_of("mqtt.limiter.max_conn_rate") == frozenset()
    assert reach_of("sys.event_messages.client_connected") == {WORKER, MANAGER}
    assert reach_of("auth.http.url") == {WORKER, MANAGER, INTEGRATIONS}
    assert SUPERVISOR in reach_of("auth.chain")


def test_names_within_tables_are_no_keys() -> None:
    assert reach_of("listeners.mqtt.bind") == reach_of("listeners.default.tls.sni.a.certfile") == frozenset()
    assert is_live("mqtt.mqueue_priorities.a/b")
