"""Evacuation of the sessions of one worker: new clients are turned away, connected ones disconnected, sessions of absent ones offered
to other nodes. The manager sets the pace (management/evacuation.py); a command does a bounded part.

    Router.redirect not None     CONNECT is refused with 0x9C (packets/connect.pyx), and offers of other nodes are declined
    disconnect()                 0x9C to connected clients
    offer()                      OFFER to a node, which claims the session and takes it as for a client (shardbroker/cluster/claims.py)

Client ids to look at are copied from the table of sessions when a round begins, since it changes meanwhile. What a round misses is
found by the next one.
"""

from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.one_pass cimport Worker
from shardbroker.worker.router cimport Router

from typing import Any

from shardbroker.worker.commands import command

__all__ = ["Evacuation"]

LOOKED_MAX = 2_000
"""Sessions that one command looks at: some 0.3 ms."""


class Evacuation:
    """Evacuation of one worker. It does nothing until `begin`."""

    def __init__(self, Worker worker not None) -> None:
        self.worker = worker
        self._connected = []
        """Client ids of the round of `disconnect` that are still to be looked at."""
        self._absent = []
        """Likewise of `offer`."""
        self._staying = set()
        """Client ids of sessions that cannot be offered."""

    def begin(self, bytes reference not None) -> None:
        """Turns clients away from now on. `reference`: Server Reference for them, or empty."""
        cdef Worker worker = self.worker
        worker.router.redirect = reference

    def end(self) -> None:
        """Accepts clients again. Sessions that were given away stay where they are."""
        cdef Worker worker = self.worker
        worker.router.redirect = None
        self._staying.clear()
        if worker.cluster is not None:
            worker.cluster.core.claims.offers.clear()

    def disconnect(self, int most) -> int:
        """Disconnects clients, `most` at most. Returns how many."""
        cdef Worker worker = self.worker
        cdef Router router = worker.router
        cdef Session session
        cdef int looked = 0, done = 0
        if not self._connected:
            self._connected = [*router.sessions]
        while self._connected and looked < LOOKED_MAX and done < most:
            looked += 1
            session = router.sessions.get(self._connected.pop())
            if session is not None and session.link is not None:
                (<Channel>session.link).evacuated(router.redirect or b"")
                done += 1
        return done

    def offer(self, int most, nodes) -> int:
        """Offers sessions of absent clients, `most` at most, to these nodes or, with None, to all. Returns how many."""
        cdef Worker worker = self.worker
        cdef Router router = worker.router
        cdef Session session
        cdef int looked = 0, done = 0
        most = min(most, worker.cluster.core.claims.offers_left)
        if most <= 0:
            return 0
        if not self._absent:
            self._absent = [*router.sessions]
            self._staying = {one for one in self._staying if one in router.sessions}
        while self._absent and looked < LOOKED_MAX and done < most:
            looked += 1
            session = router.sessions.get(self._absent.pop())
            if session is None or session.link is not None:
                continue
            if not worker.cluster.can_move(session.client_id):
                self._staying.add(session.client_id)
            else:
                done += worker.cluster.offer(session.client_id, nodes)
        return done

    def state(self) -> dict[str, Any]:
        """Returns how many sessions are here, how many of them cannot move, and how many are on their way."""
        cdef Worker worker = self.worker
        cdef Router router = worker.router
        cdef dict found = {"sessions": len(router.sessions), "staying": sum([one in router.sessions for one in self._staying])}
        found["moving"], found["forwarding"] = (0, 0) if worker.cluster is None else worker.cluster.core.claims.departing(router.now_ms)
        return found


@command("evacuation begin")
def begin(Worker worker, dict args) -> None:
    """Begins the evacuation, or ends it if `reference` is None."""
    if args["reference"] is None:
        worker.evacuation.end()
    else:
        worker.evacuation.begin(args["reference"])


@command("evacuate")
def evacuate(Worker worker, dict args) -> dict[str, Any]:
    """Disconnects at most `connections` clients and offers at most `sessions` sessions to `nodes`; returns what is left."""
    done = {"disconnected": 0, "offered": 0}
    if worker.router.redirect is not None:
        if args["connections"]:
            done["disconnected"] = worker.evacuation.disconnect(args["connections"])
        if args["sessions"] and worker.cluster is not None:
            done["offered"] = worker.evacuation.offer(args["sessions"], args["nodes"])
    return {**done, **worker.evacuation.state()}
