"""The route table of a running broker, for routes that no subscription makes."""

from hashlib import sha256

from shm.epochs import Epochs
from shm.routes import RouteChange, RouteTable
from shm.runtime import find_runtime_dir
from tests.harness.broker import Broker

__all__ = ["Routes"]


class Routes:
    """Changes are in force for the next message of every worker."""

    def __init__(self, broker: Broker) -> None:
        directory = find_runtime_dir(sha256(str(broker.data_dir.resolve()).encode()).hexdigest()[:12])
        assert directory is not None
        self._table, self._epochs = RouteTable(directory / "routes"), Epochs.attach(str(directory / "epochs"))

    def change(self, add: bool, filter: bytes, to: int, group: bytes = b"", member: int = 0) -> None:
        self._table.update([RouteChange(add, filter, to, group, member)])
        self._epochs.bump_of(filter)
