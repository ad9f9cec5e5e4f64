"""What looking on costs: `python -m tests.api.bench_management [CLIENTS]`. Run it on a machine that does nothing else.

10,000 clients are connected, one in ten publishes now and then. CPU of the manager and of the process of the REST API, in percent
of a core, each over SPAN_S: while nobody looks; while Prometheus scrapes every 5 s; with the overview of the dashboard open in
headless Chromium as well; with the page Diagnose, for which workers count by client; with a trace that runs and is watched.
"""

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
from playwright.sync_api import Page, sync_playwright

from tests.api.rest import ApiBroker, Rest
from tests.harness import free_port, until

CLIENTS = 10_000
PUBLISHERS = 1_000
RATE = 500
"""Messages a second of all publishers together."""
SCRAPE_S = 5.0
SPAN_S = float(os.environ.get("SPAN_S", "60"))
LEAD_S = 5.0
"""After something was begun, before it is measured."""


def cpu_s(broker: ApiBroker) -> dict[str, float]:
    """CPU time of each process of the management plane, and of the workers together."""
    spent = {}
    for name in ("manager", "api", "worker"):
        pids = broker.child_pids(f"sb-{name}")
        spent[name] = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
    return spent


def span(broker: ApiBroker, title: str, scrape_port: int | None) -> None:
    """Prints what one span has cost."""
    time.sleep(LEAD_S)
    before, began = cpu_s(broker), time.monotonic()
    while (left := began + SPAN_S - time.monotonic()) > 0:
        if scrape_port is not None:
            with urllib.request.urlopen(f"http://127.0.0.1:{scrape_port}/metrics") as answer:
                answer.read()
        time.sleep(min(SCRAPE_S, left))
    took = time.monotonic() - began
    after = cpu_s(broker)
    share = {name: 100 * (after[name] - before[name]) / took for name in after}
    both = share["manager"] + share["api"]
    print(f"{title:<44} manager {share['manager']:5.2f} %  api {share['api']:5.2f} %  together {both:5.2f} %  "
          f"workers {share['worker']:5.2f} %", flush=True)  # fmt: skip


def log_in(page: Page, broker: ApiBroker, path: str) -> None:
    start = f"http://127.0.0.1:{broker.api_port}"
    page.goto(f"{start}/")
    page.get_by_label("User name").fill("admin")
    page.get_by_label("Password").fill(broker.password)
    page.get_by_role("button", name="Log in").click()
    page.goto(f"{start}/dashboard{path}")


def main(clients: int) -> None:
    scrape_port = free_port()
    settings: dict[str, object] = {"prometheus.bind": f"127.0.0.1:{scrape_port}", "log.level": "warning"}
    program = str(Path(sys.executable).with_name("shardbroker"))
    with ApiBroker(2, settings) as broker, sync_playwright() as playwright:
        rest = Rest.logged_in(broker)
        where = ["-p", str(broker.address[1]), "--quiet"]
        loads = [
            subprocess.Popen([program, "perf", "sub", "-c", str(clients - PUBLISHERS), "-t", "b/%i", "--connrate", "2000", *where],
                             stdout=subprocess.DEVNULL),
            subprocess.Popen([program, "perf", "pub", "-c", str(PUBLISHERS), "-t", "b/%i", "--rate", str(RATE), "-s", "64", *where],
                             stdout=subprocess.DEVNULL),
        ]  # fmt: skip
        try:
            until(lambda: rest.good("GET", "/stats")[0]["connections.count"] >= clients, 120)
            print(f"{clients} clients, {RATE} messages a second")
            span(broker, "nobody looks", None)
            span(broker, "scrape every 5 s", scrape_port)
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            page = browser.new_page()
            log_in(page, broker, "/")
            span(broker, "scrape, dashboard: overview", scrape_port)
            page.goto(f"http://127.0.0.1:{broker.api_port}/dashboard/diagnose")
            span(broker, "scrape, dashboard: diagnose", scrape_port)
            rest.good("POST", "/trace", {"name": "bench", "type": "topic", "topic": "b/1", "end_at": "2099-01-01T00:00:00Z"})
            page.goto(f"http://127.0.0.1:{broker.api_port}/dashboard/trace")
            span(broker, "scrape, dashboard: trace of one topic", scrape_port)
            browser.close()
        finally:
            for load in loads:
                load.terminate()
            for load in loads:
                load.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CLIENTS)
