"""The cluster: cores without sockets, files and clocks, which the link processes drive.

A core takes messages, events and the time, and returns messages and other outputs as values. The same code therefore runs in the
simulation of a whole cluster (`tests/cluster`) and in a process. From the bottom up:

    faults, messages, outputs    what travels between nodes, and between a core and its driver
    rendezvous                   owners of the registry's partitions
    handshake                    identity and proof of a connection
    view                         members, links, state of the node
    rlog                         routes: each node owns its own and streams their log
    outbound, inbound            messages: positions, spool, exactly once
    clock, merge                 stamps of all nodes; which of two sessions stays, and what of the other one
    registry, takeover, claims   sessions: who holds which, and their way to the node of their client
    sessions                     the cores of sessions of one node, and the limits of their messages
    signals, data                the two kinds of channel, each a set of connections with the cores above

Decisions and findings: docs/design/0011-cluster.md.
"""
