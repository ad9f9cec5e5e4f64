"""Entry point of the process api: serves HTTP until SIGTERM."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
import uvloop

from shardbroker.access.accounts import AccountError, Accounts
from shardbroker.access.hashing import hash_password
from shardbroker.api.app import build_app, has_dashboard
from shardbroker.api.timeouts import TimeoutProtocol
from shardbroker.config.listeners import parse_address
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import Line, log_line, of_process
from shm.counters import Counters, ProcessState
from shm.in_force import InForce
from shm.roles import API
from shm.topology import Topology

__all__ = ["run"]

DASHBOARD_MISSING = "pip install 'shardbroker[dashboard]'"
RETRY_S = 5.0
"""Between two attempts to listen on an address in use."""
BACKLOG = 128
"""Connections in the accept queue."""
CONNECTIONS_MAX = 500
"""Concurrent connections and requests; further ones get 503."""
KEEP_ALIVE_S = 30
"""Longest idle time between two requests of a connection."""
SHUTDOWN_S = 2
"""Longest time for requests under way at shutdown."""
SETTINGS_S = 0.25
"""Interval between two checks for changed settings."""


def run(topology: Topology) -> None:
    """Serves until SIGTERM."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(topology))


class _Server(uvicorn.Server):
    """Installs no signal handlers: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(topology: Topology) -> None:
    settings = topology.settings.api
    counters = Counters.attach(topology.counters_name)
    in_force = InForce(topology, counters, topology.slot_of(API))
    log = Log(in_force.settings.log.level)

    def complain(line: Line) -> None:
        log.add("error", of_process("api", line))
        log.flush()

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    stopping = asyncio.create_task(stop.wait())
    following = asyncio.create_task(_follow(in_force, log, complain))
    try:
        accounts = await _open_accounts(topology, log)
        app = build_app(topology.data_dir, topology.node_name, settings.token_expired_time, accounts, complain)
        host, port = parse_address(settings.address)
        try:
            listening: socket.socket | None = _listen(host, port)
        except OSError as error:
            reason = error.strerror or error
            line = log_line("address not bound", setting="api.bind", address=f"{host}:{port}", reason=reason)
            log.add("warning" if settings.bind == "auto" else "error", of_process("api", line))
            log.flush()
            listening = None
        counters.set_state(topology.slot_of("api"), ProcessState.READY)  # the broker is ready without the REST API's address
        while listening is None and not stopping.done():
            await asyncio.wait([stopping], timeout=RETRY_S)
            with suppress(OSError):
                listening = _listen(host, port)
        if listening is not None:
            url = f"http{'s' if settings.certfile else ''}://{settings.address}"
            line = log_line("dashboard available", url=url)
            if not has_dashboard():
                line = log_line("rest api available", url=url, dashboard=DASHBOARD_MISSING)
            log.add("info", of_process("api", line))
            log.flush()
            await _answer(app, listening, settings, stopping, complain)
        accounts.close()
    except AccountError as error:
        complain(log_line("accounts not opened", reason=error))
        raise SystemExit(1) from None
    finally:
        following.cancel()
        log.close()
    counters.set_state(topology.slot_of("api"), ProcessState.DOWN)


async def _follow(in_force: InForce, log: Log, complain: Callable[[Line], None]) -> None:
    """Applies all keys that reach the API. After a failure the manager reports this process as behind."""
    while True:
        await asyncio.sleep(SETTINGS_S)
        if in_force.is_due:
            try:
                log.level = in_force.load().log.level
            except OSError as error:
                complain(log_line("settings not applied", reason=error))
            else:
                in_force.applied()


async def _open_accounts(topology: Topology, log: Log) -> Accounts:
    """Returns the accounts. The password of the first one is logged here and never again."""
    accounts, damage = Accounts.opened(topology.data_dir)
    if damage:
        log.add("error", of_process("api", log_line("accounts damaged", detail=damage)))
    password = await asyncio.to_thread(accounts.first, hash_password)
    if password is not None:
        log.add("warning", of_process("api", log_line("first account created", name="admin", password=password)))
    log.flush()
    return accounts


def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(address)
        one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one


async def _answer(app: Any, listening: socket.socket, settings: Any, stopping: "asyncio.Task[bool]", complain: Any) -> None:
    config = uvicorn.Config(
        app,
        http=TimeoutProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="on",
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_certfile=settings.certfile or None,
        ssl_keyfile=settings.keyfile or None,
    )
    try:
        config.load()
    except OSError as error:
        complain(log_line("certificate not loaded", settings="api.certfile,api.keyfile", reason=error))
        listening.close()
        await stopping
        return
    server = _Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await serving
