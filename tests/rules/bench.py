"""Cost of rules: `python -m tests.rules.bench`. Generated code alone, with decoding of the payload, and 700 rules that match."""

import json
import time
from collections.abc import Callable

from shardbroker.rules import Payload, compile_rule

PAYLOAD = json.dumps(
    {"temp": 31.5, "hum": 40, "device": {"id": "sensor-0042", "site": "b7"}, "seq": 123456, "unit": "C", "status": "ok"}
)
COLUMNS = {"payload": PAYLOAD, "topic": "t/s", "clientid": "c1", "username": "u1", "qos": 1, "timestamp": 1_700_000_000_000}
SQL = 'SELECT payload.temp as temp, payload.device.id as device, clientid, timestamp FROM "t/#" WHERE payload.temp > 30'
RULES = 700
ROUNDS = 5
SECONDS_OF_ROUND = 0.3


def cost_us(work: Callable[[], object]) -> float:
    """Returns the least time of a call over some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        calls, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < SECONDS_OF_ROUND:
            for _ in range(100):
                work()
            calls += 100
        best = min(best, spent / calls)
    return best * 1e6


def main() -> None:
    rule = compile_rule(SQL)
    shared = Payload(PAYLOAD)
    print(f"payload of {len(PAYLOAD)} bytes, {SQL}")
    print(f"decoding: {cost_us(lambda: Payload(PAYLOAD).map()):.2f} us")
    print(f"generated code: {cost_us(lambda: rule._function(COLUMNS, shared)):.2f} us")
    print(f"evaluate, decoded before: {cost_us(lambda: rule.evaluate(COLUMNS, shared)):.2f} us")
    print(f"evaluate with decoding: {cost_us(lambda: rule.evaluate(COLUMNS)):.2f} us")
    rules = [compile_rule(SQL.replace("> 30", f"> {number / 100}")) for number in range(RULES)]

    def all_rules() -> None:
        payload = Payload(PAYLOAD)
        for one in rules:
            one.evaluate(COLUMNS, payload)

    print(f"{RULES} rules that match: {RULES / cost_us(all_rules) * 1e6:,.0f} evaluations/s")
    begin = time.perf_counter()
    for number in range(100):
        compile_rule(SQL.replace("> 30", f"> {number}"))
    print(f"compiling: {(time.perf_counter() - begin) * 10:.2f} ms a rule")


if __name__ == "__main__":
    main()
