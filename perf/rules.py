"""Figures of rules: evaluation over a journal in this process, and republished messages through a broker of its own.

    journal in a temporary directory --> feed --> rules                       CPU of a message, evaluations a second, size of a rule
    perf pub --> broker --> journal --> flows --> broker --> perf sub         rate, latency
"""

import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from perf.figures import Figure
from perf.launch import OWN_PERF, controlled, launched
from shardbroker.control import ControlError
from shardbroker.flows.feed import JournalFeed
from shardbroker.flows.rule_table import RuleTable
from shardbroker.flows.runner import Runner, collect_seldom
from shardbroker.flows.sinks.intake import Intakes
from shardbroker.journal import open_journal
from shardbroker.journal.encode import log_for_test
from shardbroker.journal.schema import Kind, MessageFlag

__all__ = ["RulesError", "evaluation", "republish"]

PER_BLOCK = 100
"""Messages of a block of the journal: a pass of a worker under load."""
RUNS = 3
"""Of each measurement of CPU, whose least counts, and of latency, whose median counts: others use the machine as well."""
ONE = 'SELECT payload.temp as temp, payload.unit as unit, clientid, topic FROM "site/+/device/#" WHERE payload.temp > 30'
PAYLOAD = json.dumps({
    "temp": 31.5, "unit": "C", "ok": True, "device": "sensor-4711", "seq": 123456, "site": "north", "hum": 55,
}).encode()  # fmt: skip
MATCHING, MATCHED_SHARE = 700, 100
"""Rules that all match, and the share of the messages that they are measured with."""
LOADED = 8_000
"""Rules whose size is measured."""
RATE = 20_000
"""Messages a second whose latency is measured."""
CLIENTS = 50
"""Publishers."""
SETTLE_S = 2.0
"""From the first subscriber to the first message, and from the last message to the end of the subscriber."""
PROBLEM_MAX = 300
"""Characters of a failed load's last output that are shown."""
SERVE = "serve --listen tcp://127.0.0.1:{port} --data-dir {dir} --workers 1 --acceptors 1 --set api.bind=disabled"


class RulesError(Exception):
    """The broker has lost messages, or a part of the measurement has failed."""


# --- evaluation ---------------------------------------------------------------------------------------------------------------


def evaluation(messages: int) -> Iterator[Figure]:
    """Measures rules without actions over a journal of so many messages, on the core of this process."""
    with tempfile.TemporaryDirectory(prefix="shardbroker-perf-") as name:
        directory = Path(name) / "0"
        directory.mkdir()
        yield Figure(f"a rule, of {LOADED:,}", _size(directory), "KB", 10, True)
        _write(directory, messages)
        one, count = _least(lambda: _run(directory, [ONE]))
        yield Figure("1 rule: WHERE on JSON, four fields", one * 1e6 / count, "µs of CPU a message", 6, True)
        yield Figure("1 rule: WHERE on JSON, four fields", count / one, "messages/s", 150_000, False)
        many, count = _least(lambda: _run(directory, [ONE, *_elsewhere(99)]))
        yield Figure("100 rules, one matches", many / one, "times one rule", 1.2, True)
    with tempfile.TemporaryDirectory(prefix="shardbroker-perf-") as name:
        directory = Path(name) / "0"
        directory.mkdir()
        _write(directory, max(messages // MATCHED_SHARE, PER_BLOCK))
        spent, count = _least(lambda: _run(directory, [ONE] * MATCHING))
        yield Figure(f"{MATCHING} rules that all match", MATCHING * count / spent, "evaluations/s", 500_000, False)


def _write(directory: Path, messages: int) -> None:
    writer = open_journal(directory)
    for number in range(messages):
        log_for_test(writer, "MESSAGE", {
            "id": number.to_bytes(16, "big"), "topic": b"site/17/device/4711", "payload": PAYLOAD,
            "flags": int(MessageFlag.FED) | 1, "expires_ms": 0, "properties": b"", "publisher": b"sensor-4711",
        })  # fmt: skip
        if number % PER_BLOCK == PER_BLOCK - 1:
            writer.seal(time.time_ns() // 1000)
    writer.seal(time.time_ns() // 1000)
    writer.close()


def _elsewhere(number: int) -> list[str]:
    """Returns rules on other topics."""
    return [ONE.replace("site/+", f"other{one}/+") for one in range(number)]


def _table(directory: Path, statements: list[str]) -> RuleTable:
    definitions = directory.parent / "flows.json"
    rules = [{"id": f"r{number}", "sql": sql, "enable": True, "actions": []} for number, sql in enumerate(statements)]
    definitions.write_text(json.dumps({"generation": 1, "rules": rules}))
    table = RuleTable({})
    table.load(definitions)
    return table


def _run(directory: Path, statements: list[str]) -> tuple[float, int]:
    """Returns (CPU seconds, messages) of one run over the journal."""
    table = _table(directory, statements)
    collect_seldom()
    runner = Runner(table, "node", lambda level, line: None, Intakes("node"))
    feed, count = JournalFeed(directory, None), 0
    begin = time.process_time()
    while not feed.follower.at_end:
        for batch in feed.read():
            runner.read(batch, feed)
            count += sum([record[1] == Kind.MESSAGE for record in batch.records])
    spent = time.process_time() - begin
    if table.rules["r0"].figures["passed"] != count:
        raise RulesError(f"{count} messages: all must pass the rule, {table.rules['r0'].figures['passed']} have")
    return spent, count


def _least(run: Callable[[], tuple[float, int]]) -> tuple[float, int]:
    return min(run() for _ in range(RUNS))


def _size(directory: Path) -> float:
    """Returns the memory of a loaded rule, in KB."""
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    table = _table(directory, _elsewhere(LOADED))
    gc.collect()
    grown = process.memory_info().rss - before
    if table.problems:
        raise RulesError(next(iter(table.problems.values())))
    return float(grown / LOADED / 1024)


# --- republished messages -----------------------------------------------------------------------------------------------------


def republish(seconds: float, core: int | None) -> Iterator[Figure]:
    """Measures a rule that republishes, through a broker with one worker. core: of the load."""
    own = Path(sys.executable).with_name("shardbroker")
    with tempfile.TemporaryDirectory(prefix="shardbroker-perf-") as directory:
        command = f"{own} {SERVE}".replace("{dir}", directory)
        with launched(command, None) as broker:
            _make_rule(Path(directory))
            load = ["--rate", str(RATE)]
            slow = [_through(broker.port, seconds, core, load, int(RATE * seconds))["latency"] for _ in range(RUNS)]
            for what, name in (("median", "p50_us"), ("p99", "p99_us")):
                middle_ms = statistics.median(one[name] for one in slow) / 1000
                yield Figure(f"republish at {RATE:,}/s, {what}", middle_ms, "ms", 5, True)
            fast = _through(broker.port, seconds, core, ["-I", "0", "-q", "1"], 0)
            yield Figure("republish, publishers without a limit", _rate(fast["course"]), "messages/s", 60_000, False)


def _make_rule(data_dir: Path) -> None:
    action = {"function": "republish", "args": {"topic": "out/${topic}", "qos": 0, "payload": "${payload}"}}
    try:
        with controlled(data_dir) as control:
            control.call("rules create", id="perf", sql='SELECT topic, payload FROM "in/#"', actions=json.dumps([action]))
    except (ControlError, OSError) as error:
        raise RulesError(f"rule not made: {error}") from error


def _through(port: int, seconds: float, core: int | None, load: list[str], messages: int) -> dict[str, Any]:
    """Runs publishers and a subscriber beside each other; returns what the subscriber has got. messages: 0: any number.

    Raises RulesError for messages that are missing.
    """
    subscriber = _verb(["sub", "-c", "1", "-t", "out/#", "--seconds", str(seconds + 2 * SETTLE_S)], port, core)
    try:
        time.sleep(SETTLE_S)
        limit = ["-L", str(messages)] if messages else []
        publishers = _verb(["pub", "-c", str(CLIENTS), "-t", "in/%i", "--seconds", str(seconds), *limit, *load], port, core)
        published = _result(publishers)["published"]
        got = _result(subscriber)
    finally:
        subscriber.kill()
        subscriber.wait()
    if messages and got["delivered"] != published:
        raise RulesError(f"{published} messages published, {got['delivered']} republished")
    return got


def _rate(course: list[list[float]]) -> float:
    """Returns messages a second from the first to the last one. course: (seconds, published, delivered, ...) at intervals."""
    moving = [(one[0], one[2]) for one, following in itertools.pairwise(course) if following[2] > one[2]]
    if len(moving) < 2:
        raise RulesError("nothing was republished")
    return (moving[-1][1] - moving[0][1]) / (moving[-1][0] - moving[0][0])


def _verb(arguments: list[str], port: int, core: int | None) -> "subprocess.Popen[str]":
    pinned = [] if core is None else ["--core", str(core)]
    command = [*OWN_PERF, *arguments, "-p", str(port), "--quiet", "--json", *pinned]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _result(process: "subprocess.Popen[str]") -> dict[str, Any]:
    output, problem = process.communicate()
    try:
        found: dict[str, Any] = json.loads(output)
    except ValueError:
        raise RulesError(problem.strip()[-PROBLEM_MAX:] or f"load ended with status {process.returncode}") from None
    return found
