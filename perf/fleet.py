"""The load processes of one run: this process alone, or several forked ones.

    parent                                child, each
      share ---------------- fork ------> connect, prepare
      <------------------------ "ready" -
      before() ------------------- "go" > run
      <------------------ result or text -
      after() -------------------- "end" > clear, close
"""

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from perf.arrivals import Arrivals
from perf.engine import Engine, LoadError
from perf.plan import ARRIVALS, Plan, PlanError
from perf.share import Share

__all__ = ["check_room", "run_parts"]

REPORT_S = 0.2
"""Seconds between two checks of the children."""
SPARE_DESCRIPTORS = 40
"""Descriptors of a process for purposes other than connections."""
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
Part = dict[str, Any]
Child = multiprocessing.context.ForkProcess


def check_room(plan: Plan) -> None:
    """Rejects a plan that needs more descriptors or ports than available. Raises PlanError."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    places = 2 if plan.scenario == "takeover" else 1
    room = hard - SPARE_DESCRIPTORS
    each = -(-plan.clients // plan.processes) * places
    if each > room:
        raise PlanError(
            f"processes = {plan.processes}: {plan.clients:,} clients are {each:,} connections in a process, allowed are {room:,}; "
            f"take at least --processes {-(-plan.clients * places // room)}, or raise the limit of open files (ulimit -n)"
        )
    low, high = map(int, PORT_RANGE.read_text().split())
    ports = (high - low + 1) * max(1, len(plan.ifaddr))
    if plan.clients * places > ports:
        raise PlanError(
            f"ifaddr = {','.join(plan.ifaddr) or 'one address'}: {plan.clients * places:,} connections need "
            f"{-(-plan.clients * places // (high - low + 1))} own addresses, each has {high - low + 1:,} ports; "
            f"give more, such as --ifaddr 127.0.0.1,127.0.0.2, or widen {PORT_RANGE}"
        )


def run_parts(
    plan: Plan, host: str, port: int, share: Share, before: Callable[[], None], after: Callable[[], None], tick: Callable[[], None]
) -> list[Part]:
    """Returns the results of all processes. `before` and `after` are called around the run proper, `tick` a few times a second.

    Raises LoadError, OSError.
    """
    if plan.processes == 1:
        with _engine(plan, host, port, share, 0, tick) as engine:
            engine.connect()
            engine.prepare()
            before()
            parts = [engine.run()]
            after()
            engine.clear()
            return parts
    fork = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    children: list[Child] = []
    for number in range(plan.processes):
        ours, theirs = fork.Pipe()
        child = fork.Process(target=_child, args=(plan, host, port, share, number, theirs, [*pipes, ours]), daemon=True)
        child.start()
        theirs.close()
        pipes.append(ours)
        children.append(child)
    try:
        _collect(children, pipes, tick)
        before()
        for pipe in pipes:
            pipe.send("go")
        parts = _collect(children, pipes, tick)
        after()
        for pipe in pipes:
            pipe.send("end")
        _collect(children, pipes, lambda: None)
        return parts
    finally:
        for child in children:
            child.join(2)
            child.kill()
            child.join()


def _engine(plan: Plan, host: str, port: int, share: Share, number: int, tick: Callable[[], None] | None) -> Any:
    return (Arrivals if plan.scenario in ARRIVALS else Engine)(plan, host, port, share, number, tick)


def _collect(children: list[Child], pipes: list[Connection], tick: Callable[[], None]) -> list[Any]:
    """Returns one answer of each child; meanwhile `tick` is called. SIGINT is forwarded as SIGTERM: a child ends its run and
    answers.

    Raises LoadError; KeyboardInterrupt if a child had not begun its run.
    """
    answers: dict[int, Any] = {}
    interrupted = False
    while len(answers) < len(pipes):
        waiting = [pipe for number, pipe in enumerate(pipes) if number not in answers]
        try:
            ready = wait(waiting, REPORT_S)
            for number, pipe in enumerate(pipes):
                if pipe not in ready:
                    continue
                try:
                    kind, answers[number] = pipe.recv()
                except EOFError:
                    if interrupted:
                        answers[number] = None  # it had not begun its run
                        continue
                    raise LoadError(f"load process {number} ended without a result") from None
                if kind == "error":
                    raise LoadError(answers[number])
            tick()
        except KeyboardInterrupt:
            interrupted = True
            for child in children:
                child.terminate()
    if None in answers.values() and interrupted:
        raise KeyboardInterrupt
    return [answers[number] for number in range(len(pipes))]


def _child(plan: Plan, host: str, port: int, share: Share, number: int, pipe: Connection, others: list[Connection]) -> None:
    for other in others:
        other.close()  # so that the end of the parent is noticed in this process
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the parent forwards it
    try:
        with _engine(plan, host, port, share, number, None) as engine:
            engine.connect()
            engine.prepare()
            pipe.send(("ready", None))
            pipe.recv()
            pipe.send(("result", engine.run()))
            pipe.recv()
            engine.clear()
        pipe.send(("end", None))
    except (LoadError, OSError) as error:
        pipe.send(("error", str(error)))
    except (KeyboardInterrupt, EOFError):
        pass
    os._exit(0)  # skips the parent's buffers, which would be flushed twice
