"""Messages about replays between workers and the processes flows: CBOR arrays, the verb first.

    worker -> flows   ["begin", number, filter, start_us, end_us, {journal: position}, {journal: incarnation}, rate, age_us, key]
                                                             end_us None: without an end; age_us, key: of a stream, else 0 and None
                      ["credit", number, records, bytes]     so much was delivered
                      ["end", number]
                      ["reset"]                              no replay of this worker runs
                      ["lookup", number, database, client id, topic, after, before, rows, retained, connector, actions,
                       positions, range_s]
                                                             a page of messages in a database with ids between two, and maybe the
                                                             retained one (flows/lookups.py); rows 0: the retained one alone
                      ["lookup_end", number]                 its answer is not needed
    flows -> worker   ["hello"]                              a process has started, and knows no replay

The messages of a replay themselves are records in a ring (records.pxd), at most WINDOW_RECORDS and WINDOW_BYTES under way: they
wait in the worker until the client takes them. A replay has another number each time it begins, so what was sent for the time
before is dropped. Numbers are those of a worker: another worker may choose the same ones.
"""

from typing import Any

import cbor2

__all__ = ["MESSAGE_MAX", "WINDOW_BYTES", "WINDOW_RECORDS", "decode", "encode"]

WINDOW_RECORDS = 2048
"""Records of a replay under way: 10 ms at 200,000 a second, in which credit has to be returned."""
WINDOW_BYTES = 512 << 10
"""Bytes of their topics, properties and payloads; one larger record is sent by itself."""
MESSAGE_MAX = 128 << 10
"""Bytes of a message: a filter of 64 KB, and positions and incarnations of 1,024 journals."""


def encode(verb: str, *values: Any) -> bytes:
    """Returns a message."""
    return cbor2.dumps([verb, *values])


def decode(message: bytes) -> list[Any]:
    """Returns the verb and its values. Raises ValueError."""
    try:
        values = cbor2.loads(message)
    except (cbor2.CBORDecodeError, RecursionError, OverflowError) as error:
        raise ValueError(f"message: must be CBOR: {error}") from None
    if not isinstance(values, list) or not values or not isinstance(values[0], str):
        raise ValueError("message: must be an array that begins with a verb")
    return values
