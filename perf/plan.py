"""The plan of a run: scenario, numbers, topics."""

import itertools
import os
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["LIMITS", "PAYLOAD_MIN", "SCENARIOS", "Plan", "PlanError"]

PAYLOAD_MIN = 24
"""Bytes of the stamp: due time (8), mark (4), run (4), publisher (4), sequence number (4)."""
PAYLOAD_MAX = 1 << 20
"""Bytes; the engine's receive buffer has room for one such packet."""
SCENARIOS = ("p2p", "fanout", "fanin", "wildcard", "churn", "retained", "conn", "reconnect", "takeover", "sub", "pub")
HELD = ("conn", "sub")
"""Scenarios without publishers, which last until their time is over."""
ENDLESS = ("conn", "sub", "pub")
"""Scenarios that may run without a limit, and that continue if single clients are refused."""
ARRIVALS = ("reconnect", "takeover")
"""Scenarios of clients that connect and disconnect repeatedly."""
PLACED = ("p2p", "fanout", "fanin", "wildcard", "churn")
"""Scenarios that accept a placement."""
WINDOW_MAX = 1 << 14
"""Messages under way per publisher, and topics that one subscriber of `retained` gets."""
ORDERS_MAX = 1 << 26
"""fanin: pairs of publisher and subscriber, 4 bytes each."""
TRANSPORTS = ("tcp", "ssl", "ws", "wss")
PLACEMENTS = ("any", "same", "different")
"""Workers of shardbroker for the clients: chosen by their ids, all on its first worker, or publishers on the first and subscribers
on the others."""
PARTITIONS = 1024
"""Of shardbroker: worker = crc32(client id) % PARTITIONS % workers (shm/partitions.py), without weights."""
TEMPLATE_NAMES = "%i number of the client, %c client id, %u user name, %h host name"

LIMITS: dict[str, tuple[float, float]] = {
    "publishers": (0, 1_000_000),
    "subscribers": (0, 1_000_000),
    "others": (0, 1_000_000),
    "messages": (0, 1 << 31),
    "seconds": (0, 86_400),
    "payload": (0, PAYLOAD_MAX),
    "window": (1, WINDOW_MAX),
    "inflight": (1, 65_535),
    "rate": (0, 10_000_000),
    "change_rate": (0, 1_000_000),
    "change_slice": (0, 60_000),
    "connect_rate": (0, 1_000_000),
    "topics": (1, 100_000),
    "keepalive": (0, 65_535),
    "session_expiry": (0, 0xFFFFFFFF),
    "start_number": (0, 1_000_000_000),
    "processes": (1, 64),
    "workers": (1, PARTITIONS),
}
"""Least and largest value of each number."""
CHOICES = {"scenario": SCENARIOS, "qos": (0, 1, 2), "version": (3, 4, 5), "placement": PLACEMENTS, "transport": TRANSPORTS}


class PlanError(ValueError):
    """The numbers contradict each other; the text has the numbers and the reason."""


@dataclass(frozen=True)
class Plan:
    """One run. Topics and client ids contain `run` unless they are given, so that runs do not share sessions or messages.

    Clients are numbered within their kind: publishers, subscribers, others. Where load processes share the work, publisher n
    belongs to process n % processes, and so do the subscribers that only it serves.
    """

    scenario: str = "p2p"
    publishers: int = 5
    subscribers: int = 5
    others: int = 0
    """conn, reconnect, takeover: all clients. churn: clients that subscribe and unsubscribe. Else: idle clients, subscribed to
    topics without messages."""
    messages: int = 100_000
    """Messages published in all, spread evenly, rounded up to a multiple of the publishers. reconnect, takeover: connections in
    all. 0: no limit, for pub."""
    seconds: float = 30.0
    """Time after which publishing ends. 0: no limit, for conn, sub, pub."""
    qos: int = 0
    payload: int = 64
    """Bytes."""
    window: int = 500
    """Most messages of one publisher not yet delivered to all its subscribers. retained: subscribers served at a time."""
    inflight: int = 64
    """Most unacknowledged messages of one publisher at QoS 1 and 2; the Receive Maximum of a 5.0 broker lowers it."""
    rate: float = 0.0
    """Messages a second of all publishers together; 0: as fast as the window allows."""
    change_rate: float = 0.0
    """churn: subscribes and unsubscribes a second in all; 0: as fast as they are acknowledged."""
    change_slice: int = 0
    """churn: changes pause in every other slice of so many ms, and both kinds of slices are compared; 0: they never pause."""
    topics: int = 100
    """wildcard: topics that each publisher uses in turn; retained: retained messages."""
    version: int = 4
    """Protocol level: 3 (MQTT 3.1), 4 (3.1.1) or 5."""
    connect_rate: float = 0.0
    """Connections a second; 0: as fast as the broker accepts them."""
    keepalive: int = 0
    """Seconds; 0: none."""
    clean: bool = True
    session_expiry: int | None = None
    """Seconds, MQTT 5.0."""
    retain: bool = False
    username: str | None = None
    password: str | None = None
    topic: tuple[str, ...] = ()
    """conn, sub: filters of each client; pub: its one topic. With %i, %c, %u, %h."""
    client_id: str = ""
    """Template of the client ids; empty: derived from the run, so that no two are equal."""
    start_number: int = 0
    """%i of the first client."""
    message: bytes | None = None
    """pub: payload instead of a stamped one; %i, %c, %u, %h are filled in."""
    processes: int = 1
    ifaddr: tuple[str, ...] = ()
    """Local addresses to connect from, in turn."""
    placement: str = "any"
    """Placement of publishers and subscribers on the workers of shardbroker; see PLACEMENTS. Other brokers are not affected."""
    workers: int = 1
    """Workers of that shardbroker; only for a placement."""
    transport: str = "tcp"
    """Layers between MQTT and the socket; see TRANSPORTS."""
    cafile: str = ""
    """ssl, wss: PEM file of the authorities that verify the broker's certificate; empty: no verification."""
    run: str = field(default_factory=lambda: f"{os.getpid() & 0xFFFF:x}{secrets.token_hex(3)}")

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise PlanError(f"{name} = {getattr(self, name)}: allowed is {', '.join(map(str, choices))}")
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise PlanError(f"{name} = {value}: allowed is {low:,} to {high:,}")
        self._check_clients()
        self._check_placement()
        self._check_transport()
        self._check_load()
        self._check_texts()

    def _check_clients(self) -> None:
        scenario, publishers, subscribers = self.scenario, self.publishers, self.subscribers
        needed = {"sub": ("subscribers",), "pub": ("publishers",)} | dict.fromkeys(("conn", *ARRIVALS), ("others",))
        for name in needed.get(scenario, ("publishers", "subscribers", "others")[: 3 if scenario == "churn" else 2]):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} = {getattr(self, name)}: {scenario} needs 1 or more")
        if scenario in needed:
            for name in {"publishers", "subscribers", "others"} - set(needed[scenario]):
                if getattr(self, name):
                    raise PlanError(f"{name} = {getattr(self, name)}: {scenario} has none")
        if scenario in ("fanout", "retained") and publishers != 1:
            raise PlanError(f"publishers = {publishers}: {scenario} has 1")
        if scenario in ("p2p", "churn") and publishers != subscribers:
            raise PlanError(f"publishers = {publishers}, subscribers = {subscribers}: {scenario} has pairs")
        if scenario == "wildcard" and subscribers % publishers:
            raise PlanError(f"subscribers = {subscribers}: wildcard takes a multiple of {publishers} publishers")
        if scenario == "fanin" and publishers * subscribers > ORDERS_MAX:
            raise PlanError(f"publishers = {publishers}, subscribers = {subscribers}: fanin takes at most {ORDERS_MAX:,} pairs")
        if self.change_slice and (scenario != "churn" or self.processes > 1):
            raise PlanError(f"change_slice = {self.change_slice}: only churn has slices, with 1 process")
        if self.processes > self.clients:
            raise PlanError(f"processes = {self.processes}: there are only {self.clients} clients")

    def _check_transport(self) -> None:
        if self.transport != "tcp" and self.scenario in ARRIVALS:
            raise PlanError(f"transport = {self.transport}: {self.scenario} takes tcp; conn measures handshakes")
        if self.cafile and self.transport not in ("ssl", "wss"):
            raise PlanError(f"cafile = {self.cafile}: only for the transports ssl and wss")

    def _check_placement(self) -> None:
        if self.placement == "any":
            return
        if self.scenario not in PLACED:
            raise PlanError(f"placement = {self.placement}: only for {', '.join(PLACED)}")
        if self.client_id:
            raise PlanError(f"placement = {self.placement}: it chooses the client ids, so none may be given")
        if self.workers < 2:
            raise PlanError(f"workers = {self.workers}: a placement needs the number of the broker's workers, 2 or more")

    def _check_load(self) -> None:
        if self.scenario not in ENDLESS:
            if not self.seconds:
                raise PlanError(f"seconds = 0: {self.scenario} needs a limit, more than 0")
            if not self.messages:
                raise PlanError(f"messages = 0: {self.scenario} needs 1 or more")
        if self.payload < PAYLOAD_MIN and self.scenario not in ENDLESS:
            allowed = f"allowed is {PAYLOAD_MIN} to {PAYLOAD_MAX} bytes"
            raise PlanError(f"payload = {self.payload}: {allowed}, {self.scenario} stamps each message")
        if self.session_expiry is not None and self.version != 5:
            raise PlanError(f"session_expiry = {self.session_expiry}: it needs version 5")
        if self.message is not None and len(self.message) > PAYLOAD_MAX:
            raise PlanError(f"message of {len(self.message):,} bytes: allowed are {PAYLOAD_MAX:,}")
        if self.scenario == "retained" and self.topics > WINDOW_MAX:
            raise PlanError(f"topics = {self.topics}: retained takes 1 to {WINDOW_MAX}")

    def _check_texts(self) -> None:
        if self.scenario in ("sub", "pub") and not self.topic:
            raise PlanError(f"topic: {self.scenario} needs one")
        if self.scenario == "pub" and (len(self.topic) != 1 or any(sign in self.topic[0] for sign in "+#")):
            raise PlanError(f"topic = {' '.join(self.topic)}: pub takes one, without + and #")
        for text in self.topic:
            if not 0 < len(text.encode()) < 60_000 or "\0" in text:
                raise PlanError(f"topic = {text[:60]!r}: allowed are 1 to 60,000 bytes without NUL")
        if self.client_id and "%i" not in self.client_id and self.clients > 1:
            raise PlanError(f"client_id = {self.client_id}: must contain %i, so that {self.clients} clients differ")
        if self.client_id and self.publishers and self.subscribers:
            raise PlanError("client_id: only for clients of one kind")
        if self.password is not None and self.username is None and self.version != 5:
            raise PlanError("password: without a user name it needs version 5")  # [MQTT-3.1.2-22] of 3.1.1

    @property
    def clients(self) -> int:
        return self.publishers + self.subscribers + self.others

    @property
    def receivers(self) -> int:
        """Returns the number of subscribers that each message reaches; 0: unknown, or none."""
        if self.scenario in ENDLESS or self.scenario == "retained":
            return 0
        return 1 if self.scenario == "fanin" else self.subscribers // max(1, self.publishers)

    @property
    def quota(self) -> int:
        """Returns the number of messages of each publisher."""
        if self.scenario == "retained":
            return self.topics
        return -(-self.messages // max(1, self.publishers)) if self.messages else 0xFFFFFFFF

    @property
    def stamped(self) -> bool:
        return self.message is None and self.payload >= PAYLOAD_MIN

    @property
    def keeps(self) -> bool:
        """Returns whether the broker is to retain the messages."""
        return self.retain or self.scenario == "retained"

    def source_of(self, subscriber: int) -> int:
        """Returns the one publisher whose messages this subscriber gets. Not for fanin and sub."""
        return subscriber % max(1, self.publishers)

    def owner_of(self, kind: str, number: int) -> int:
        """Returns the load process that has this client. `kind`: p, s or o."""
        if kind == "s" and self.crosses == 0 and self.publishers:
            return self.source_of(number) % self.processes
        return number % self.processes

    @property
    def crosses(self) -> bool:
        """Returns whether messages pass from one load process to others."""
        return self.processes > 1 and self.scenario in ("fanout", "fanin", "retained")

    def id_of(self, kind: str, number: int) -> str:
        if not self.client_id:
            name = f"{self.run}-{kind}{number}"
            return name if self.placement == "any" or kind == "o" else self._placed(name, kind, number)
        return self._fill(self.client_id, number, "")

    def _placed(self, name: str, kind: str, number: int) -> str:
        """Returns the name with a suffix that selects the worker of the client."""
        worker = 0 if kind == "p" or self.placement == "same" else 1 + number % (self.workers - 1)
        endings = itertools.count()
        while zlib.crc32(name.encode()) % PARTITIONS % self.workers != worker:
            name = f"{name.partition('~')[0]}~{next(endings)}"
        return name

    def user_of(self, kind: str, number: int) -> str | None:
        return None if self.username is None else self._fill(self.username, number, self.id_of(kind, number))

    def filters_of(self, subscriber: int) -> Sequence[str]:
        if self.topic:
            return [self.filled(text, "s", subscriber) for text in self.topic]
        if self.scenario == "wildcard":
            return (f"perf/{self.run}/{self.source_of(subscriber)}/+",)
        if self.scenario == "fanin":
            return (f"$share/perf-{self.run}/perf/{self.run}/+",)
        if self.scenario == "retained":
            return (f"perf/{self.run}/+",)
        return (f"perf/{self.run}/{self.source_of(subscriber)}",)

    def filters_of_other(self, number: int) -> Sequence[str]:
        """Returns the filters that a client subscribes to once, or repeatedly for churn."""
        if self.topic:
            return [self.filled(text, "o", number) for text in self.topic]
        if self.scenario == "conn":
            return ()
        wildcard = "/+" if number % 2 and self.scenario == "churn" else ""
        return (f"perf/{self.run}/other/{number}{wildcard}",)

    def topics_of(self, publisher: int) -> Sequence[str]:
        if self.topic:
            return [self.filled(text, "p", publisher) for text in self.topic]
        if self.scenario == "wildcard":
            return [f"perf/{self.run}/{publisher}/{n}" for n in range(self.topics)]
        if self.scenario == "retained":
            return [f"perf/{self.run}/{n}" for n in range(self.topics)]
        return (f"perf/{self.run}/{publisher}",)

    def message_of(self, publisher: int) -> bytes:
        """Returns the payload of a plan with `message`."""
        assert self.message is not None
        if b"%" not in self.message:
            return self.message
        return self.filled(self.message.decode("latin-1"), "p", publisher).encode("latin-1")

    def filled(self, template: str, kind: str, number: int) -> str:
        return self._fill(template, number, self.id_of(kind, number), self.user_of(kind, number) or "")

    def _fill(self, template: str, number: int, client_id: str, user: str = "") -> str:
        if "%" not in template:
            return template
        host = os.uname().nodename
        for name, value in (("%i", str(number + self.start_number)), ("%c", client_id), ("%u", user), ("%h", host)):
            template = template.replace(name, value)
        return template
