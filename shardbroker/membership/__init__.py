"""Membership kept by etcd: the process `cluster`, which has this node's lease there and follows those of the others.

    etcd        client of the store: keys, transactions, leases, watches, over several endpoints
    messages    its messages, built from descriptors when the process starts

The state machines are in `shardbroker/cluster`; this package has their connections, clocks and files.
"""
