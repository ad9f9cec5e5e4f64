"""What the processes of one broker share: theory of operation.

    roles        the processes, a row for each kind: numbers, inboxes, titles, order of draining
    channels     descriptor pairs between processes, a row for each kind: sender, receiver, socket, format
    destinations of routes: a kind and a number
    in_force     the settings in force: a file, and two generations in the slot of each process

    supervisor   creates all segments and the runtime directory before the first fork, removes them at the end (cleanup)

                 /dev/shm/shardbroker-<instance>/, see `runtime`        written by              read by
                 rings/inbox-<p>          lane q: records q -> p            q: head, p: consumed    p, q
                 counters    counters a slot per process                its process             manager, $SYS, acceptors
                 epochs      epochs   1024 buckets, wildcards, rotors process that changes a route every worker

                 LMDB environments, opened by each process for itself   written by              read by
                 <runtime>/routes        routes     filter -> destination     every worker      every worker, manager
                 <runtime>/registry-<w>  registry   client id -> record       worker w          manager
                 <data>/retained         retained   topic -> message          every worker      every worker, manager

Two kinds of memory. Segments (`ring`, `counters`, `epochs`) are words that compiled code reads and writes with atomic instructions:
no locks, so a process killed at any point leaves them usable, and its successor continues from the cursors. Tables (`routes`,
`registry`, `retained`) are LMDB: readers take no lock and see one snapshot, writers are serialised by a robust mutex, and an
unfinished transaction leaves no trace.

A message from worker q to worker p, which is asleep:

    q                                                        p
    match(topic), or q's topic cache if its epoch still holds
    has_room for every destination, or park the publisher
    reserve, fill in, commit         --- head --->           sleep flag set, lanes looked at, epoll_wait
    must_ring: takes the flag        --- eventfd --->        wakes, next ... next, hands out
    has_room again                   <--- consumed ---       release; rings q if q waits for room

A filter that gets its first subscriber on p: route added and committed, epoch of its bucket raised, SUBACK sent. A PUBLISH after
the SUBACK finds the epoch raised, looks the topic up in the table and finds the route.

A child that dies loses nothing that it had committed. Its successor attaches to the same inbox and finds the records not yet
released. The routes of the dead process, which led to lost sessions, are purged, all caches are voided, and its gauges start at 0.

Only segment mappings are carried across a fork. All files have mode 0600, directories 0700; owner, mode and sizes are checked
before attaching (`runtime`, `segment`, `Inbox.attach`). The order of locks, transactions and cursors is in docs/ordering.md.
"""

__all__ = [
    "channels", "cleanup", "counters", "destinations", "epochs", "events", "partitions", "records", "registry", "retained",
    "ring", "roles", "routes", "runtime", "segment", "spill", "topology",
]  # fmt: skip
