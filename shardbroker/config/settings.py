"""The configuration schema: one place for every key, its type, default and meaning. Defaults are EMQX's unless said otherwise."""

from math import inf
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from shardbroker.config.units import Duration, OptionalDuration, Size

__all__ = ["Listener", "Log", "Mqtt", "Node", "Process", "Retainer", "Settings", "Sys"]

MAX_PACKET_SIZE = 256 << 20
"""Largest packet that the protocol can express, and the largest allowed limit, bytes."""

Priority = Annotated[int, Field(ge=1, le=255)]
Strategy = Literal["random", "round_robin", "round_robin_per_group", "sticky", "local", "hash_topic", "hash_clientid"]


class Section(BaseModel):
    """Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Mqtt(Section):
    """The protocol."""

    idle_timeout: Duration = Field(15.0, gt=0, description="From accept to a complete CONNECT.")
    max_packet_size: Size = Field(1 << 20, ge=1024, le=MAX_PACKET_SIZE, description="Largest packet accepted.")
    max_clientid_len: int = Field(65535, ge=23, le=65535, description="Longest client id, bytes.")
    max_topic_levels: int = Field(128, ge=1, le=65535, description="Levels of a topic or filter.")
    max_topic_alias: int = Field(65535, ge=0, le=65535, description="Topic Alias Maximum told to 5.0 clients.")
    max_qos_allowed: Literal[0, 1, 2] = Field(2, description="Highest QoS that clients may publish with.")
    retain_available: bool = Field(True, description="Whether clients may retain messages.")
    wildcard_subscription: bool = Field(True, description="Whether filters may hold + and #.")
    shared_subscription: bool = Field(True, description="Whether $share/ and $queue/ work.")
    shared_subscription_strategy: Strategy = Field("round_robin", description="Who of a shared group gets a message.")
    ignore_loop_deliver: bool = Field(False, description="3.x clients do not get their own messages (as No Local).")
    session_expiry_interval: Duration = Field(7200.0, ge=1, description="Life of a 3.x session with clean session 0.")
    max_session_expiry_interval: Duration = Field(inf, ge=0, description="Longest Session Expiry Interval granted.")
    message_expiry_interval: Duration = Field(inf, gt=0, description="Longest Message Expiry Interval.")
    max_inflight: int = Field(32, ge=1, le=65535, description="Unacknowledged QoS 1 and 2 messages per client.")
    max_mqueue_len: int = Field(1000, ge=0, description="Messages waiting per session; 0: no limit.")
    mqueue_store_qos0: bool = Field(True, description="Whether QoS 0 messages wait too, or are dropped.")
    mqueue_priorities: dict[str, Priority] = Field({}, description="Topic -> 1..255, higher goes first.")
    mqueue_default_priority: Literal["lowest", "highest"] = Field("lowest", description="Of topics not in the map.")
    max_awaiting_rel: int = Field(100, ge=0, le=65535, description="QoS 2 messages awaiting PUBREL; 0: no limit.")
    await_rel_timeout: Duration = Field(300.0, gt=0, description="How long a PUBREL is waited for.")
    retry_interval: Duration = Field(inf, gt=0, description="3.x: unacknowledged packets are sent again after it.")
    keepalive_multiplier: float = Field(1.5, ge=1, le=100, description="Of the keepalive, until a silent client goes.")
    server_keepalive: OptionalDuration = Field(None, description="Takes the place of the client's keepalive.")
    max_subscriptions: int = Field(0, ge=0, description="Subscriptions per session; 0: no limit.")
    upgrade_qos: bool = Field(False, description="Deliver with the subscription's QoS even if published lower.")
    response_information: str = Field("", description="Given to 5.0 clients that ask for it.")


class Listener(Section):
    """One listening address."""

    bind: str = Field("127.0.0.1:1883", description="HOST:PORT; IPv6 as [::1]:1883.")
    type: Literal["tcp"] = Field("tcp", description="Transport.")

    @field_validator("bind", mode="before")
    @classmethod
    def _address(cls, value: object) -> str:
        parse_address(str(value))
        return str(value)


class Retainer(Section):
    """Retained messages."""

    max_messages: int = Field(0, ge=0, description="Retained messages kept; 0: no limit.")
    max_payload_size: Size = Field(1 << 20, ge=0, description="Larger payloads are delivered, but not retained; 0: no limit.")


class Sys(Section):
    """$SYS topics."""

    msg_interval: Duration = Field(60.0, ge=0.1, description="Between two rounds of statistics.")
    heartbeat_interval: Duration = Field(30.0, ge=0.1, description="Between two uptime messages.")


class Log(Section):
    """What goes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level written.")


class Node(Section):
    """This broker's place in a cluster."""

    name: str = Field("shardbroker@127.0.0.1", min_length=1, pattern=r"^[^+#/\s]+$", description="Name in $SYS topics.")
    id: int = Field(0, ge=0, le=65535, description="Part of message ids.")


class Process(Section):
    """The process tree."""

    workers: int | Literal["auto"] = Field("auto", description="Workers; auto: one per usable core.")
    acceptors: int | Literal["auto"] = Field("auto", description="Acceptors; auto: 2, or 1 on a single core.")
    data_dir: Path = Field(Path("data"), description="Directory of what outlives the broker.")
    drain_timeout: Duration = Field(10.0, gt=0, description="How long a process may take to stop.")
    ring_size: Size | Literal["auto"] = Field("auto", description="Bytes of one ring; auto: 4MB, less with many workers.")

    @field_validator("workers", "acceptors")
    @classmethod
    def _count(cls, value: int | str) -> int | str:
        if value != "auto" and not 1 <= int(value) <= 1024:
            raise ValueError("allowed is auto or a number from 1 to 1024")
        return value


class Settings(Section):
    """The whole configuration."""

    process: Process = Process()
    node: Node = Node()
    listeners: dict[str, Listener] = {"default": Listener()}
    mqtt: Mqtt = Mqtt()
    retainer: Retainer = Retainer()
    sys: Sys = Sys()
    log: Log = Log()

    @field_validator("listeners")
    @classmethod
    def _some(cls, value: dict[str, Listener]) -> dict[str, Listener]:
        if not value:
            raise ValueError("allowed is one listener or more")
        return value


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535 or not host:
        raise ValueError("allowed is HOST:PORT with a port from 0 to 65535, such as 0.0.0.0:1883 or [::1]:1883")
    return host, int(port)
