"""Packet ids of QoS 2 messages that have arrived, until the server has released them: `<data>/flows/mqtt/received/<digest>`.

    one line for each change: `+<id>` received, `-<id>` released

One file for each client id, whose process is the only writer. An id is in the file before its PUBREC is sent, and after workers
have consumed the message. So a message whose PUBREC or PUBREL is lost is not published again, also after a kill. After a kill
between the two, some milliseconds, the message is published again.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from shardbroker.stores.files import replace_file

__all__ = ["ReceivedIds"]

DIRECTORY = Path("flows") / "mqtt" / "received"
"""In the data directory."""
LINES_MAX = 100_000
"""Lines after which the file is written again with what is left."""
LINE = re.compile(rb"([+-])([0-9]{1,5})\n")


class ReceivedIds:
    """Of a client id. synced: whether each write is a sync. data_dir: None: nothing outlives the process, as for a probe."""

    def __init__(self, data_dir: Path | None, client_id: str, synced: bool) -> None:
        digest = hashlib.sha256(client_id.encode(errors="surrogateescape")).hexdigest()[:32]
        self._path = data_dir / DIRECTORY / digest if data_dir is not None else None
        self._synced = synced
        self._file, self._lines = -1, 0
        self._ids: set[int] = set()
        if self._path is not None:
            with suppress(FileNotFoundError):
                for sign, number in LINE.findall(self._path.read_bytes()):
                    self._ids.add(int(number)) if sign == b"+" else self._ids.discard(int(number))

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._ids

    def add(self, packet_ids: Iterable[int]) -> None:
        """Raises OSError."""
        new = [one for one in packet_ids if one not in self._ids]
        self._ids.update(new)
        self._append(b"+", new)

    def remove(self, packet_id: int) -> None:
        """Raises OSError."""
        if packet_id in self._ids:
            self._ids.discard(packet_id)
            self._append(b"-", [packet_id])

    def clear(self) -> None:
        """Forgets all, as the server has forgotten the session. Raises OSError."""
        if self._ids:
            self._ids.clear()
            self._rewrite()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, sign: bytes, packet_ids: list[int]) -> None:
        if self._path is None or not packet_ids:
            return
        if self._file < 0 or self._lines >= LINES_MAX:
            self._rewrite()
            return
        os.write(self._file, b"".join([sign + b"%d\n" % one for one in packet_ids]))
        if self._synced:
            os.fdatasync(self._file)
        self._lines += len(packet_ids)

    def _rewrite(self) -> None:
        """Writes what is there, and opens the file for what follows."""
        if self._path is None:
            return
        self.close()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path, b"".join([b"+%d\n" % one for one in sorted(self._ids)]), sync=self._synced)
        self._file, self._lines = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), len(self._ids)
