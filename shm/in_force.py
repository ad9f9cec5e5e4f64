"""The settings in force and the one road on which a change reaches a process; docs/design/0007-configuration.md.

    settings.cbor in the runtime directory     CBOR [generation, settings]     written by the manager
    slot of a process (counters.pyx)           wanted | applied                generations, by the manager and by the process

    manager    write the file -> raise `wanted` of each process that a changed key reaches -> ring the doorbell, if there is one
    process    wanted > seen -> load the file -> apply -> raise `applied`
    manager    wait until applied >= wanted in every process that is READY

The file is replaced before `wanted` is raised, so a process that has seen a generation loads this one or a later one. A process
that starts loads the file first; what changes after that it finds by `wanted`, which outlives the process.
"""

from pathlib import Path
from typing import Any

import cbor2

from shm.channels import dump_plain
from shm.counters import Counters
from shm.topology import Topology

__all__ = ["InForce", "encode_in_force", "read_in_force", "settings_file"]


def settings_file(runtime_dir: Path) -> Path:
    """Returns the path of the settings that have changed since the start of the broker; without a change there is no file."""
    return runtime_dir / "settings.cbor"


def encode_in_force(generation: int, settings: Any) -> bytes:
    """Returns the contents of the file. Secrets are written out: the directory is readable by this user alone."""
    return dump_plain([generation, settings.model_dump()])


def read_in_force(topology: Topology) -> tuple[int, Any]:
    """Returns (generation, settings): those of the start, generation 0, unless the file has later ones. Raises OSError."""
    try:
        data = settings_file(topology.runtime_dir).read_bytes()
    except FileNotFoundError:
        return 0, topology.settings
    generation, values = cbor2.loads(data)
    return generation, topology.parse_settings(values)


class InForce:
    """The settings in force as one process has them: loaded at its start, and again when `is_due`."""

    def __init__(self, topology: Topology, counters: Counters, slot: int) -> None:
        self._topology, self._counters, self._slot = topology, counters, slot
        self._loaded, self.settings = read_in_force(topology)
        self.generation = self._loaded
        self.applied()

    @property
    def is_due(self) -> bool:
        """Whether a change has reached this process that load() has not read. It costs one load from shared memory."""
        return bool(self._counters.settings_wanted(self._slot) > self.generation)

    def load(self) -> Any:
        """Returns the settings in force. Parsing takes about 8 ms. Raises OSError; a generation that fails is not due again."""
        self.generation = self._counters.settings_wanted(self._slot)
        self._loaded, self.settings = read_in_force(self._topology)
        self.generation = max(self.generation, self._loaded)
        return self.settings

    def applied(self) -> None:
        """Acknowledges what was loaded last. The manager reports a process that does not as behind."""
        self._counters.acknowledge_settings(self._slot, self._loaded)
