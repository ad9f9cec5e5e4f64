"""Records in the lane of a process flows: messages of another broker (shardbroker/flows/bridge).

    RecordHeader | topic | properties | client id | BridgePlace | payload           kind RECORD_BRIDGED; `member` is the position

They are published by the worker that reads them like a PUBLISH of its own clients. The position is in its journal in the same block
as the messages that it covers, as that of streams of nodes (worker/arrivals.pxd), so a message that was sent again is dropped.
"""
from libc.stdint cimport uint32_t, uint64_t

cdef packed struct BridgePlace:        # the group of the record
    uint32_t origin                    # with the highest bit, which no number of a node has
    uint32_t zero
    uint64_t identity                  # of the stream: a journal of the other broker
