"""The link processes: connections to other nodes of the cluster. link-0 has the signals of all peers, link-1 and above their data.

The state machines are in `shardbroker/cluster`; this package has their sockets, frames, clocks and shared memory.
"""
