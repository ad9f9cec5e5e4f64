"""The table of verbs, from which the commands of `ctl`, the checks of the manager and docs/ctl.md are derived.

The parameters of a verb are a pydantic model: the manager checks types and bounds of each request. Fields made by `argument()` are
positional on the command line, in this order.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from shardbroker.control.rest import Rest

__all__ = [
    "MESSAGES_MAX", "MESSAGE_BYTES_MAX", "TIME_MAX", "VERBS", "WORKERS_MAX", "ClientFilter", "MessagesOf", "Page", "Params", "Verb",
    "argument", "table",
]  # fmt: skip

PAGE_MAX = 10_000
"""Most rows of a page."""
MESSAGES_MAX = 1000
"""Most messages of a session on a page."""
MESSAGE_BYTES_MAX = 16 << 20
"""Most bytes of topics and payloads on such a page, but for its first message."""
WORKERS_MAX = 1024
"""Most workers: as many as there are partitions of sessions."""
WEIGHTS_MAX = 4 * WORKERS_MAX
"""Characters of the weights of so many workers: up to 100 each, and a comma."""
TIME_MAX = 2**53
"""Unix ms; the largest integer that JSON numbers hold exactly."""
ClientId = Annotated[str, StringConstraints(min_length=1, max_length=65535)]
Topic = Annotated[str, StringConstraints(min_length=1, max_length=65535)]
Qos = Literal[0, 1, 2]


def argument(description: str, default: Any = ...) -> Any:
    """Returns a field that is a positional argument on the command line."""
    return Field(default, description=description, json_schema_extra={"argument": True})


class Params(BaseModel):
    """Parameters of a verb; unknown ones are rejected."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


@dataclass(frozen=True)
class Verb:
    """One operation of the control channel. `changes`: administrators only, and recorded in the audit log."""

    name: str
    summary: str
    params: type[Params] = Params
    changes: bool = False
    columns: tuple[str, ...] = ()
    """Fields of a row in the table that `ctl` prints; empty: the result is no list."""
    stream: bool = False
    """Whether the verb sends items before its result."""
    cluster_columns: tuple[str, ...] = ()
    """Likewise with the parameter `cluster`; empty: the result is no list of rows then."""
    is_shared: bool = False
    """Whether its rows are the same on all nodes of a cluster."""
    is_of_client: bool = False
    """Whether it is about one client, and is carried out by the node that has it."""
    rest: tuple[Rest, ...] = ()
    """Routes of the REST API that are derived from this row."""


class Page(Params):
    """One page of a list."""

    limit: int = Field(100, ge=1, le=PAGE_MAX, description="Rows of a page.")
    cursor: str | None = Field(None, description="Where the page starts: `cursor` of the previous page.")


class ClientFilter(Params):
    """Filter of clients; all conditions must hold."""

    clientid: str | None = Field(None, description="Exactly this client id.")
    username: str | None = Field(None, description="Exactly this user name.")
    like_clientid: str | None = Field(None, description="Client ids that contain this text.")
    like_username: str | None = Field(None, description="User names that contain this text.")
    ip_address: str | None = Field(None, description="Peers with this address.")
    conn_state: Literal["connected", "disconnected"] | None = Field(None, description="Connected, or a session without connection.")
    proto_ver: Literal[3, 4, 5] | None = Field(None, description="MQTT 3.1, 3.1.1 or 5.0.")
    clean_start: bool | None = Field(None, description="Clean Start of the CONNECT.")
    listener: str | None = Field(None, description="Name of the listener.")
    worker: int | None = Field(None, ge=0, description="Number of the worker.")
    gte_connected_at: int | None = Field(None, ge=0, description="Connected at this time or later, Unix ms.")
    lte_connected_at: int | None = Field(None, ge=0, description="Connected at this time or earlier, Unix ms.")


class ClientList(ClientFilter, Page):
    """Clients, filtered and paged."""


class OneClient(Params):
    clientid: ClientId = argument("Client id.")


class MessagesOf(OneClient):
    """A page of the messages of one session."""

    limit: int = Field(100, ge=1, le=MESSAGES_MAX, description="Messages of a page.")
    cursor: str | None = Field(None, description="Where the page starts: `cursor` of the previous page.")
    payload: Literal["none", "base64", "plain"] = Field("base64", description="How payloads are shown.")
    max_payload_bytes: int = Field(
        1 << 20, ge=128, le=MESSAGE_BYTES_MAX, description="Topics and payloads of a page, bytes; one message is returned anyway."
    )


class ManyClients(Params):
    clientids: list[ClientId] = argument("Client ids.")


class BulkKick(ClientFilter):
    everybody: bool = Field(False, description="Kick all clients if no filter is given.")
    rate: int = Field(1000, ge=1, le=100_000, description="Most clients per second.")


class SubscriptionList(Page):
    clientid: str | None = Field(None, description="Of this client.")
    topic: str | None = Field(None, description="With exactly this filter.")
    match_topic: str | None = Field(None, description="With a filter that matches this topic.")
    qos: Qos | None = Field(None, description="With this QoS.")
    share_group: str | None = Field(None, description="Of this shared group.")


class AddSubscription(Params):
    clientid: ClientId = argument("A connected client.")
    topic: Topic = argument("Topic filter.")
    qos: Qos = Field(0, description="Highest QoS.")
    nl: bool = Field(False, description="No Local.")
    rap: bool = Field(False, description="Retain As Published.")
    rh: Literal[0, 1, 2] = Field(0, description="Retain Handling.")


class DeleteSubscription(Params):
    clientid: ClientId = argument("Client id.")
    topic: Topic = argument("Topic filter as subscribed.")


class TopicList(Page):
    topic: str | None = Field(None, description="Exactly this filter.")


class RetainedList(Page):
    topic: str = Field("#", description="Topics that this filter matches.")
    payload: bool = Field(False, description="Include payloads.")


class OneTopic(Params):
    topic: Topic = argument("Topic.")


class Publish(Params):
    topic: Topic = argument("Topic.")
    payload: bytes = argument("Payload.", b"")
    qos: Qos = Field(0, description="QoS.")
    retain: bool = Field(False, description="Retain it.")
    clientid: str = Field("", max_length=65535, description="Client id of the publisher, for subscribers and journals.")
    message_expiry_interval: int | None = Field(None, ge=0, le=2**32 - 1, description="Seconds.")
    payload_format_indicator: Literal[0, 1] | None = Field(None, description="1: the payload is UTF-8.")
    content_type: str | None = Field(None, max_length=65535, description="Content Type.")
    response_topic: str | None = Field(None, max_length=65535, description="Response Topic.")
    correlation_data: bytes | None = Field(None, description="Correlation Data.")
    user_properties: dict[str, str] = Field({}, description="User Properties.")


class Metrics(Params):
    worker: int | None = Field(None, ge=0, description="Of this worker; by default of all processes together.")


class OneWorker(Params):
    worker: int = Field(ge=0, description="Number of the worker.", json_schema_extra={"argument": True})


class SetWorkers(Params):
    workers: int = Field(ge=1, le=WORKERS_MAX, description="Number of workers.", json_schema_extra={"argument": True})
    weights: str = Field(
        "auto",
        max_length=WEIGHTS_MAX,
        description="Relative share of the sessions of each worker, such as 3,1,1; auto: equal shares.",
    )


OF_ALL_NODES = "Settings of all nodes of the cluster, instead of those of one node."


class ConfigGet(Params):
    key: str = argument("Key or section; by default all values that differ from their defaults.", "")
    cluster: bool = Field(False, description=f"{OF_ALL_NODES} With the nodes that have applied each.")


class ConfigSet(Params):
    key: str = argument("Key, such as mqtt.max_inflight.")
    value: str = argument("Value as in TOML; text needs no quotes.")
    cluster: bool = Field(False, description=OF_ALL_NODES)


class ConfigUpdate(Params):
    values: dict[str, str] = Field(description="Key and value, such as mqtt.max_inflight=64; values as in TOML.")
    cluster: bool = Field(False, description=OF_ALL_NODES)


class ConfigReset(Params):
    key: str = argument("Key that was set at run time.")
    cluster: bool = Field(False, description=OF_ALL_NODES)


class LogLevel(Params):
    level: Literal["debug", "info", "warning", "error"] | None = argument(
        "Lowest level that is logged; by default the current one is shown.", None
    )


class OneListener(Params):
    name: str = argument("Name of the listener.")


class ListenerSettings(OneListener):
    settings: list[str] = argument("KEY=VALUE below listeners.<name>, such as bind=0.0.0.0:8083 type=ws; values as in TOML.")


CLIENT_COLUMNS = ("clientid", "username", "conn_state", "ip_address", "proto_ver", "keepalive", "worker", "connected_at")

CLIENT_TIMES = ("created_at", "connected_at", "disconnected_at", "expires_at")

VERBS: dict[str, Verb] = {}


def table(*verbs: Verb) -> None:
    """Adds verbs to the table; each name once."""
    for verb in verbs:
        assert verb.name not in VERBS, verb.name
        VERBS[verb.name] = verb


table(
    Verb("status", "State of the broker: version, uptime, processes and totals."),
    Verb("metrics", "All counters and gauges.", Metrics),
    Verb("prometheus", "Metrics in the text format of Prometheus, with histograms, rings and journals."),
    Verb(
        "workers list",
        "Processes of the broker.",
        columns=("name", "state", "pid", "cores", "weight", "started_at", "starts", "connections", "sessions"),
        rest=(Rest("GET /workers", "Node", "workers", "data", times=("started_at",)),),
    ),
    Verb("load", "Load of each worker: CPU time, counters, rings, latencies; made for frequent polling."),
    Verb(
        "workers restart",
        "Disconnects the clients of a worker and restarts it.",
        OneWorker,
        changes=True,
        rest=(Rest("POST /workers/{worker}/restart", "Node", "restart"),),
    ),
    Verb(
        "workers replace",
        "Replaces the process of a worker without disconnecting its clients.",
        OneWorker,
        changes=True,
    ),
    Verb(
        "workers set",
        "Changes the number of workers, or their weights, without disconnecting clients; until the broker ends.",
        SetWorkers,
        changes=True,
        rest=(
            Rest("PUT /workers/setting", "Node", "set_workers", summary="Begins to change the number of workers or their weights."),
        ),
    ),
    Verb(
        "workers setting",
        "Progress of the last `workers set`.",
        rest=(Rest("GET /workers/setting", "Node", "workers_setting"),),
    ),
    Verb("clients list", "Clients, and sessions without a connection.", ClientList, columns=CLIENT_COLUMNS),
    Verb(
        "clients show",
        "Details of one client.",
        OneClient,
        is_of_client=True,
        rest=(Rest("GET /clients/{clientid:name}", "Clients", "show_client", adds_node=True, times=CLIENT_TIMES),),
    ),
    Verb("clients kick", "Ends connections and sessions.", ManyClients, changes=True, is_of_client=True),
    Verb("clients kick-all", "Ends connections and sessions of all clients that match.", BulkKick, changes=True, stream=True),
    Verb(
        "sessions list",
        "Sessions.",
        ClientList,
        columns=("clientid", "conn_state", "worker", "expiry_interval", "created_at", "clean_start"),
    ),
    Verb(
        "sessions show",
        "State of one session, with or without a connection.",
        OneClient,
        is_of_client=True,
        rest=(Rest("GET /sessions/{clientid:name}", "Clients", "show_session", adds_node=True, times=CLIENT_TIMES),),
    ),
    Verb(
        "sessions queue",
        "Messages that wait for a client, the next one first.",
        MessagesOf,
        columns=("msgid", "topic", "qos", "payload_size", "from_clientid", "publish_at"),
        is_of_client=True,
    ),
    Verb(
        "sessions inflight",
        "Messages that are sent to a client and not acknowledged; one that waits for PUBCOMP is only a packet id.",
        MessagesOf,
        columns=("packet_id", "awaits", "msgid", "topic", "qos", "payload_size", "from_clientid", "publish_at"),
        is_of_client=True,
    ),
    Verb(
        "subscriptions list", "Subscriptions of clients.", SubscriptionList, columns=("clientid", "topic", "qos", "nl", "rap", "rh")
    ),
    Verb("subscriptions add", "Subscribes a connected client.", AddSubscription, changes=True, is_of_client=True),
    Verb(
        "subscriptions delete",
        "Removes a subscription of a client.",
        DeleteSubscription,
        changes=True,
        is_of_client=True,
        rest=(Rest("POST /clients/{clientid:name}/unsubscribe", "Clients", "unsubscribe", "nothing"),),
    ),
    Verb("topics list", "Topic filters with a subscription.", TopicList, columns=("topic", "destinations")),
    Verb(
        "routes list",
        "Routes of messages: a row for each destination of a filter.",
        TopicList,
        columns=("topic", "destination", "group"),
    ),
    Verb(
        "retained list",
        "Retained messages.",
        RetainedList,
        columns=("topic", "qos", "payload_size", "from_clientid", "publish_at"),
        is_shared=True,
    ),
    Verb(
        "retained show",
        "One retained message, its payload in base64.",
        OneTopic,
        rest=(Rest("GET /mqtt/retainer/message/{topic:topic}", "Messages", "show_retained", times=("publish_at", "expires_at")),),
    ),
    Verb(
        "retained delete",
        "Deletes one retained message.",
        OneTopic,
        changes=True,
        rest=(Rest("DELETE /mqtt/retainer/message/{topic:topic}", "Messages", "delete_retained", "nothing"),),
    ),
    Verb(
        "retained clear",
        "Deletes all retained messages but those whose topics begin with $.",
        changes=True,
        rest=(Rest("DELETE /mqtt/retainer/messages", "Messages", "clear_retained", "nothing"),),
    ),
    Verb("publish", "Publishes a message.", Publish, changes=True),
    Verb(
        "listeners list",
        "Listeners of the broker.",
        columns=("name", "type", "bind", "running", "current_connections", "max_connections", "max_conn_rate"),
    ),
    Verb("listeners add", "Opens a listener, until the broker stops.", ListenerSettings, changes=True),
    Verb("listeners update", "Changes a listener, for new connections.", ListenerSettings, changes=True),
    Verb("listeners stop", "Closes a listener until `listeners start`; its connections stay open.", OneListener, changes=True),
    Verb("listeners start", "Reopens a listener.", OneListener, changes=True),
    Verb("listeners restart", "Closes and reopens a listener.", OneListener, changes=True),
    Verb("listeners remove", "Closes and removes a listener; its connections stay open.", OneListener, changes=True),
    Verb(
        "journal status",
        "State of each worker's journal.",
        columns=("worker", "durable", "pending_bytes", "bytes_written", "problem"),
        rest=(Rest("GET /journal", "Node", "journal", "data"),),
    ),
    Verb(
        "journal segments",
        "Segment files of the journals; `last`: the newest of a journal.",
        Page,
        columns=("worker", "segment", "bytes", "begins_at", "ends_at", "last"),
        rest=(Rest("GET /journal/segments", "Node", "segments", "page", times=("begins_at", "ends_at")),),
    ),
    Verb(
        "journal exports",
        "Last run of each export on this machine.",
        columns=("to", "format", "ended_at", "result", "current"),
        rest=(Rest("GET /journal/exports", "Node", "exports", "data", times=("ended_at",)),),
    ),
    Verb(
        "journal seal",
        "Closes the current segment of each journal, so that its records can be exported.",
        changes=True,
        columns=("worker", "durable", "segments"),
        rest=(Rest("POST /journal/seal", "Node", "seal", "data"),),
    ),
    Verb(
        "snapshot",
        "Writes sessions, subscriptions, retained messages and routes to files for Spark; the newest `snapshot.keep` are kept.",
        changes=True,
        stream=True,
    ),
    Verb(
        "config get",
        "Effective values, with the source of each.",
        ConfigGet,
        columns=("key", "value", "source", "live"),
        cluster_columns=("key", "value", "by", "at", "applied", "not_applied", "remarks"),
        rest=(
            Rest(
                "GET /configs",
                "Configuration",
                "list_values",
                "data",
                summary="Effective values as TOML, with the source of each, and whether it can change at run time (`live`).",
            ),
        ),
    ),
    Verb("config set", "Changes a value at run time and keeps it over restarts.", ConfigSet, changes=True),
    Verb("config update", "Changes several values at once: all of them, or none if one is invalid.", ConfigUpdate, changes=True),
    Verb(
        "config reset",
        "Removes a value that was set at run time.",
        ConfigReset,
        changes=True,
        rest=(Rest("POST /configs_reset/{key}", "Configuration", "reset"),),
    ),
    Verb(
        "config reload",
        "Reads the configuration again, as SIGHUP does.",
        changes=True,
        rest=(Rest("POST /configs/reload", "Configuration", "reload"),),
    ),
    Verb(
        "log level",
        "Shows or changes the log level.",
        LogLevel,
        changes=True,
        rest=(
            Rest(
                "GET /log/level",
                "Configuration",
                "log_level",
                fields=(),
                summary="The log level. PUT /configs/log changes it permanently.",
            ),
            Rest(
                "PUT /log/level",
                "Configuration",
                "set_log_level",
                required=("level",),
                summary="Changes the log level until the next start.",
            ),
        ),
    ),
)
