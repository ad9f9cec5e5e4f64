"""The table of channels fits the table of processes, and the layout makes a pair for each two processes of a row."""

import gc
import os
import socket
from importlib import import_module
from pathlib import Path

from shardbroker.config import load
from shardbroker.supervisor.layout import lay_out, tear_down
from shm.channels import CHANNELS, SUPERVISOR
from shm.roles import ROLES

NAMES = [channel.name for channel in CHANNELS]


def test_the_table_can_be_used() -> None:
    known = {SUPERVISOR, *(role.name for role in ROLES)}
    assert len(set(NAMES)) == len(NAMES)
    for channel in CHANNELS:
        assert {channel.sender, channel.receiver} <= known
        assert import_module(channel.format).__doc__


def test_what_a_sender_sends_arrives_at_the_receiver(tmp_path: Path) -> None:
    options = {"process.data_dir": str(tmp_path), "listeners.default.bind": "127.0.0.1:0"}
    settings = load(None, None, ["process.workers=3", "process.acceptors=2"], options).settings
    counts = {"worker": 3, "acceptor": 2, "link": 0}  # no cluster, so no links
    gc.collect()  # descriptors of earlier tests
    before = {*os.listdir("/proc/self/fd")}
    topology = lay_out(settings, [0])
    try:
        assert [*topology.channels] == NAMES
        for channel in CHANNELS:
            for sender in range(counts.get(channel.sender, 1)):
                ends = topology.sending_ends(channel.name, sender)
                assert len(ends) == counts.get(channel.receiver, 1)
                for receiver, end in enumerate(ends):
                    text = f"{channel.name} {sender} {receiver}".encode()
                    os.write(end, text)
                    incoming = topology.receiving_ends(channel.name, receiver)
                    assert os.read(incoming[sender], 100) == text
                    assert (len({*incoming}) == 1) == (channel.shared or counts.get(channel.sender, 1) == 1)
                    with socket.socket(fileno=os.dup(end)) as opened:
                        assert opened.type == channel.kind
                assert not any(map(os.get_blocking, ends))
    finally:
        tear_down(topology)
    assert not {*os.listdir("/proc/self/fd")} - before
