"""Figures of a type of sink: its driver alone, and the whole way through a broker of its own, to a server that is there.

rows of this process --> driver --> server                              CPU of a row, rows a second
perf pub --> broker --> journal --> flows: rule, action --> server      CPU of process flows for a row, rows a second
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from perf.figures import Figure
from perf.launch import OWN_PERF, Running, controlled, launched
from shardbroker.config.sinks.types import ALIASES, SINK_TYPES
from shardbroker.connectors.errors import ConnectorError, describe
from shardbroker.control import Control, ControlError
from shardbroker.flows.sinks.definitions import settings_of
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import EvaluationError

__all__ = ["DEMANDS", "RULE", "SinksError", "of_broker", "of_driver", "type_of"]

DEMANDS: dict[str, tuple[float, float]] = {
    "cassandra": (35, 5_000), "disk_log": (3, 200_000), "dynamo": (45, 4_000), "http": (150, 0), "influxdb": (5, 100_000),
    "kafka": (8, 80_000), "mongodb": (8, 0), "mqtt": (8, 40_000), "mysql": (6, 40_000), "opents": (8, 30_000), "pgsql": (3, 60_000),
    "pulsar": (30, 20_000), "rabbitmq": (5, 0), "redis": (8, 50_000), "timescale": (3, 60_000),
}  # fmt: skip
"""Type -> most µs of CPU of the driver for a row, least rows a second; 0: no demand."""
WHOLE_US = {"pgsql": 20.0}
"""Type -> most µs of CPU of process flows for a row."""
RULE = 'SELECT id, clientid, topic, payload, qos, timestamp FROM "in/#"'
"""What a row has."""
BATCH = 1000
CLIENTS = 50
"""Publishers."""
PAYLOAD = "template://"
RUNS = 3
"""Of the driver; the least CPU counts, since others use the machine as well."""
WAIT_S = 120.0
"""For rows that are published until they are written, without progress."""
POLL_S = 0.5
SERVE = "serve --listen tcp://127.0.0.1:{port} --data-dir {dir} --workers 1 --acceptors 1 --set api.bind=disabled"


class SinksError(Exception):
    """The sink cannot be used, or rows are missing."""


def type_of(name: str) -> str:
    """Returns a type by its own name or another one. Raises SinksError."""
    kind = ALIASES.get(name, name)
    if kind not in SINK_TYPES:
        raise SinksError(f"--type: must be {', '.join(sorted(SINK_TYPES))}, got {name!r}")
    return kind


# --- the driver ---------------------------------------------------------------------------------------------------------------


def of_driver(kind: str, connector: dict[str, Any], parameters: dict[str, Any], rows: int) -> Iterator[Figure]:
    """Measures batches of 1,000 rows, one after the other, in this process. Raises SinksError."""
    most = DEMANDS.get(kind, (0.0, 0.0))
    with tempfile.TemporaryDirectory(prefix="shardbroker-perf-") as name:
        try:
            module = import_module(f"shardbroker.flows.drivers.{kind}")
            connected = module.connect(settings_of(kind, "connector", connector), f"connectors.{kind}.perf")
            if hasattr(connected, "data_dir"):
                connected.data_dir = Path(name)
            action = settings_of(kind, "action", {"connector": "perf", "parameters": parameters})
            driver = module.make(action, connected, f"{kind}:perf")
            cpu_s, took_s = asyncio.run(_written(driver, connected, rows))
        except ImportError as error:
            raise SinksError(f"{kind}: {error}") from None
        except (ConnectorError, ValueError, EvaluationError) as error:
            raise SinksError(str(error)) from None
        except Exception as error:  # of a library
            raise SinksError(describe(error)) from None
    yield Figure("driver alone", cpu_s * 1e6 / rows, "µs of CPU a row", most[0] or None, True)
    yield Figure("driver alone", rows / took_s, "rows/s", most[1] or None, False)


async def _written(driver: Any, connector: Any, rows: int) -> tuple[float, float]:
    """Returns the least seconds of CPU, and the least seconds, that so many rows took."""
    if getattr(driver, "stores_cursor", False):
        driver.cursor_key = f"perf-{time.time_ns()}/perf/perf:perf"
    await driver.open()
    spent, took, position = [], [], 1
    for _ in range(RUNS):
        cpu_s = took_s = 0.0
        for _ in range(rows // BATCH):
            batch = [_row(position + number) for number in range(BATCH)]
            position += BATCH
            begin_s, used_s = time.perf_counter(), time.process_time()
            failures = await driver.write(batch)
            cpu_s += time.process_time() - used_s
            took_s += time.perf_counter() - begin_s
            if failures:
                raise SinksError(f"a row was not written: {failures[0].reason}")
        spent.append(cpu_s)
        took.append(took_s)
    await driver.close()
    await connector.close()
    return min(spent), min(took)


def _row(position: int) -> Row:
    id, now_ms = f"{time.time_ns():016X}{position:016X}", time.time_ns() // 1_000_000
    client = f"client-{position % CLIENTS}"
    payload = f'{{"temp": {position * 0.5}, "unit": "C", "seq": {position}}}'
    values = {"id": id, "clientid": client, "topic": f"in/{client}", "payload": payload, "qos": 1, "timestamp": now_ms}
    return Row("0", position, client, values, id, "perf", now_ms)


# --- the whole way ------------------------------------------------------------------------------------------------------------


def of_broker(kind: str, connector: dict[str, Any], parameters: dict[str, Any], rows: int) -> Iterator[Figure]:
    """Publishes so many messages at QoS 1 as fast as possible, and waits until all are written. Raises SinksError, LaunchError."""
    own = Path(sys.executable).with_name("shardbroker")
    with tempfile.TemporaryDirectory(prefix="shardbroker-perf-") as name:
        payload = Path(name) / "payload"
        payload.write_text('{"temp": 31.5, "unit": "C", "seq": 123456}')
        with launched(f"{own} {SERVE}".replace("{dir}", name + "/data"), None) as broker:
            data_dir = Path(name) / "data"
            _define(data_dir, kind, connector, parameters)
            before_s, begin_s = _flows_s(broker), time.monotonic()
            published = _publish(broker, rows, payload)
            found, end_s = _settled(data_dir, f"{kind}:perf", published)
            used_s = _flows_s(broker) - before_s
    if found["failed"] or found["dropped"]:
        raise SinksError(f"of {published} rows {found['failed']} have failed and {found['dropped']} were dropped")
    yield Figure("the whole way", used_s * 1e6 / published, "µs of CPU of flows a row", WHOLE_US.get(kind), True)
    yield Figure("the whole way", published / (end_s - begin_s), "rows/s", None, False)


def _define(data_dir: Path, kind: str, connector: dict[str, Any], parameters: dict[str, Any]) -> None:
    action = {"connector": "perf", "parameters": parameters}
    try:
        with controlled(data_dir) as control:
            control.call("connectors probe", id=f"{kind}:perf", definition=json.dumps(connector))
            control.call("connectors add", id=f"{kind}:perf", definition=json.dumps(connector))
            control.call("actions add", id=f"{kind}:perf", definition=json.dumps(action))
            control.call("rules create", id="perf", sql=RULE, actions=json.dumps([f"{kind}:perf"]))
    except (ControlError, OSError) as error:
        raise SinksError(f"not made: {error}") from error


def _flows_s(broker: Running) -> float:
    """Returns the CPU of the processes flows so far, seconds."""
    found = [one for one in psutil.Process(broker.pid).children(recursive=True) if "flows" in one.name()]
    return sum(sum(one.cpu_times()[:2]) for one in found)


def _publish(broker: Running, messages: int, payload: Path) -> int:
    """Returns how many messages were published."""
    command = [
        *OWN_PERF, "pub", "-p", str(broker.port), "-c", str(CLIENTS), "-t", "in/%i", "-q", "1", "-I", "0",
        "-m", f"{PAYLOAD}{payload}", "-L", str(messages), "--quiet", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        return int(json.loads(done.stdout)["published"])
    except (ValueError, KeyError):
        raise SinksError(f"load ended with status {done.returncode}: {done.stderr.strip()[-300:]}") from None


def _settled(data_dir: Path, id: str, published: int) -> tuple[dict[str, Any], float]:
    """Returns the figures of the action once all rows are done, and when that was. Raises SinksError."""
    done, moved_s = -1, time.monotonic()
    with Control(data_dir) as control:
        while True:
            found: dict[str, Any] = control.call("actions metrics", id=id)
            now = found.get("success", 0) + found.get("failed", 0) + found.get("dropped", 0)
            if now >= published:
                return {"failed": 0, "dropped": 0, **found}, time.monotonic()
            if now != done:
                done, moved_s = now, time.monotonic()
            if time.monotonic() - moved_s > WAIT_S:
                problem = control.call("actions show", id=id).get("status_reason")
                raise SinksError(f"{now} of {published} rows are done, and no more since {WAIT_S:g} s: {problem or 'no reason'}")
            time.sleep(POLL_S)
