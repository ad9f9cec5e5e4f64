"""Records in the rings: one per message and destination process.

    RecordHeader | topic | properties | client id | group | filter | payload        (sizes are in the header)

In the lane of a link process each record begins with an ArrivalHeader: the message is of another node, and its parts are as they
were in the ring there.

A record too large for a ring is spilled: the ring carries the header with FLAG_SPILLED and the name of a file in the spill
directory as its topic; the reader maps the file, whose contents are the whole record, and unlinks it.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum RecordKind:
    RECORD_PUBLISH = 1                 # for every local subscriber of the topic
    RECORD_SHARED = 2                  # for one member of a shared group: `member`
    RECORD_EVENT = 3                   # to the manager: bytes of shm/events.py in the payload
    RECORD_PAUSE = 4                   # `client id` fills the queues of the sender, whose memory is short: pause reading from it
    RECORD_COMMAND = 5                 # from the manager to a worker: CBOR in the payload, see worker/commands.pyx
    RECORD_ANSWER = 6                  # the worker's answer to it
    RECORD_NOTE = 7                    # to the manager: a line for its log, with the level in the topic
    RECORD_TRACE = 8                   # to the manager: an event for traces, CBOR in the payload, see worker/observers/traces.pxd
    RECORD_KEEP = 9                    # from a link process: streams of a node that go on, u64 identities in the payload
    RECORD_REPLAY = 10                     # for the replay or look-up `member`: a message, or without a topic how far it is; a ReplayPlace in the group
    RECORD_FED = 11                        # from a process flows: an event of a source for rules: name in the topic, CBOR columns in the payload
    RECORD_BRIDGED = 12                    # from a process flows: a message of another broker; a BridgePlace (shm/bridged.pxd) in the group
    RECORD_PRESSED = 13                # the queue of session `member` of the sender is full: acknowledgements to `client id` wait
    RECORD_RELEASED = 14               # they do not wait for that session any more

cdef enum RecordFlag:
    FLAG_QOS = 3                       # two bits
    FLAG_RETAIN = 4                    # as the publisher set it
    FLAG_ORIGINATE = 8                 # the receiver treats it as published there: retains it, routes it on
    FLAG_SPILLED = 16
    FLAG_NOTED = 32                    # the sender's journal has it: the receiver's journal acknowledges it
    FLAG_ANSWERED = 64                 # of a client's PUBLISH: if the QoS is not 0 it is acknowledged or will be, and no full queue may leave it out

cdef packed struct RecordHeader:
    uint8_t kind
    uint8_t flags
    uint8_t payload_format
    uint8_t attempts                   # RECORD_SHARED: members tried before
    uint32_t topic_size
    uint32_t properties_size
    uint32_t client_size
    uint32_t group_size
    uint32_t filter_size
    uint32_t payload_size
    uint32_t sent_us                   # CLOCK_MONOTONIC in µs, its low 32 bits, when the sender's pass began
    uint64_t id_high                   # message id: µs since the epoch
    uint64_t id_low                    # node 16 | process 32 | sequence 16
    uint64_t expires_ms                # Unix ms, 0: never
    uint64_t member                    # session key of the selected member

cdef packed struct ArrivalHeader:
    uint32_t origin                    # node id
    uint32_t zero
    uint64_t identity                  # of the stream, which is that of the ring on the origin; 0: RECORD_KEEP
    uint64_t position                  # in the stream, behind the record; 0: RECORD_KEEP

cdef enum FoundKind:                       # ReplayPlace.journal of a record for a look-up, whose id is in position and incarnation
    IS_MESSAGE = 1
    IS_RETAINED = 2                        # the retained message
    IS_NO_RETAINED = 3                     # no retained message; without a topic
    IS_PAGE_END = 4                        # more follows behind the id, at the next request; without a topic
    IS_END = 5                             # nothing follows; without a topic

cdef packed struct ReplayPlace:
    uint32_t journal
    uint32_t over                      # 1: this is the end of the replay
    uint64_t position                  # in the journal, behind the record
    uint64_t incarnation               # of the record's segment; 0: not known

cdef uint64_t record_size(const RecordHeader* header) noexcept
# Checks that the sizes in the header match the record. Raises ValueError.
cdef int check_record(const uint8_t* record, uint64_t size) except -1
