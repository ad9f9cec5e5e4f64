"""What in a broker's output says that something went wrong, though it went on. No client can bring such a line about: what clients
send stands in log lines behind `key=`, in quotes where it has spaces, and with its own quotes escaped."""

import re
from collections.abc import Container, Iterable, Iterator

__all__ = ["KILLED", "faults"]

_LOG = r"\S+ (?:DEBUG|INFO|WARNING|ERROR) "
_FAULT = re.compile(
    rf'{_LOG}supervisor: process (?:died process=\S+ pid=(?P<pid>\d+) cause="(?P<cause>[^"]+)" |killed after drain timeout )'
    rf'|{_LOG}[^="]*\binternal error\b'
    rf'|{_LOG}.* detail="internal error\b'
    r"|(?:.*: )?Traceback \(most recent call last\)|\s*[+|] Exception Group Traceback"
    r"|Exception ignored in|Fatal Python error|Segmentation fault"
    r"|(?:double free|free\(\)|malloc|munmap_chunk|corrupted |\*\*\* (?:stack smashing|buffer overflow))"
    r"|==\d+==\s*(?:ERROR|WARNING): \w+Sanitizer|(?!\S+ [A-Z]+ ).*: runtime error: "
)
KILLED = 'cause="signal SIGKILL"'
"""For tests that kill by other roads than `Broker.kill_process`."""
CONTEXT = 40
"""Lines that are shown behind the first one of a traceback."""


def faults(lines: Iterable[str], killed: Container[int] = (), expected: Iterable[str] = ()) -> Iterator[str]:
    """Yields each line that says of a crash, with what belongs to it. Not of processes that the test has killed with
    SIGKILL, and none in which one of the patterns of `expected` is found."""
    lines, expected = list(lines), list(expected)
    for number, line in enumerate(lines):
        found = _FAULT.match(line)
        if found is None or (found["pid"] and found["cause"] == "signal SIGKILL" and int(found["pid"]) in killed):
            continue
        text = line
        if "Traceback" in line or "Exception ignored" in line:
            text = "".join(lines[number : number + CONTEXT])
        if not any(re.search(pattern, text) for pattern in expected):
            yield text
