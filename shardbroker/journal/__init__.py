"""The events of a worker, in order, on disk: the log from which its sessions are recovered, and the feed for analytics.

    worker                                          <data>/journal/<worker>/            any process
    encode.log_...  -> Writer: open block           00000000000000000000.sbj            read -> Block | Damage
    Writer.append   ->    | seal, every pass        00000000000000048211.sbj               Block.records()
                          +---- one write ------>   00000000008589934592.sbj
    durable <-------------+---- fdatasync in a thread, level `machine`

All writes append. A pass of the worker's loop is a block with a checksum; blocks fill segments. A new writer (incarnation)
begins a new segment and never changes an old one, so a start needs no repair: each reader skips a torn block.

A position is the number of the next record. A promise to a client depends on one: the acknowledgement of a record appended while
`writer.next_sequence` was p may be sent once `writer.durable` >= p. At level `process` this holds once the kernel has the block,
at `machine` once the disk has it.

A failing disk is a state of the writer (`state`, `problem`, `full`), never an exception and never a loss: records that were not
written stay in memory, and each `seal` retries them. The reaction (hold acknowledgements, or continue without capture) is the
worker's policy.

Modules: `schema` (records), `layout` (headers), `cbor`, `encode`, `decode`, `writer`, `follow` (compiled), `opening`, `reader`,
`trust`, `repair`, `retention`, `holds`, `retired`. The format is docs/journal-format.md.
"""

from shardbroker.journal.errors import JournalBusy, JournalError, JournalMissing, JournalTooNew
from shardbroker.journal.opening import lock, open_journal
from shardbroker.journal.reader import Block, Damage, find_end, journal_directories, read, read_segment
from shardbroker.journal.repair import Report, repair, verify
from shardbroker.journal.retention import Removed, apply_retention
from shardbroker.journal.start import recovery_start, set_recovery_start
from shardbroker.journal.trust import trusted
from shardbroker.journal.writer import Writer

__all__ = [
    "Block",
    "Damage",
    "JournalBusy",
    "JournalError",
    "JournalMissing",
    "JournalTooNew",
    "Removed",
    "Report",
    "Writer",
    "apply_retention",
    "find_end",
    "journal_directories",
    "lock",
    "open_journal",
    "read",
    "read_segment",
    "recovery_start",
    "repair",
    "set_recovery_start",
    "trusted",
    "verify",
]
