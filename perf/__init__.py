"""Load tests of MQTT brokers, from the outside: any broker, this one or another.

Read in this order:

- `plan`      a scenario and its numbers, and what follows from them: who publishes where, who subscribes to what.
- `clients`   compiled: connections on one epoll; opening, reading, writing.
- `engine`    compiled: what the clients of a load process do; publishes, acknowledges, checks, measures.
- `arrivals`  compiled: clients that connect, subscribe, disconnect and come again, or take one another over.
- `share`     compiled: memory in which several load processes tell how far they are.
- `fleet`     the load processes of a run.
- `usage`     CPU time and memory of the broker's process tree.
- `measure`   one run: the fleet, what the broker used, one flat result.
- `live`      how it goes, while it goes.
- `report`    one run as a table or a JSON line, several runs of two brokers as ratios.
- `page`      one or several runs as an HTML page with plots.
- `launch`    starts a broker on one core, waits for it, ends it.
- `compare`   two brokers in turn under the same scenarios.
- `options`, `cli`  `shardbroker perf`.
- `curves`    cost over payload, subscribers, topics, connections, drawn by `svg`: `python -m perf.curves`.
- `crowd`     as many connections at once as there is room for: `python -m perf.crowd`.

Every message carries the time it was due, its run, publisher and sequence number, so a run says not only how fast a broker was
but also whether it lost, doubled, reordered or misrouted anything. The load is closed-loop: a publisher has at most a window of
messages under way to its subscribers, so a slow broker is measured, not flooded. With a rate it is open-loop within that window,
and latency counts from the time a message was due, so that waiting is not left out. Every run of a scenario is bounded in messages
and in time.
"""

from perf.plan import Plan

__all__ = ["Plan"]
