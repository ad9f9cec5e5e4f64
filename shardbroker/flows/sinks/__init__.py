"""Sinks: rows of rules are written to other systems, in batches, at least once, in order for each client.

    live stream of rules ─┐
                          ├─> buffer ─> lanes ─> batches ─> driver ─> server
    own reader, behind ───┘      └─ positions ─> cursor ─> hold of the journal

The journal is the queue; the buffer holds what is under way. A buffer that is full leaves the live stream of a journal, and its own
reader continues at the row that had no room; the rules and other sinks are not affected. The cursor of an action follows the lowest
position of a journal that is not done, so that a restart reads again what was in the buffer.

`action` is the core: without I/O, threads, clocks of its own and asyncio, over `positions`, `buffer`, `lane`, `batch`, `backoff`.
`driver` is the contract of the modules in `flows/drivers`. `runner` writes the batches in a thread of its own.
"""
