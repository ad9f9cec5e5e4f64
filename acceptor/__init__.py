"""The acceptors: listening sockets, admission, and the hand-over of each connection to the worker that owns it.

Read in this order:

- `peek`      sans-IO: finds the client id in the first bytes of a connection, or finds that they hold none.
- `handover`  one message over a SOCK_SEQPACKET pair: the socket, what was read of it, a CBOR header.
- `acceptor`  the loop: accepts, holds a socket until its client id has arrived, hands it over, and closes what exceeds a limit.
- `admission` the token bucket behind `max_conn_rate`.
- `main`      entry point of the process.

A client id decides on the worker (`partition = crc32(client id) % 1024`, each with an owner: shm/partitions.py), so all that
concerns a session happens in one process. An acceptor keeps nothing of a connection that it has handed over: a plain TCP connection
costs it nothing from then on.

What a stranger can make an acceptor hold is bounded: the number of sockets that are not handed over yet, the bytes read from them,
and the time each may take (`mqtt.idle_timeout`).
"""

from acceptor.main import run

__all__ = ["run"]
