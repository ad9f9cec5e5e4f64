"""Load tests of MQTT brokers, from the outside: any broker, this one or another.

Read in this order:

- `plan`      a scenario and its numbers, and the topics and filters that follow from them.
- `clients`   compiled: connections on one epoll; opening, reading, writing.
- `engine`    compiled: the clients of a load process; publishes, acknowledges, checks, measures.
- `arrivals`  compiled: clients that connect, subscribe, disconnect and reconnect, or take one another over.
- `share`     compiled: shared memory with the progress of several load processes.
- `fleet`     the load processes of a run.
- `usage`     CPU time and memory of the broker's process tree.
- `measure`   one run: the fleet, the resources used by the broker, one flat result.
- `live`      the progress of a run.
- `report`    one run as a table or a JSON line, several runs of two brokers as ratios.
- `page`      one or several runs as an HTML page with plots.
- `launch`    starts a broker on one core, waits for it, ends it.
- `compare`   two brokers in turn under the same scenarios.
- `options`, `cli`  `shardbroker perf`.
- `curves`    cost over payload, subscribers, topics, connections, drawn by `svg`: `python -m perf.curves`.
- `crowd`     as many simultaneous connections as there is room for: `python -m perf.crowd`.

Every message carries the time it was due, its run, publisher and sequence number. So a run shows not only the speed of a broker,
but also each message that was lost, duplicated, reordered or misrouted. The load is closed-loop: a publisher has at most a window
of messages under way to its subscribers, so a slow broker is measured, not flooded. With a rate it is open-loop within that window,
and latency counts from the time a message was due, so that waiting is included. Every run of a scenario is bounded in messages and
in time.
"""

from perf.plan import Plan

__all__ = ["Plan"]
