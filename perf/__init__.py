"""Load tests of MQTT brokers, from the outside: any broker, this one or another.

Read in this order:

- `plan`      a scenario and its numbers, and what follows from them: who publishes where, who subscribes to what.
- `engine`    compiled: all clients of a run in one thread on one epoll; publishes, acknowledges, checks, measures.
- `churn`     compiled: clients that connect, subscribe, disconnect and come again.
- `usage`     CPU time and memory of the broker's process tree.
- `report`    one run as a table or a JSON line, several runs of two brokers as ratios.
- `launch`    starts a broker on one core, waits for it, ends it.
- `compare`   two brokers in turn under the same scenarios.
- `cli`       `shardbroker perf`.

Every message carries the time it was due, its publisher and its sequence number, so a run says not only how fast a
broker was but also whether it lost, doubled, reordered or misrouted anything. The load is closed-loop: a publisher has
at most a window of messages under way to its subscribers, so a slow broker is measured, not flooded. With a rate it is
open-loop within that window, and latency counts from the time a message was due, so that waiting is not left out.
Every run is bounded in messages and in time.
"""

from perf.plan import Plan

__all__ = ["Plan"]
