"""The start of a worker: its sessions are recovered from the journal, and the journal is continued.

    start         the steps in their order, and the files and rings that they need
    replay        journals -> sessions, as they were at the last block; what was forwarded, deferred and consumed
    rings         messages that were under way in rings, or were recorded and never sent
    repartition   sessions that another number of workers, or other weights, give to another worker
    sessions      recovered sessions are recorded; once all workers serve, they are resumed

A block is a pass of the worker that wrote it: all of it happened, or nothing. Nothing that a client or another worker received can
be newer than the last block (docs/design/0002-durability.md). session/image.pyx applies single records to sessions.
"""
