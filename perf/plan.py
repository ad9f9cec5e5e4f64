"""What a run does: scenario, numbers, topics."""

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["PAYLOAD_MIN", "SCENARIOS", "Plan", "PlanError"]

PAYLOAD_MIN = 16
"""Bytes: due time (8), publisher (4), sequence number (4)."""
PAYLOAD_MAX = 1 << 20
"""Bytes; the engine's receive buffer has room for one such packet."""
SCENARIOS = ("p2p", "fanout", "wildcard", "conn")
WINDOW_MAX = 1 << 14
"""Messages under way per publisher: as far back as the engine can tell a late message from a second copy."""


class PlanError(ValueError):
    """The numbers do not go together; the text says which and why."""


@dataclass(frozen=True)
class Plan:
    """One run. Client ids and topics hold `run`, so that runs do not meet each other's sessions or messages."""

    scenario: str = "p2p"
    publishers: int = 5
    subscribers: int = 5
    messages: int = 100_000
    """Published in all; spread evenly, rounded up to a multiple of the publishers. conn: connections in all."""
    seconds: float = 30.0
    """After this long nothing more is published."""
    qos: int = 0
    payload: int = 64
    """Bytes."""
    window: int = 500
    """Messages of one publisher that are not delivered to all its subscribers yet, at most."""
    inflight: int = 64
    """Unacknowledged messages of one publisher at QoS 1 and 2, at most; a 5.0 broker's Receive Maximum lowers it."""
    rate: float = 0.0
    """Messages a second of all publishers together; 0: as fast as the window allows."""
    topics: int = 100
    """wildcard: topics that each publisher goes through."""
    version: int = 4
    """Protocol level: 4 or 5."""
    run: str = field(default_factory=lambda: f"{os.getpid() & 0xFFFF:x}{secrets.token_hex(3)}")

    def __post_init__(self) -> None:
        limits = (
            ("scenario", self.scenario in SCENARIOS, ", ".join(SCENARIOS)),
            ("publishers", 1 <= self.publishers <= 100_000, "1 to 100000"),
            ("subscribers", 1 <= self.subscribers <= 100_000, "1 to 100000"),
            ("messages", 1 <= self.messages <= 1 << 31, "1 to 2^31"),
            ("seconds", 0 < self.seconds <= 86_400, "more than 0, at most 86400"),
            ("qos", self.qos in (0, 1, 2), "0, 1, 2"),
            ("payload", PAYLOAD_MIN <= self.payload <= PAYLOAD_MAX, f"{PAYLOAD_MIN} to {PAYLOAD_MAX} bytes"),
            ("window", 1 <= self.window <= WINDOW_MAX, f"1 to {WINDOW_MAX}"),
            ("inflight", 1 <= self.inflight <= 65_535, "1 to 65535"),
            ("rate", self.rate >= 0, "0 or more"),
            ("topics", 1 <= self.topics <= 10_000, "1 to 10000"),
            ("version", self.version in (4, 5), "4, 5"),
        )
        for name, good, allowed in limits:
            if not good:
                raise PlanError(f"{name} = {getattr(self, name)}: allowed is {allowed}")
        if self.scenario == "fanout" and self.publishers != 1:
            raise PlanError(f"publishers = {self.publishers}: fanout has 1")
        if self.scenario == "p2p" and self.publishers != self.subscribers:
            raise PlanError(f"publishers = {self.publishers}, subscribers = {self.subscribers}: p2p has pairs")
        if self.scenario == "wildcard" and self.subscribers % self.publishers:
            raise PlanError(f"subscribers = {self.subscribers}: wildcard takes a multiple of {self.publishers} publishers")

    @property
    def receivers(self) -> int:
        """Subscribers that each message reaches."""
        return self.subscribers // self.publishers

    @property
    def quota(self) -> int:
        """Messages of each publisher."""
        return -(-self.messages // self.publishers)

    def source_of(self, subscriber: int) -> int:
        """The publisher whose messages this subscriber gets; no other's are for it."""
        return subscriber % self.publishers

    def filter_of(self, subscriber: int) -> str:
        source = self.source_of(subscriber)
        if self.scenario == "wildcard":
            return f"perf/{self.run}/+/{source}/#"
        return f"perf/{self.run}/{source}"

    def topics_of(self, publisher: int) -> Iterator[str]:
        if self.scenario == "wildcard":
            return (f"perf/{self.run}/group{n}/{publisher}/value" for n in range(self.topics))
        return iter((f"perf/{self.run}/{publisher}",))
