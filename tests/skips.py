"""Every reason for which a test may be skipped or be expected to fail. A test with any other reason fails.

A plugin of pytest, which tests/conftest.py loads.
"""

import os
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

__all__ = ["LISTED", "Listed", "fault_of", "pytest_make_collect_report", "pytest_runtest_makereport"]

PACKAGES = "make packages, as root or with sudo"
COMPLETE = bool(os.environ.get("CI"))
"""Nothing that a command could add is left out."""


@dataclass(frozen=True)
class Listed:
    """`reason` is a pattern for the whole reason, `files` one for the start of the path. `added_by` is the command after which the
    tests run: with CI set, they must. `external`: only with --broker."""

    reason: str
    files: str
    why: str
    added_by: str = ""
    external: bool = False


LISTED = (
    *(
        Listed(f"needs {program}", files, f"{part} from Debian", PACKAGES)
        for program, files, part in (
            ("mosquitto(_sub|_pub)?", "tests/(clients|docs|flows|perf)/", "mosquitto"),
            ("openssl", "tests/edge/", "OpenSSL's client"),
            ("valgrind", "tests/perf/", "valgrind"),
            ("java", "tests/spark/", "Java"),
            ("slapd|slapadd", "tests/access/", "OpenLDAP's server"),
            ("mariadb.*", "tests/(access|flows)/", "MariaDB"),
            ("redis.*", "tests/(access|connectors|flows)/", "Redis"),
            ("etcd(ctl)?", "tests/(cluster|membership)/", "etcd"),
            ("initdb|postgres|psql", "tests/(access|flows)/", "PostgreSQL"),
            ("java|mvn", "tests/(access|clients|connectors|flows)/", "what servers and clients in Java need"),
            ("influxd?", "tests/flows/", "InfluxDB"),
            ("npm|node", "tests/(clients|edge)/", "Node.js for MQTT.js"),
            ("MQTTClient[.]h", "tests/clients/", "Paho's library in C"),
            ("chromium", "tests/(edge|dashboard)/", "a browser"),
            ("systemd-.*", "tests/deploy/", "systemd's tools"),
            ("promtool", "tests/deploy/", "Prometheus"),
            (
                "(curl|java|make|mosquitto_.ub|openssl|pg_lsclusters|promtool|/etc/mosquitto.*|, )+",
                "tests/docs/", "what the pages use",
            ),
        )
    ),
    Listed("needs bonsai", "tests/access/", "compiled with OpenLDAP's headers", f"{PACKAGES}; make tools"),
    Listed("needs a clone with the commit [0-9a-f]+", "tests/releases/", "builds are made from the history, which may be cut"),
    Listed("needs [.]venv/.*", "tests/docs/", "the pages use what is built", "make install spark"),
    Listed("needs root: .*", "tests/deploy/", "an installation gives files to other users", "make test as root"),
    Listed("(no machine can be booted: )?(needs|namespaces: ).*", "tests/(deploy|docs)/",
           "a machine with a systemd of its own needs root and namespaces, which containers may not have"),
    Listed("needs (root: makes network namespaces|ip|/dev/net/tun)|namespaces: .*", "tests/cluster/",
           "a network with faults needs root, iproute2 and TUN devices, which containers may not have"),
    Listed("(needs the right to|cannot) mount a small tmpfs.*", "tests/(journal|behaviour|flows)/", "containers may not mount"),
    Listed("needs memory", "tests/overload/", "2 GB are not everywhere"),
    Listed("no time is left", "tests/(cluster|dashboard|deploy|docs|flows|handoff|perf|spark|torture)/",
           "make with UNTIL, for suites that take long"),
    Listed("only some tests of the module run", "tests/(management|api)/", "the last test of a module sums up the others"),
    Listed("a session that a Clean Start ends takes its messages with it", "tests/behaviour/test_shared.py",
           "MQTT 5.0 section 4.8.2 says SHOULD; a Clean Start discards the whole session"),
    Listed(".*", "tests/", "a broker that runs elsewhere differs as tests/conformance/known_differences.py says", external=True),
)  # fmt: skip


def fault_of(path: str, reason: str, external: bool = False, complete: bool = COMPLETE) -> str:
    """Returns why a test of this file may not be skipped, or be expected to fail, for this reason; empty if it may."""
    added_by = ""
    for entry in LISTED:
        if re.match(entry.files, path) and re.fullmatch(entry.reason, reason) and (external or not entry.external):
            if not (complete and entry.added_by):
                return ""
            added_by = entry.added_by
    return f"left out, and with CI set nothing may be; to add it: {added_by}" if added_by else "not in the list of tests/skips.py"


def _judge(report: Any, config: pytest.Config) -> Any:
    """Returns the report, failed if the reason for a skip or an expected failure is none of the list."""
    if report.skipped or hasattr(report, "wasxfail"):
        reason = getattr(report, "wasxfail", None)
        if reason is None:
            reason = report.longrepr[2].removeprefix("Skipped: ")
        fault = fault_of(report.nodeid, reason.removeprefix("reason: "), bool(config.getoption("--broker", None)))
        if fault:
            report.outcome, report.longrepr = "failed", f"{reason!r}: {fault}"
            vars(report).pop("wasxfail", None)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    return _judge((yield), item.config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    return _judge((yield), collector.config)
