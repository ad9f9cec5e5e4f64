"""Imports and cimports point downwards: between packages, between modules, and between the layers inside a large package.

.py files are read by `ast`, .pyx and .pxd by regular expressions; imports within functions count too. A .pxd and the .pyx of one
name are one module.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_USE = {
    "shardbroker.mqtt": (),
    # Written by every plane.
    "shardbroker.logs": ("shardbroker.mqtt", "shm"),
    # Tables keyed by topic: they match filters as the protocol does.
    "shm": ("shardbroker.mqtt",),
    "shardbroker.transport": ("shardbroker.mqtt", "shm"),
    # Files and LMDB tables of a broker.
    "shardbroker.stores": ("shardbroker.mqtt", "shm"),
    "shardbroker.pubsub": ("shardbroker.mqtt", "shm"),
    "shardbroker.hooks": ("shardbroker.logs", "shardbroker.mqtt", "shardbroker.stores", "shm"),
    "shardbroker.session": ("shardbroker.hooks", "shardbroker.logs", "shardbroker.pubsub", "shardbroker.mqtt", "shm"),
    # Its recorder implements the one that sessions declare: a session knows nothing of files.
    "shardbroker.journal": ("shardbroker.session", "shardbroker.pubsub", "shardbroker.mqtt", "shardbroker.stores", "shm"),
    "acceptor": ("shardbroker.logs", "shardbroker.mqtt", "shardbroker.transport", "shm"),
    "shardbroker.access": ("shardbroker.mqtt", "shardbroker.stores", "shm"),
    "shardbroker.worker": (
        "shardbroker.access",
        "shardbroker.cluster",
        "shardbroker.config",
        "shardbroker.hooks",
        "shardbroker.journal",
        "shardbroker.link",
        "shardbroker.logs",
        "shardbroker.mqtt",
        "shardbroker.pubsub",
        "shardbroker.session",
        "shardbroker.stores",
        "shardbroker.transport",
        "acceptor",
        "shm",
    ),
    "shardbroker.config": ("shardbroker.mqtt", "shardbroker.stores", "shm"),
    # Cores without sockets, files and clocks, which the simulation of a cluster drives as the link processes do.
    "shardbroker.cluster": (),
    # SQL of rules: texts and values, no process.
    "shardbroker.rules": ("shardbroker.mqtt",),
    # The cores with sockets, clocks, files and shared memory.
    "shardbroker.link": (
        # Users, rules and bans are on all nodes.
        "shardbroker.access",
        "shardbroker.cluster",
        "shardbroker.config",
        "shardbroker.journal",
        "shardbroker.logs",
        "shardbroker.mqtt",
        "shardbroker.stores",
        "shm",
    ),
    # The core of a cluster: etcd, and who is a member by it.
    "shardbroker.membership": (
        "shardbroker.cluster",
        "shardbroker.config",
        "shardbroker.logs",
        "shardbroker.mqtt",
        "shardbroker.stores",
        "shm",
    ),
    # Consumers of journals: rules, and what rules do.
    "shardbroker.flows": (
        "shardbroker.access",
        # Frames and faults of links, which bridges between brokers have too.
        "shardbroker.cluster",
        "shardbroker.config",
        "shardbroker.connectors",
        "shardbroker.journal",
        "shardbroker.link",
        "shardbroker.logs",
        "shardbroker.mqtt",
        "shardbroker.rules",
        "shardbroker.stores",
        "shm",
    ),
    # Clients of other protocols: to the broker they are MQTT clients.
    "shardbroker.gateways": (
        "shardbroker.config",
        "shardbroker.logs",
        "shardbroker.mqtt",
        "shardbroker.stores",
        "acceptor",
        "shm",
    ),
    # Libraries of OpenTelemetry, in a process that knows nothing of the broker but the figures it is sent.
    "shardbroker.telemetry": (),
    # Between those who ask a running broker and the manager that answers.
    "shardbroker.control": (),
    # Neither users nor rules: a sink stands on the same connections as an authenticator.
    "shardbroker.connectors": ("shardbroker.config", "shardbroker.logs", "shardbroker.mqtt"),
    "shardbroker.integrations": (
        "shardbroker.access",
        "shardbroker.config",
        "shardbroker.connectors",
        "shardbroker.hooks",
        "shardbroker.logs",
        "shardbroker.mqtt",
        "shardbroker.stores",
        "shm",
    ),
    "shardbroker.management": (
        "shardbroker.access",
        "shardbroker.cluster",
        "shardbroker.config",
        "shardbroker.control",
        "shardbroker.flows",
        "shardbroker.hooks",
        "shardbroker.journal",
        # Connections to the managers of other nodes.
        "shardbroker.link",
        "shardbroker.logs",
        "shardbroker.mqtt",
        "shardbroker.pubsub",
        "shardbroker.rules",
        "shardbroker.stores",
        # How the process that exports is written to.
        "shardbroker.telemetry",
        "acceptor",
        "shm",
    ),
    # It asks the manager through the control channel, like ctl: of what is shared it knows the slot of its state alone.
    "shardbroker.api": (
        "shardbroker.access",
        "shardbroker.config",
        "shardbroker.control",
        "shardbroker.logs",
        "shardbroker.rules",
        "shm",
    ),
    # It starts the processes, so it knows their entry points.
    "shardbroker.supervisor": (
        "shardbroker.access",
        "shardbroker.api",
        "shardbroker.cluster",
        "shardbroker.config",
        "shardbroker.integrations",
        "shardbroker.journal",
        "shardbroker.logs",
        "shardbroker.management",
        "shardbroker.membership",
        "shardbroker.stores",
        "shardbroker.worker",
        "acceptor",
        "shm",
    ),
    # It makes what settings name as the processes do that use it: before them, in a process of its own.
    "shardbroker.preflight": (
        "shardbroker.access",
        "shardbroker.config",
        "shardbroker.connectors",
        "shardbroker.flows",
        "shardbroker.hooks",
        "shardbroker.integrations",
        "shardbroker.link",
        "shardbroker.rules",
        "shardbroker.supervisor",
        "acceptor",
    ),
    # What lands on a machine, and who puts it there.
    "shardbroker.deploy": ("shardbroker.config", "shardbroker.journal", "shardbroker.stores", "shm"),
    "perf": (
        "shardbroker.config",
        "shardbroker.connectors",
        "shardbroker.control",
        "shardbroker.flows",
        "shardbroker.journal",
        "shardbroker.mqtt",
        "shardbroker.rules",
        "shardbroker.transport",
        "shm",
    ),
    "shardbroker.cli": (
        "shardbroker.config",
        "shardbroker.control",
        "shardbroker.deploy",
        "shardbroker.flows",
        "shardbroker.journal",
        "shardbroker.mqtt",
        "shardbroker.preflight",
        "shardbroker.rules",
        "shardbroker.stores",
        "shardbroker.supervisor",
        "perf",
        "shm",
    ),
}
"""Package to the packages below it that it may use. `shardbroker` itself, which holds the version, is open to all."""

LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "shardbroker.worker": (
        # Of one noun each: a timer, a queue, a limit.
        (
            "arrivals", "deferred", "disk", "exclusive", "features", "features.event_messages", "features.rewrite",
            "features.streams", "held_acks", "memory",
            "observers", "observers.client_rates", "observers.observer", "observers.slow_subscriptions", "observers.topic_metrics",
            "observers.trace_context",
            "outlet", "passed_ids", "rates", "retaining", "session_claims", "session_queues", "sync_gate",
        ),
        # What leaves a worker, and what waits before it leaves.
        (
            "admission", "features.delayed", "features.lookups", "features.replay", "outlets", "reporter", "retained_changes",
            "retained_replays", "retries",
        ),
        # Parts of the router, each with one kind of state.
        ("resolver", "route_changes", "subacks", "subscriptions"),
        ("router",),
        # State of a connection and journal: no socket yet.
        ("channel", "durability"),
        # What a client sends, and above it the dispatch by packet type.
        ("packets", "packets.acknowledge", "packets.connect", "packets.publish", "packets.subscribe"),
        ("protocol",),
        ("authorization", "login", "observers.spans", "observers.traces", "sansio", "turn"),
        ("cluster_exclusive", "cluster_sessions", "connection", "event_feed", "hook_dispatch", "observers.observers"),
        # Parts that act on connections, one step of a pass each.
        ("access_checks", "backpressure", "command_queue", "features.mountpoint", "inlets", "intake", "push_back"),
        ("one_pass",),
        # What works on a whole worker.
        (
            "assembly", "claim_commands", "commands", "drain", "evacuation", "observers.commands",
            "handoff", "handoff.arrival", "handoff.commands", "handoff.connections", "handoff.departure", "handoff.predecessor",
            "handoff.protocol", "handoff.state", "handoff.successor",
            "recovery", "recovery.repartition",
            "recovery.replay", "recovery.rings", "recovery.sessions", "recovery.start",
        ),
        ("main",),
    ),
    "shardbroker.management": (
        (
            "access", "action_alarms", "adopting", "adoption_source",
            "alarm_watch", "alarms", "audit", "balance", "client_events", "client_topics", "cluster_map", "cluster_settings",
            "cluster_view",
            "configuration", "core_calls",
            "definitions", "disk_alarms", "evacuation", "exports", "feed", "flows_calls", "gateway_state", "hold_alarms",
            "stream_holds",
            "flapping", "inbox", "nodes", "notices", "paging", "preflight", "rebalance", "reference", "rollout",
            "rules", "server", "sinks", "streams", "sys_publisher", "sys_topics",
            "telemetry", "topic_metrics", "trace_lines", "tracing", "workers",
        ),
        # What a verb can use.
        ("context",),
        ("exhook_state", "families", "prometheus", "scheduled_snapshots", "scrape", "snapshots"),
        (
            "handlers", "handlers.access", "handlers.accounts", "handlers.chains", "handlers.clients", "handlers.cluster",
            "handlers.configuration", "handlers.data", "handlers.data_parts", "handlers.delayed", "handlers.evacuation",
            "handlers.exhooks", "handlers.gateways", "handlers.journals", "handlers.listeners", "handlers.messages",
            "handlers.node", "handlers.persistence", "handlers.plugins", "handlers.rules", "handlers.session_messages",
            "handlers.sinks", "handlers.snapshots", "handlers.streams", "handlers.subscriptions", "handlers.upgrade",
            "handlers.watching",
            # It asks the supervisor, as the handlers do.
            "joining",
        ),
        ("main",),
    ),
}  # fmt: skip
"""Package to its modules, the lowest layer first. A module uses modules of lower layers and of its own."""

KNOWN_LEAKS: dict[tuple[str, str], str] = {}
"""Imports that point upwards within a package, with the reason. One that is gone has to leave this table."""

KNOWN_CIRCLES: dict[frozenset[str], str] = {}
"""Modules that use each other, with the reason. One that is gone has to leave this table."""

_PARTS = sorted([*MAY_USE, "shardbroker"], key=len, reverse=True)
_FROM = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+c?import\b[ \t]*(\([^)]*\)|.*)", re.MULTILINE)
_PLAIN = re.compile(r"^[ \t]*c?import[ \t]+([^#\n]+)", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*include[ \t]+[\"']", re.MULTILINE)


def imports_of_python(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative import"
            yield from (f"{node.module}.{one.name}" for one in node.names)


def imports_of_cython(source: str) -> Iterator[str]:
    assert not _INCLUDE.search(source), "textual include"
    for module, names in _FROM.findall(source):
        assert not module.startswith("."), "relative import"
        words = re.sub(r"#.*", "", names).strip("() \t").replace("\n", " ").split(",")
        yield from (f"{module}.{word.split()[0]}" for word in words if word.strip())
    for modules in _PLAIN.findall(source):
        yield from (one.split()[0] for one in modules.split(","))


def part_of(name: str) -> str | None:
    """The package of ours that a dotted name belongs to; None if it is somebody else's."""
    return next((part for part in _PARTS if name == part or name.startswith(part + ".")), None)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def used_modules() -> dict[str, set[str]]:
    """Each module of ours with those that it uses. `from a import b` uses `a.b` if that is a module, and else `a`."""
    files = [path for top in ("shardbroker", "shm", "acceptor", "perf") for path in sources(top)]
    used: dict[str, set[str]] = {module_of(path): set() for path in files}
    for path in files:
        module, read = module_of(path), imports_of_python if path.suffix == ".py" else imports_of_cython
        for name in read(path.read_text()):
            while name and name not in used:
                name = name.rpartition(".")[0]
            if name and name != module:
                used[module].add(name)
    return used


def circles(used: dict[str, set[str]]) -> set[frozenset[str]]:
    """The groups of modules in which each one leads to every other."""
    reach: dict[str, set[str]] = {}
    for module in used:
        left = [*used[module]]
        reach[module] = set(left)
        while left:
            further = used[left.pop()] - reach[module]
            reach[module] |= further
            left += further
    return {frozenset(other for other in reach[module] if module in reach[other]) for module in used if module in reach[module]}


def sources(package: str) -> list[Path]:
    folder = ROOT / package.replace(".", "/")
    return [path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".pyx", ".pxd")]


@pytest.mark.parametrize("package", MAY_USE)
def test_imports_point_downwards(package: str) -> None:
    allowed = {package, "shardbroker", None, *MAY_USE[package]}
    wrong = []
    for path in sources(package):
        read = imports_of_python if path.suffix == ".py" else imports_of_cython
        wrong += [f"{path.relative_to(ROOT)}: {name}" for name in read(path.read_text()) if part_of(name) not in allowed]
    assert not wrong


def test_connectors_know_of_the_settings_only_those_of_connections() -> None:
    for path in sources("shardbroker.connectors"):
        for name in imports_of_python(path.read_text()):
            assert part_of(name) != "shardbroker.config" or name.startswith("shardbroker.config.connectors."), f"{path}: {name}"


def test_every_package_has_its_place_and_the_order_has_no_circle() -> None:
    found = {
        ".".join(path.parent.relative_to(ROOT).parts[:2])
        for top in ("shardbroker", "acceptor", "shm", "perf")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert found == {*MAY_USE, "shardbroker"}
    below: dict[str, set[str]] = {}
    for package in [*MAY_USE] * len(MAY_USE):
        if all(used in below for used in MAY_USE[package]):
            below[package] = set(MAY_USE[package])
    assert set(below) == set(MAY_USE)


def test_modules_have_no_circle() -> None:
    assert circles(used_modules()) == set(KNOWN_CIRCLES)


@pytest.mark.parametrize("package", LAYERS)
def test_layers_within_a_package(package: str) -> None:
    used = used_modules()
    layer = {f"{package}.{name}": number for number, names in enumerate(LAYERS[package]) for name in names}
    inside = {module for module in used if module.startswith(package + ".")}
    assert set(layer) == inside, "each module has its layer"
    upwards = {(module, name) for module in inside for name in used[module] & inside if layer[name] > layer[module]}
    assert upwards == {leak for leak in KNOWN_LEAKS if leak[0] in inside}


def test_a_circle_is_found_through_a_third_module() -> None:
    used = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}
    assert circles(used) == {frozenset("abc")}


def test_both_readers_find_the_same_imports() -> None:
    source = """
import os as o, a.b
from a.c import (
    d,  # why
    e as f,
)
def late():
    from g import h, i as j
"""
    expected = {"os", "a.b", "a.c.d", "a.c.e", "g.h", "g.i"}
    assert set(imports_of_python(source)) == expected
    assert set(imports_of_cython(source)) == expected
    assert set(imports_of_cython(source.replace("import", "cimport"))) == expected
