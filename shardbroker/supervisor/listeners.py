"""Changes of listeners while the broker runs, and changes of their TLS files.

The supervisor opens and closes the sockets and sends an order to every acceptor, which takes its own copy of the socket with the
order. Acceptors started later inherit the current sockets. Connections stay open, whatever happens to their listener.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from acceptor.control import Order, discard_orders, send_order, take_answer
from acceptor.tls import watched_files
from shardbroker.config import Settings
from shardbroker.config.errors import explain
from shardbroker.config.gateways import inner_listeners
from shardbroker.config.listeners import LISTENERS_MAX, Listener
from shardbroker.logs.phrases import Line, log_line
from shardbroker.stores.files import Stamp, stamp_of
from shardbroker.supervisor.listening import StartError, check_tls, listen, unlisten
from shm.counters import Counters
from shm.topology import ListenerSockets, Topology

__all__ = ["Listeners"]

ANSWER_S = 5.0
"""Longest wait for an acceptor to carry out an order: many times the duration of a pass."""



class Listeners:
    """`running` returns the numbers of the acceptors that take orders now. `topology` has the current listeners."""

    def __init__(self, topology: Topology, counters: Counters, running: Callable[[], Iterable[int]]) -> None:
        self.topology = topology
        self._counters = counters
        self._running = running
        self._stopped: dict[str, Listener] = {}
        """Listeners that may be started again."""
        self._stamps = {one.name: _stamps(one.settings) for one in topology.listeners}

    def kept(self) -> list[list[Any]]:
        """Returns the stopped listeners as plain values, for `restore` in a program that continues this one."""
        return [[name, settings.model_dump()] for name, settings in self._stopped.items()]

    def restore(self, kept: Iterable[list[Any]]) -> None:
        """Takes the stopped listeners of an earlier program."""
        self._stopped = {name: Listener.model_validate(values) for name, values in kept}

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.topology.listeners]

    @property
    def public(self) -> list[ListenerSockets]:
        """Returns the listeners without the internal ones of gateways."""
        return [one for one in self.topology.listeners if not one.is_internal]

    @property
    def with_files(self) -> bool:
        """Returns whether there are files to check."""
        return any(one.settings.secure for one in self.topology.listeners)

    def add(self, name: str, settings: Listener) -> None:
        """Opens a listener. Raises StartError, and nothing has changed then."""
        if name in self.names or name in self._stopped:
            raise StartError(f"listener {name} already exists")
        self._open(name, settings)

    def follow_gateways(self, settings: Settings) -> None:
        """Opens, changes and closes the internal listeners of gateways. Raises StartError."""
        wanted = inner_listeners(settings, self.topology.runtime_dir)
        for one in [one for one in self.topology.listeners if one.is_internal]:
            if one.name not in wanted:
                self._close(one)
            elif wanted[one.name] != one.settings:
                self.update(one.name, wanted[one.name])
        for name in wanted.keys() - {*self.names}:
            self._open(name, wanted[name], is_internal=True)

    def _open(self, name: str, settings: Listener, is_internal: bool = False) -> None:
        sockets = listen(name, self._free_number(), settings, self.topology.acceptors, is_internal=is_internal)
        self._set([*self.topology.listeners, sockets])
        problem = self._order("put", sockets)
        if problem:
            self._close(sockets)
            raise StartError(f"listener {name}: {problem}")

    def update(self, name: str, settings: Listener) -> None:
        """Applies other settings to later connections. A new address is opened before the old one is closed.

        Raises StartError, and nothing has changed then.
        """
        if name in self._stopped:
            check_tls(name, settings)
            self._stopped[name] = settings
            return
        old = self._find(name)
        if settings.bind != old.settings.bind:
            self._check_ours(old)
            new = listen(name, self._free_number(), settings, self.topology.acceptors)
            self._set([new if one is old else one for one in self.topology.listeners])
            problem = self._order("put", new)
            gone = old
        else:
            check_tls(name, settings)
            new = dataclasses.replace(old, settings=settings)
            self._set([new if one is old else one for one in self.topology.listeners])
            problem = self._order("put", new, with_socket=False)
            gone = None
        if problem:
            self._set([old if one is new else one for one in self.topology.listeners])
            if gone is None:
                self._order("put", old, with_socket=False)
            else:
                self._order("remove", new)
                unlisten(new)
            raise StartError(f"listener {name}: {problem}")
        if gone is not None:
            self._order("remove", gone)
            unlisten(gone)

    def remove(self, name: str) -> None:
        """Closes a listener; its connections stay. Raises StartError."""
        if self._stopped.pop(name, None) is None:
            gone = self._find(name)
            self._check_ours(gone)
            self._close(gone)

    def stop(self, name: str) -> None:
        """Closes a listener like remove(), but keeps its settings for start(). Raises StartError."""
        if name not in self._stopped:
            gone = self._find(name)
            self._check_ours(gone)
            self._close(gone)
            self._stopped[name] = gone.settings

    def start(self, name: str) -> None:
        """Opens a stopped listener; no effect on a running one. Raises StartError, and nothing has changed then."""
        settings = self._stopped.get(name)
        if settings is None:
            self._find(name)
            return
        self._open(name, settings)
        del self._stopped[name]

    def _close(self, listener: ListenerSockets) -> None:
        self._set([one for one in self.topology.listeners if one is not listener])
        self._order("remove", listener)
        unlisten(listener)

    def carry_out(self, request: dict[str, Any]) -> None:
        """Carries out a request of the manager (shm/requests.py) about listeners. Raises StartError."""
        verb, name = request["verb"], request.get("name", "")
        if any(one.is_internal and one.name == name for one in self.topology.listeners):
            raise StartError(f"listener {name} belongs to a gateway; change the settings below gateways")
        if verb == "listeners add":
            self.add(name, _parsed(name, request["settings"]))
        elif verb == "listeners update":
            before = self._stopped[name] if name in self._stopped else self._find(name).settings
            self.update(name, _parsed(name, _merged(before.model_dump(), request["settings"])))
        elif verb == "listeners remove":
            self.remove(name)
        elif verb == "listeners stop":
            self.stop(name)
        elif verb == "listeners start":
            self.start(name)
        elif verb == "listeners restart":
            self.stop(name)
            self.start(name)

    def pumped(self, number: int) -> int:
        """Returns how many TLS connections stay in an acceptor, and end with it; 0 if it does not answer."""
        channel = self.topology.sending_ends("control")[number]
        while take_answer(channel, 0):
            pass
        try:
            send_order(channel, Order("pumps", self.topology.listeners[0]), None)
        except (OSError, IndexError):
            return 0
        answer = take_answer(channel, ANSWER_S) or ""
        return int(answer) if answer.isdecimal() else 0

    def rows(self) -> list[dict[str, Any]]:
        """Returns the current listeners for display. `number` is None for a stopped one."""
        open_ = [_row(one.name, one.settings, one.number, one.address.partition("://")[2]) for one in self.public]
        return open_ + [_row(name, settings, None, settings.bind) for name, settings in self._stopped.items()]

    def look_at_files(self) -> Iterable[tuple[str, Line]]:
        """Makes acceptors reload changed TLS files; yields (level, line) for the log."""
        for one in self.topology.listeners:
            stamps = _stamps(one.settings)
            if stamps == self._stamps[one.name]:
                continue
            self._stamps[one.name] = stamps  # a problem is logged once, until the files change again
            try:
                check_tls(one.name, one.settings)
            except StartError as error:
                yield "ERROR", log_line("tls files not reloaded", listener=one.name, reason=error)
                continue
            problem = self._order("reload", one)
            if problem:
                yield "ERROR", log_line("tls files not reloaded", listener=one.name, reason=problem)
            else:
                yield "INFO", log_line("tls files reloaded", listener=one.name)

    def acceptor_starts(self, number: int) -> None:
        """Discards unread orders of the acceptor's predecessor: their result is already in its settings."""
        discard_orders(self.topology.receiving_ends("control", number)[0])

    def _find(self, name: str) -> ListenerSockets:
        for one in self.topology.listeners:
            if one.name == name:
                return one
        raise StartError(f"no listener {name}; listeners: {', '.join([*self.names, *self._stopped])}")

    @staticmethod
    def _check_ours(listener: ListenerSockets) -> None:
        """Refuses changes of a socket owned by the service manager: clients would wait for ever in an open socket without an
        acceptor."""
        if listener.activated:
            raise StartError(f"listener {listener.name}: its socket is held by the service manager; change the socket unit")

    def _free_number(self) -> int:
        """Returns a number that neither a listener nor a connection uses."""
        taken = {one.number for one in self.topology.listeners}
        for number in range(LISTENERS_MAX):
            if number not in taken and not self._counters.sockets(number):
                return number
        raise StartError(f"limit of {LISTENERS_MAX} listeners reached, removed ones with open connections included")

    def _set(self, listeners: Iterable[ListenerSockets]) -> None:
        self.topology = dataclasses.replace(self.topology, listeners=tuple(listeners))
        self._stamps = {one.name: self._stamps.get(one.name, _stamps(one.settings)) for one in self.topology.listeners}

    def _order(self, verb: str, listener: ListenerSockets, with_socket: bool = True) -> str:
        """Sends an order to every running acceptor; returns the first problem, or an empty text."""
        problems = []
        for number in self._running():
            channel = self.topology.sending_ends("control")[number]
            while take_answer(channel, 0):
                pass  # answer to an order that had timed out
            try:
                send_order(channel, Order(verb, listener), listener.descriptors[number] if verb == "put" and with_socket else None)
            except OSError as error:
                problems.append(f"acceptor {number} not reached: {error.strerror}")
                continue
            answer = take_answer(channel, ANSWER_S)
            problems.append(f"acceptor {number} did not respond" if answer is None else answer)
        return next((problem for problem in problems if problem), "")


def _row(name: str, settings: Listener, number: int | None, bind: str) -> dict[str, Any]:
    return {
        "name": name, "number": number, "type": settings.type, "bind": bind,
        "max_connections": settings.max_connections, "max_conn_rate": settings.max_conn_rate,
    }  # fmt: skip


def _parsed(name: str, values: dict[str, Any]) -> Listener:
    try:
        return Settings.model_validate({"listeners": {name: values}}).listeners[name]
    except ValidationError as error:
        raise StartError(explain(error, {}, {("listeners", name): "asked for"})) from None


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns the old values updated by the new ones, table by table."""
    both = old | new
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            both[key] = _merged(old[key], value)
    return both


def _stamps(settings: Listener) -> tuple[Stamp | None, ...]:
    """Returns stamps of all TLS files, which change with the files."""
    return tuple(stamp_of(path) for path in watched_files(settings.tls)) if settings.secure else ()
