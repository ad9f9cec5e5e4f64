"""Lines of an acceptor for the log: how many a second, and that no stranger writes lines of its own."""

import os
import socket

import pytest

from acceptor.notices import NOTICE_BYTES, NOTICES_A_SECOND, Notices, read_notice
from shardbroker.logs.phrases import Line, shown


def test_lines_a_second_are_bounded_and_the_others_are_counted() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far:
        far.setblocking(False)
        notices = Notices(near.fileno())
        for number in range(3 * NOTICES_A_SECOND):
            notices.log("info", Line(f"{number} " + "x" * 10_000), 5000 + number)
        notices.log("info", Line("later"), 6000)
        got = []
        while len(got) <= NOTICES_A_SECOND:
            got.append(read_notice(far.recv(NOTICE_BYTES)))
        with pytest.raises(BlockingIOError):
            far.recv(NOTICE_BYTES)
    assert [text.split()[0] for _, text, _ in got[:-1]] == [str(number) for number in range(NOTICES_A_SECOND)]
    assert max(len(text) for _, text, _ in got) <= NOTICE_BYTES // 4
    assert got[-1] == ("info", "later", 2 * NOTICES_A_SECOND)
    os.close(notices._channel.detach())


@pytest.mark.parametrize("text", ["a\nINFO forged", "a\r\n\x1b[2J", "\u2028\u202e\x85", 'a" reason="b', "\\"])
def test_what_a_stranger_sends_stays_within_its_quotes(text: str) -> None:
    value = shown(text)
    assert value.isprintable() and len(value.splitlines()) == 1
    assert value[0] == value[-1] == '"' and '"' not in value[1:-1].replace("\\\\", "").replace('\\"', "")
