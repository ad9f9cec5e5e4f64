"""The configuration schema: type, default, bounds, meaning and mark of every key. Defaults are those of EMQX unless noted."""

import re
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from shardbroker.config.access import Acl, Auth, FlappingDetect
from shardbroker.config.api import Api
from shardbroker.config.auto_subscribe import AutoSubscribe
from shardbroker.config.base import LIMIT_MAX, LONGEST_WAIT_S, RESTART, SHORTEST_S, Live, Section
from shardbroker.config.c_fields import c_values
from shardbroker.config.cluster import NODE_ID_MAX, Cluster
from shardbroker.config.exhook import ExHook
from shardbroker.config.features import Delayed, EventMessage, Rewrite, check_filters
from shardbroker.config.flows import RULE_ID, RULES_MAX, Flows, Rule, RuleEngine
from shardbroker.config.gateways import Gateways
from shardbroker.config.listeners import LISTENERS_MAX, Listener, ZoneLimiter, check_listener_names, parse_address
from shardbroker.config.opentelemetry import OpenTelemetry
from shardbroker.config.persistence import Persistence, check_connectors
from shardbroker.config.plugins import PluginSettings
from shardbroker.config.replay import Replay
from shardbroker.config.sinks.ids import check_own_name
from shardbroker.config.sinks.tables import Actions, Connectors, Sources, check_actions, check_sources
from shardbroker.config.streams import Stream, check_names
from shardbroker.config.units import Allowed, Duration, Limit, MemoryMark, Number, OptionalDuration, Size, Whole
from shardbroker.config.watching import SlowSubs, TopicMetrics, Trace
from shm.channels import SUPERVISOR
from shm.roles import ACCEPTOR, API, COAP, EXPROTO, INTEGRATIONS, MANAGER, MQTTSN, STOMP, WORKER

__all__ = [
    "Alarm",
    "Api",
    "Cluster",
    "Durability",
    "Journal",
    "Listener",
    "Log",
    "Mqtt",
    "Node",
    "Overload",
    "Process",
    "Prometheus",
    "Retainer",
    "Retention",
    "Settings",
    "Sys",
    "SysEvents",
    "core_numbers",
    "weight_numbers",
]

MAX_PACKET_SIZE = 256 << 20
"""Largest packet that the protocol can express, and the largest allowed limit, bytes."""

PROCESSES_MAX = 1024
"""Most workers and most acceptors: as many as there are session partitions."""

WEIGHT_MAX = 100
"""Largest weight of a worker: a byte of the journal holds it."""

REFERENCE_MAX = 1000
"""Most characters of a server reference: below any sensible packet limit of a client."""

CORES_MAX = 8192
"""Cores of the largest machine: NR_CPUS in the kernels of distributions."""


def _cores(value: object) -> str:
    text = str(value).replace(" ", "")
    if isinstance(value, bool) or (text != "auto" and not core_numbers(text)):
        raise ValueError("not a list of cores")
    return text


def core_numbers(text: str) -> list[int]:
    """Returns the cores of a text such as `0-3,8` in this order; an empty list if the text is not a list of cores."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not first.isdecimal() or not last.isdecimal() or not int(first) <= int(last) < CORES_MAX:
            return []
        found += range(int(first), int(last) + 1)
    return found if len(set(found)) == len(found) else []


def _weights(value: object) -> str:
    text = str(value).replace(" ", "")
    if isinstance(value, bool) or (text != "auto" and not weight_numbers(text)):
        raise ValueError("not weights")
    return text


def weight_numbers(text: str) -> tuple[int, ...]:
    """Returns the weights of a text such as `3,1,1`; empty if the text is something else, or if the share of one weight is below
    that of a session partition."""
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= WEIGHT_MAX for part in parts):
        return ()
    found = tuple(map(int, parts))
    return found if min(found) * PROCESSES_MAX >= sum(found) else ()


Count = Annotated[
    Literal["auto"] | Annotated[Whole, Field(ge=1, le=PROCESSES_MAX)], Allowed(f"auto or a number from 1 to {PROCESSES_MAX}")
]
Cores = Annotated[str, BeforeValidator(_cores), Allowed("auto or numbers of cores, such as 0-3,8")]
Weights = Annotated[
    str,
    BeforeValidator(_weights),
    Allowed(f"auto, or a number from 1 to {WEIGHT_MAX} for each worker, such as 3,1,1, none below 1/{PROCESSES_MAX} of the sum"),
]
Priority = Annotated[Whole, Field(ge=1, le=255)]
RingSize = Annotated[Size, Field(ge=65536, le=1 << 30)]
Filters = Annotated[
    list[str],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Allowed('a topic filter or a list of them, such as ["a/+", "b/#"]'),
]
Strategy = Literal["random", "round_robin", "round_robin_per_group", "sticky", "local", "hash_topic", "hash_clientid"]


PUSH_BACK_TOPICS_MAX = 100
"""Most filters of `push_back_topics`: each message for a full queue is compared with all of them."""

PUSH_BACK_S_MAX = 300.0
"""Longest `push_back_timeout`, seconds: publishers consider a broker dead that acknowledges nothing for longer."""


class Mqtt(Section):
    """The MQTT protocol."""

    idle_timeout: Annotated[Duration, Live(WORKER, ACCEPTOR)] = Field(
        15.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Longest time from accept to a complete CONNECT."
    )
    max_packet_size: Annotated[Size, Live(WORKER, MANAGER, INTEGRATIONS, ACCEPTOR)] = Field(
        1 << 20, ge=1024, le=MAX_PACKET_SIZE, description="Largest packet that is accepted from clients."
    )
    max_clientid_len: Whole = Field(65535, ge=23, le=65535, description="Most bytes of a client id.")
    max_topic_levels: Annotated[Whole, Live(WORKER, MANAGER)] = Field(
        128, ge=1, le=65535, description="Most levels of a topic or topic filter."
    )
    max_topic_alias: Whole = Field(65535, ge=0, le=65535, description="Topic Alias Maximum in CONNACK of MQTT 5.0.")
    max_qos_allowed: Literal[0, 1, 2] = Field(2, description="Highest QoS with which clients may publish.")
    retain_available: bool = Field(True, description="Whether clients may retain messages.")
    wildcard_subscription: bool = Field(True, description="Whether topic filters may contain + and #.")
    shared_subscription: bool = Field(True, description="Whether `$share/` and `$queue/` subscriptions are available.")
    exclusive_subscription: bool = Field(False, description="Whether `$exclusive/` subscriptions are available.")
    # Publishers remember their place in the strategy.
    shared_subscription_strategy: Annotated[Strategy, RESTART] = Field(
        "round_robin", description="How the member of a shared group that receives a message is chosen."
    )
    ignore_loop_deliver: bool = Field(False, description="Whether 3.x clients do not receive their own messages (No Local).")
    session_expiry_interval: Duration = Field(
        7200.0, ge=1, description="How long a 3.x session with clean session 0 is kept after its connection."
    )
    max_session_expiry_interval: Duration = Field(inf, ge=1, description="Longest Session Expiry Interval that is granted.")
    message_expiry_interval: Duration = Field(
        inf, ge=SHORTEST_S, description="Longest Message Expiry Interval; longer ones are reduced."
    )
    max_inflight: Whole = Field(32, ge=1, le=65535, description="Most unacknowledged QoS 1 and 2 messages per client.")
    max_mqueue_len: Limit = Field(
        1000, ge=0, le=LIMIT_MAX, description="Most messages that wait in the queue of a session; 0: no limit."
    )
    mqueue_overflow: Literal["drop", "push_back"] = Field(
        "drop",
        description="Behaviour of the full queue of a connected session. drop: the oldest message is dropped; push_back: the "
        "acknowledgement of the publisher waits, see docs/sizing.md. The queue of an absent client always drops.",
    )
    push_back_topics: Annotated[
        list[str],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        Allowed(f'a topic filter or a list of at most {PUSH_BACK_TOPICS_MAX}, such as ["orders/#", "alarms/+"]'),
    ] = Field([], description="Filters of topics with `push_back`, whatever `mqueue_overflow` is.")
    push_back_timeout: Duration = Field(
        5.0,
        ge=SHORTEST_S,
        le=PUSH_BACK_S_MAX,
        description="Longest wait of an acknowledgement; a full queue of which less than an eighth leaves in this time drops until "
        "an eighth is free.",
    )
    mqueue_store_qos0: bool = Field(True, description="Whether QoS 0 messages are queued, too; if not, they are dropped.")
    mqueue_priorities: Annotated[dict[str, Priority], Allowed("a table of topic = 1..255")] = Field(
        {}, description="Topic = priority; messages of a higher priority leave the queue first."
    )
    mqueue_default_priority: Literal["lowest", "highest"] = Field(
        "lowest", description="Priority of topics that `mqueue_priorities` does not list."
    )
    max_output_bytes: Size = Field(
        1 << 20,
        ge=16384,
        le=1 << 30,
        description="Output that waits for one slow client; above it QoS 0 is dropped and QoS 1 and 2 stay in the queue, and above "
        "twice this size the client is not read.",
    )
    max_awaiting_rel: Limit = Field(
        100, ge=0, le=65535, description="Most QoS 2 messages of a client that await PUBREL; 0: no limit."
    )
    await_rel_timeout: Duration = Field(300.0, ge=SHORTEST_S, description="Longest wait for a PUBREL.")
    retry_interval: Duration = Field(
        inf, ge=SHORTEST_S, description="After which unacknowledged packets are sent again to 3.x clients."
    )
    keepalive_multiplier: Number = Field(
        1.5, ge=1, le=100, description="A silent client is disconnected after its keepalive times this."
    )
    server_keepalive: OptionalDuration = Field(None, ge=1, le=65535, description="Keepalive that replaces that of the client.")
    max_subscriptions: Limit = Field(1000, ge=0, le=LIMIT_MAX, description="Most subscriptions per session; 0: no limit.")
    upgrade_qos: bool = Field(
        False, description="Whether messages are delivered with the QoS of the subscription even if published with a lower one."
    )
    response_information: str = Field("", description="Response Information for 5.0 clients that request it.")
    # Connections have taken their limits.
    limiter: Annotated[ZoneLimiter, RESTART] = ZoneLimiter()

    @field_validator("push_back_topics")
    @classmethod
    def _push_back_topics(cls, value: list[str]) -> list[str]:
        if len(value) > PUSH_BACK_TOPICS_MAX:
            raise ValueError(f"allowed are {PUSH_BACK_TOPICS_MAX} topic filters, not {len(value)}")
        check_filters(value)
        return value

    @property
    def c_values(self) -> dict[str, Any]:
        """The values of a worker's C fields, by their names: session/mqtt_settings.pxd."""
        return c_values(self)


class Durability(Section):
    """What survives a failure of processes or of the machine."""

    level: Literal["none", "process", "machine"] = Field(
        "process",
        description="none: sessions end with their worker; process: nothing acknowledged is lost when processes are killed; "
        "machine: nor when the machine loses power, for a sync of the disk before each acknowledgement.",
    )
    on_disk_error: Literal["hold", "continue"] = Field(
        "hold",
        description="Behaviour while the disk takes no writes. hold: acknowledgements and deliveries to sessions that stay wait; "
        "continue: nothing waits, and once max_pending_bytes are pending, they are discarded until the disk takes writes again and "
        "every session has been rewritten.",
    )
    max_pending_bytes: Size = Field(
        64 << 20,
        ge=1 << 18,
        le=1 << 36,
        description="Journal bytes of one worker that may wait in memory while the disk takes no writes or is too slow; above it "
        "publishers to sessions that stay, and clients that have one, are not read (hold), or the journal is discarded (continue).",
    )

    @field_validator("on_disk_error")
    @classmethod
    def _promise(cls, value: str, info: ValidationInfo) -> str:
        if value == "continue" and info.data.get("level") == "machine":
            raise ValueError("allowed is 'hold' with durability.level = machine, whose acknowledgements say that the disk has it")
        return value


class Retention(Section):
    """How long journals are kept beyond the part that a recovery needs."""

    age: Duration = Field(inf, ge=1, description="Age above which segments are removed.")
    bytes: Size = Field(
        1 << 30,
        ge=1 << 20,
        description="Size of the journals of a worker and of earlier workers of its number, above which the oldest segments are "
        "removed.",
    )


class Journal(Section):
    """Journals: one per worker, below `data_dir`/journal."""

    capture: Annotated[Filters, Live(WORKER, SUPERVISOR)] = Field(
        [], description="Topic filters of messages that are kept for analytics and replays."
    )
    # The writer remembers its place in segment and cycle.
    segment_bytes: Annotated[Size, RESTART] = Field(
        64 << 20, ge=1 << 16, le=1 << 40, description="Size of a file at which the next one is started."
    )
    cycle_bytes: Annotated[Size, RESTART] = Field(
        64 << 20,
        ge=1 << 16,
        le=1 << 40,
        description="Growth of one worker's journal after which every session is rewritten (later if the last cycle took more than "
        "half of it); older segments are not needed for a recovery, and retention may remove them.",
    )
    retention: Retention = Retention()

    @field_validator("capture")
    @classmethod
    def _filters(cls, value: list[str]) -> list[str]:
        check_filters(value)
        return value


class Snapshot(Section):
    """Snapshots of sessions, subscriptions, retained messages and routes, below `data_dir`/snapshots."""

    interval: Duration = Field(inf, ge=1, description="Time between two snapshots; infinity: only those of `ctl snapshot`.")
    keep: Whole = Field(3, ge=1, le=10_000, description="Complete snapshots that are kept; older ones are removed.")


class Retainer(Section):
    """Retained messages."""

    max_messages: Limit = Field(0, ge=0, le=LIMIT_MAX, description="Most retained messages; 0: no limit.")
    max_total_bytes: Size = Field(
        0,
        ge=0,
        le=1 << 35,
        description="Size of their file, in pages of 4 KB; further retained messages are delivered, but not retained; "
        "0: only the limit of the file, 64 GB.",
    )
    max_payload_size: Size = Field(
        1 << 20, ge=0, le=MAX_PACKET_SIZE, description="Larger payloads are delivered, but not retained; 0: no limit."
    )


class SysEvents(Section):
    """Messages about single clients, below $SYS/brokers/<node>/clients/<client id>/."""

    client_connected: bool = Field(True, description="Whether `connected` is published for each client that connects.")
    client_disconnected: bool = Field(True, description="Whether `disconnected` is published for each client that disconnects.")
    client_subscribed: bool = Field(False, description="Whether `subscribed` is published for each new subscription.")
    client_unsubscribed: bool = Field(
        False, description="Whether `unsubscribed` is published for each subscription that a client ends."
    )


class Sys(Section):
    """$SYS topics."""

    msg_interval: Duration = Field(60.0, ge=0.1, le=LONGEST_WAIT_S, description="Time between two rounds of statistics.")
    heartbeat_interval: Duration = Field(30.0, ge=0.1, le=LONGEST_WAIT_S, description="Time between two uptime messages.")
    event_messages: Annotated[SysEvents, Live(WORKER, MANAGER)] = SysEvents()


class Overload(Section):
    """Overload protection when memory is short."""

    memory_high_water: MemoryMark = Field(
        "70%",
        description="Memory limit of all processes together. From 80 % of it on, publishers that fill queues fastest are not read; "
        "from 90 % on, new sessions and subscriptions are rejected (0x97), and QoS 0 for absent clients is dropped.",
    )


class Alarm(Section):
    """Limits at which alarms are raised."""

    lost_messages: Number = Field(
        10.0,
        ge=0,
        le=LIMIT_MAX,
        description="Lost messages per second, averaged over 10 s, at which the alarm `messages_lost` is raised; it ends after a "
        "minute below half of it. 0: no alarm.",
    )


class Log(Section):
    """The log, written to standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Live(MANAGER, INTEGRATIONS, API)] = Field(
        "info", description="Lowest level that is written."
    )
    client_connected: Literal["debug", "info"] = Field("debug", description="Level of the line for each client that connects.")


class Prometheus(Section):
    """Metrics for Prometheus, at /metrics of an address of its own, in plain HTTP without a password."""

    bind: Annotated[str, Allowed("HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:18084, or disabled")] = Field(
        "disabled", description="HOST:PORT to listen on, such as 127.0.0.1:18084."
    )

    @field_validator("bind")
    @classmethod
    def _address(cls, value: str) -> str:
        if value != "disabled":
            parse_address(value)
        return value


NODE_ID_TEXT = "Part of message ids; 1 to 250 and different on each node of a cluster. 0 in a cluster with a core: allotted there."


class Node(Section):
    """This broker's place in a cluster."""

    name: Annotated[str, Allowed("text without /, +, # and blanks")] = Field(
        "shardbroker@127.0.0.1", min_length=1, pattern=r"^[^+#/\s\x00-\x1f\x7f]+$", description="Name in $SYS topics."
    )
    id: Whole = Field(0, ge=0, le=65535, description=NODE_ID_TEXT)


class Process(Section):
    """The process tree."""

    workers: Count = Field("auto", description="Workers; auto: one per usable core.")
    acceptors: Count = Field("auto", description="Acceptors; auto: 2, or 1 on a single core.")
    worker_cores: Cores = Field("auto", description="Cores to which workers are pinned in turn; auto: all usable ones.")
    worker_weights: Weights = Field("auto", description="Relative share of the sessions of each worker; auto: equal shares.")
    acceptor_cores: Cores = Field("auto", description="Cores on which acceptors run; auto: all usable ones, without pinning.")
    data_dir: Path = Field(Path("data"), description="Directory of all data that outlives the broker.")
    drain_time: Duration = Field(
        0.0, ge=0, le=LONGEST_WAIT_S, description="Time over which clients are disconnected when the broker stops; 0s: all at once."
    )
    drain_server_reference: str = Field(
        "",
        max_length=REFERENCE_MAX,
        description="HOST:PORT to which 5.0 clients are then redirected (0x9C, Server Reference); empty: no redirect (0x8B).",
    )
    drain_timeout: Duration = Field(
        10.0, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Longest time for a process to stop, beyond `process.drain_time`."
    )
    ring_size: Literal["auto"] | RingSize = Field("auto", description="Size of one ring; auto: 4MB, less with many workers.")

    @field_validator("worker_weights")
    @classmethod
    def _one_each(cls, value: str, info: ValidationInfo) -> str:
        workers, count = info.data.get("workers"), len(weight_numbers(value))
        if value != "auto" and isinstance(workers, int) and count != workers:
            raise ValueError(f"allowed is one for each of process.workers = {workers}, or auto")
        return value


class Settings(Section):
    """The whole configuration. The mark of a section holds for keys in it without a mark of their own."""

    process: Annotated[Process, RESTART] = Process()
    node: Annotated[Node, RESTART] = Node()
    listeners: Annotated[dict[str, Listener], RESTART] = Field({"default": Listener()})
    mqtt: Annotated[Mqtt, Live(WORKER)] = Mqtt()
    rewrite: Annotated[Rewrite, Live(WORKER)] = Rewrite()
    auto_subscribe: Annotated[AutoSubscribe, Live(WORKER, MANAGER, INTEGRATIONS, SUPERVISOR)] = AutoSubscribe()
    delayed: Annotated[Delayed, Live(WORKER)] = Delayed()
    event_message: Annotated[EventMessage, Live(WORKER)] = EventMessage()
    durability: Annotated[Durability, RESTART] = Durability()
    journal: Annotated[Journal, Live(WORKER)] = Journal()
    snapshot: Annotated[Snapshot, Live(MANAGER)] = Snapshot()
    retainer: Annotated[Retainer, Live(WORKER)] = Retainer()
    sys: Annotated[Sys, Live(MANAGER)] = Sys()
    overload: Annotated[Overload, RESTART] = Overload()
    alarm: Annotated[Alarm, Live(MANAGER)] = Alarm()
    log: Annotated[Log, Live(MANAGER)] = Log()
    trace: Annotated[Trace, Live(MANAGER)] = Trace()
    slow_subs: Annotated[SlowSubs, Live(WORKER, MANAGER)] = SlowSubs()
    topic_metrics: Annotated[TopicMetrics, Live(WORKER, MANAGER)] = TopicMetrics()
    prometheus: Annotated[Prometheus, RESTART] = Prometheus()
    opentelemetry: Annotated[OpenTelemetry, Live(MANAGER)] = OpenTelemetry()
    api: Annotated[Api, RESTART] = Api()
    auth: Annotated[Auth, Live(WORKER, MANAGER, INTEGRATIONS)] = Auth()
    acl: Annotated[Acl, Live(WORKER, MANAGER, INTEGRATIONS)] = Acl()
    flapping_detect: Annotated[FlappingDetect, Live(WORKER, MANAGER)] = FlappingDetect()
    plugins: Annotated[PluginSettings, Live(MANAGER)] = PluginSettings()
    exhook: Annotated[ExHook, Live(WORKER, MANAGER, INTEGRATIONS, SUPERVISOR)] = ExHook()
    cluster: Annotated[Cluster, RESTART] = Cluster()
    gateways: Annotated[Gateways, Live(MANAGER, SUPERVISOR, COAP, EXPROTO, MQTTSN, STOMP)] = Gateways()
    flows: Annotated[Flows, RESTART] = Flows()
    replay: Annotated[Replay, Live(WORKER, SUPERVISOR)] = Replay()
    rule_engine: Annotated[RuleEngine, Live(MANAGER)] = RuleEngine()
    connectors: Annotated[Connectors, Live(MANAGER, SUPERVISOR)] = Connectors()
    actions: Annotated[Actions, Live(MANAGER, SUPERVISOR)] = Actions()
    sources: Annotated[Sources, Live(MANAGER, SUPERVISOR)] = Sources()
    rules: Annotated[dict[str, Rule], Live(MANAGER, SUPERVISOR)] = Field({})
    streams: Annotated[dict[str, Stream], Live(MANAGER, SUPERVISOR)] = Field({})
    persistence: Annotated[Persistence, Live(WORKER, MANAGER, SUPERVISOR)] = Persistence()

    @field_validator("cluster")
    @classmethod
    def _numbered(cls, value: Cluster, info: ValidationInfo) -> Cluster:
        node = info.data.get("node")
        least = 0 if value.has_core else 1
        if value.enable and isinstance(node, Node) and not least <= node.id <= NODE_ID_MAX:
            raise ValueError(f"allowed is cluster.enable = true only with node.id from {least} to {NODE_ID_MAX}, got {node.id}")
        return value

    @field_validator("connectors")
    @classmethod
    def _journal(cls, value: Connectors, info: ValidationInfo) -> Connectors:
        durability = info.data.get("durability")
        if value.by_id() and isinstance(durability, Durability) and durability.level == "none":
            raise ValueError("allowed is no connector with durability.level = none: actions and sources need a journal")
        return value

    @field_validator("actions")
    @classmethod
    def _connected(cls, value: Actions, info: ValidationInfo) -> Actions:
        connectors = info.data.get("connectors")
        if isinstance(connectors, Connectors):
            check_actions(value, connectors)
        return value

    @field_validator("sources")
    @classmethod
    def _sources_connected(cls, value: Sources, info: ValidationInfo) -> Sources:
        connectors = info.data.get("connectors")
        if isinstance(connectors, Connectors):
            check_sources(value, connectors)
        return value

    @field_validator("rules")
    @classmethod
    def _ids(cls, value: dict[str, Rule], info: ValidationInfo) -> dict[str, Rule]:
        for id in value:
            if not re.fullmatch(RULE_ID, id):
                raise ValueError(f"allowed is an id of up to 64 letters, digits, - and _, a letter or digit first, not {id!r}")
            check_own_name(id)
        if len(value) > RULES_MAX:
            raise ValueError(f"allowed is up to {RULES_MAX} of them, not {len(value)}")
        durability = info.data.get("durability")
        if value and isinstance(durability, Durability) and durability.level == "none":
            raise ValueError("allowed is no rule with durability.level = none: rules need a journal")
        return value

    @field_validator("persistence")
    @classmethod
    def _presets(cls, value: Persistence, info: ValidationInfo) -> Persistence:
        connectors, durability = info.data.get("connectors"), info.data.get("durability")
        if isinstance(connectors, Connectors):
            check_connectors(value, connectors)
        if value.used() and isinstance(durability, Durability) and durability.level == "none":
            raise ValueError("allowed is no preset with durability.level = none: rules need a journal")
        return value

    @field_validator("streams")
    @classmethod
    def _names(cls, value: dict[str, Stream], info: ValidationInfo) -> dict[str, Stream]:
        check_names(value)
        for name, stream in value.items():
            if not stream.topic_filter:
                raise ValueError(f"allowed are streams with a topic_filter, which {name} lacks")
        durability = info.data.get("durability")
        if value and isinstance(durability, Durability) and durability.level == "none":
            raise ValueError("allowed is no stream with durability.level = none: streams need a journal")
        return value

    @field_validator("listeners")
    @classmethod
    def _some(cls, value: dict[str, Listener]) -> dict[str, Listener]:
        check_listener_names(value)
        if not value:
            raise ValueError("allowed is one listener or more")
        if len(value) > LISTENERS_MAX:
            raise ValueError(f"allowed is up to {LISTENERS_MAX} of them, not {len(value)}")
        return value
