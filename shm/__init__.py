"""What the processes of one broker share: theory of operation.

    roles        the processes, a row for each kind: numbers, inboxes, titles, order of draining
    channels     descriptor pairs between processes, a row for each kind: sender, receiver, socket, format
    destinations where a route leads: a kind and a number

    supervisor   creates all segments and the runtime directory before the first fork, removes them at the end (cleanup)

                 /dev/shm/shardbroker-<instance>/, see `runtime`        written by              read by
                 rings/inbox-<p>          lane q: records q -> p            q: head, p: consumed    p, q
                 counters    counters a slot per process                its process             manager, $SYS, acceptors
                 epochs      epochs   1024 buckets, wildcards, rotors   who changes a route     every worker

                 LMDB environments, opened by each process for itself   written by              read by
                 <runtime>/routes        routes     filter -> destination     every worker      every worker, manager
                 <runtime>/registry-<w>  registry   client id -> record       worker w          manager
                 <data>/retained         retained   topic -> message          every worker      every worker, manager

Two kinds of memory. Segments (`ring`, `counters`, `epochs`) are words that compiled code reads and writes with atomic
instructions: no locks, so a process killed anywhere leaves them usable, and whoever takes its place goes on from the cursors.
Tables (`routes`, `registry`, `retained`) are LMDB: readers take no lock and see one moment, writers are serialised by a robust
mutex, and a transaction that its process did not finish has never been.

A message on its way from worker q to worker p, p being asleep:

    q                                                        p
    match(topic), or q's topic cache if its epoch still holds
    has_room for every destination, or park the publisher
    reserve, fill in, commit         --- head --->           sleep flag set, lanes looked at, epoll_wait
    must_ring: takes the flag        --- eventfd --->        wakes, next ... next, hands out
    has_room again                   <--- consumed ---       release; rings q if q waits for room

A filter that gets its first subscriber on p: route added and committed, epoch of its bucket raised, SUBACK sent. Whoever
publishes after the SUBACK finds the epoch raised, asks the table and finds the route.

A child that dies loses nothing that it had committed. Its successor attaches to the same inbox and finds what it had not
released; its routes, which led to sessions that are gone, are purged and all caches voided; its gauges start at 0.

Nothing here is carried across a fork but segment mappings. Everything is mode 0600, directories 0700; owner, mode and sizes of
what is attached are checked first (`runtime`, `segment`, `Inbox.attach`). The order of locks, transactions and cursors is in
docs/ordering.md.
"""

__all__ = [
    "channels", "cleanup", "counters", "destinations", "epochs", "events", "partitions", "records", "registry", "retained",
    "ring", "roles", "routes", "runtime", "segment", "spill", "topology",
]  # fmt: skip
