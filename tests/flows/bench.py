"""What a message costs from the journal to evaluated rules: `python -m tests.flows.bench`.

A journal of messages, 100 to a block, in a temporary directory; one core, no actions. Demand: 150,000/s and 6 µs of CPU.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from shardbroker.flows.feed import JournalFeed
from shardbroker.flows.rule_table import RuleTable
from shardbroker.flows.runner import Runner
from shardbroker.journal import open_journal
from shardbroker.journal.encode import log_for_test
from shardbroker.journal.schema import Kind, MessageFlag
from tests.flows.broker import rule

PER_BLOCK = 100
RUNS = 3
ONE = 'SELECT payload.temp as temp, payload.unit as unit, clientid, topic FROM "site/+/device/#" WHERE payload.temp > 30'
PAYLOAD = json.dumps({
    "temp": 31.5, "unit": "C", "ok": True, "device": "sensor-4711", "seq": 123456, "site": "north", "hum": 55,
}).encode()  # fmt: skip


def write(directory: Path, messages: int) -> None:
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


def run(directory: Path, rules: int) -> tuple[float, int]:
    """Returns (CPU seconds, messages) of one run over the journal."""
    definitions = directory.parent / "flows.json"
    others = [rule(f"r{n}", ONE.replace("site/+", f"other{n}/+")) for n in range(rules - 1)]
    definitions.write_text(json.dumps({"generation": 1, "rules": [rule("one", ONE), *others]}))
    table = RuleTable({})
    table.load(definitions)
    runner = Runner(table, "node", lambda level, line: None)
    feed, count = JournalFeed(directory, None), 0
    begin = time.process_time()
    while not feed.follower.at_end:
        for batch in feed.read():
            for record in batch.records:
                if record[1] == Kind.MESSAGE:
                    runner.message(record, batch.time_us, feed.publishers, feed.name)
                    count += 1
    spent = time.process_time() - begin
    assert table.rules["one"].figures["passed"] == count
    return spent, count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.flows.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "0"
        directory.mkdir()
        write(directory, given.messages)
        for rules in (1, 100, 1000):
            spent, count = min(run(directory, rules) for _ in range(RUNS))
            print(f"{rules:5} rules, one matches: {spent * 1e6 / count:5.2f} µs a message, {count / spent:9,.0f} messages/s")


if __name__ == "__main__":
    main()
