"""Commands of the manager to a worker that has not yet noticed that the broker serves."""

from pathlib import Path

import cbor2

from shardbroker.worker.commands import Commands
from shm.counters import Counters
from shm.records import COMMAND, encode_record
from shm.ring import Inbox
from tests.harness.workers import workers_in_process


def test_a_command_right_behind_the_start_of_the_broker_is_carried_out(tmp_path: Path) -> None:
    """The worker slept, with no core to wake up, while the broker began to serve and the command was sent."""
    with workers_in_process(tmp_path, count=1, serve=False) as together:
        (worker,), topology = together.workers, together.topology
        commands, executed = Commands(worker, topology.spill_dir), list[bytes]()

        def execute(record: bytes) -> bytes:
            executed.append(record)
            return bytes(commands(record))

        worker.command_queue.execute = execute
        worker.one_pass(0)
        Counters.attach(topology.counters_name).serve()
        command = encode_record(COMMAND, cbor2.dumps({"id": 1, "verb": "ping", "args": {}}))
        assert Inbox.attach(topology.inbox_name(0)).lanes[topology.manager].put(command)
        worker.one_pass(0)
        assert executed == [command]
