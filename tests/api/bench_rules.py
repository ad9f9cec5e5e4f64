"""How long 10,000 rules take by REST: `python -m tests.api.bench_rules`. The demand is 30 s."""

import time
from concurrent.futures import ThreadPoolExecutor

from tests.api.rest import ApiBroker, Rest

RULES, CONNECTIONS = 10_000, 50


def main() -> None:
    broker = ApiBroker(2)
    with broker:
        token = Rest.logged_in(broker).authorization
        begin_s = time.monotonic()

        def make(connection: int) -> None:
            rest = Rest(broker.api_port, token)
            for number in range(connection, RULES, CONNECTIONS):
                sql = f'SELECT payload.t AS t FROM "site/{number}/#" WHERE payload.t > 10'
                rest.good("POST", "/rules", {"id": f"rule{number}", "sql": sql, "actions": []})

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in pool.map(make, range(CONNECTIONS)):
                pass
        print(f"{RULES:,} rules by REST from {CONNECTIONS} connections: {time.monotonic() - begin_s:.1f} s")


if __name__ == "__main__":
    main()
