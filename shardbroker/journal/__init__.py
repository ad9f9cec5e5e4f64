"""What happened on a worker, in order, on disk: the log its sessions are recovered from, and the feed for analytics.

    worker                                          <data>/journal/<worker>/            anybody
    encode.log_...  -> Writer: open block           00000000000000000000.sbj            read -> Block | Damage
    Writer.append   ->    | seal, every pass        00000000000000048211.sbj               Block.records()
                          +---- one write ------>   00000000008589934592.sbj
    durable <-------------+---- fdatasync in a thread, level `machine`

Everything is appended. A pass of the worker's loop is a block with a checksum; blocks fill segments; a new writer (incarnation)
begins a new segment and never touches an old one, so a start needs no repair: what was torn is skipped by every reader.

A position is the number of the next record. What a client was promised hangs on one: the acknowledgement of what was appended while
`writer.next_sequence` was p may leave once `writer.durable` >= p. At level `process` that is so when the kernel has the block,
at `machine` when the disk has it.

A disk that refuses is a state of the writer (`state`, `problem`, `full`), never an exception and never a loss: what was not written
stays in memory and is tried again by every `seal`. What to do meanwhile (hold acknowledgements, or go on without capture) is the
worker's policy.

Modules: `schema` (records), `layout` (headers), `cbor`, `encode`, `writer` (compiled), `opening`, `reader`, `trust`, `repair`,
`retention`. The format is docs/journal-format.md.
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
