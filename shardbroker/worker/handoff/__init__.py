"""A worker process is replaced while its clients stay connected; docs/design/0016-handover.md.

    protocol       messages between the two processes, and the descriptors that travel along
    predecessor    stops reading, writes its state, waits for the successor, and ends or continues
    successor      takes the state over, and serves
    departure      all workers end, and another number of them follows: hands its connections to each of those
    arrival        takes the connections of its sessions from all workers before
    state          sessions and connections of a worker as bytes, and back
    connections    one connection as plain values, and back
"""
