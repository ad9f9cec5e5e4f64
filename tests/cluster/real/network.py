"""A network namespace for each node, linked by a switch that delays, loses and cuts (tests/cluster/real/switch.py).

The namespaces have no names: each one ends with the last process and descriptor that uses it, however the test ends.
"""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fcntl import ioctl
from functools import cache
from itertools import permutations
from pathlib import Path
from struct import pack
from threading import Thread
from typing import Any

import pytest

from tests.cluster.real.switch import EVERYTHING, LINK_PORT, PACKET_BYTES
from tests.harness.client import Address

__all__ = ["Network", "network"]

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
OWN = "/proc/thread-self/ns/net"
LINEAR = Path("/proc/sys/net/ipv4/tcp_syn_linear_timeouts")
"""Since Linux 6.5: how many SYNs are sent again after a second each. Without it the pauses are 1, 2, 4 s, as on Debian 12."""
SWITCH_S = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@cache
def why_not() -> str:
    """Returns why there is no network of this kind here; empty if there is one."""
    if os.geteuid() != 0:
        return "needs root: makes network namespaces"
    if shutil.which("ip") is None:
        return "needs ip"
    if not Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    try:
        os.close(_make_namespace())
    except OSError as error:
        return f"namespaces: {error.strerror}"
    return ""


def _make_namespace() -> int:
    """Returns a descriptor of a new network namespace."""
    made: list[int | OSError] = []

    def make() -> None:
        try:
            _checked(_libc.unshare(CLONE_NEWNET))
            made.append(os.open(OWN, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            made.append(error)

    thread = Thread(target=make)  # which ends in the new namespace, and leaves all others where they are
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


class Network:
    """The namespaces of nodes 1 to `count`, each with the address 10.0.0.<number>."""

    def __init__(self, count: int) -> None:
        self._namespaces: dict[int, int] = {}
        self._switch: subprocess.Popen[str] | None = None
        with ExitStack() as stack:
            stack.callback(self.close)
            devices = []
            for number in range(1, count + 1):
                self._namespaces[number] = _make_namespace()
                with self.entered(number):
                    devices.append(os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC))
                    stack.callback(os.close, devices[-1])
                    ioctl(devices[-1], TUNSETIFF, pack("16sH22x", b"switch", IFF_TUN | IFF_NO_PI))
                    lines = [
                        "link set lo up",
                        f"link set switch mtu {PACKET_BYTES} up",
                        f"addr add {self.host(number)}/24 dev switch",
                    ]
                    if LINEAR.exists():
                        LINEAR.write_text("0")
                    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
            self._switch = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.real.switch", *map(str, devices)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=devices, start_new_session=True,
            )  # fmt: skip
            self.counts()
            for device in devices:
                os.close(device)
            stack.pop_all()

    def close(self) -> None:
        if self._switch is not None:
            assert self._switch.stdin is not None and self._switch.stdout is not None
            self._switch.stdin.close()
            self._switch.stdout.close()
            if self._switch.wait(SWITCH_S):
                raise AssertionError(f"the switch ended with code {self._switch.returncode}")
            self._switch = None
        while self._namespaces:
            os.close(self._namespaces.popitem()[1])

    def host(self, number: int) -> str:
        return f"10.0.0.{number}"

    def address(self, number: int) -> str:
        """Returns the address for the links of a node."""
        return f"{self.host(number)}:{LINK_PORT}"

    @contextmanager
    def entered(self, number: int) -> Iterator[None]:
        """Moves this thread into the namespace of a node: its sockets and processes are made there."""
        before = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _checked(_libc.setns(self._namespaces[number], CLONE_NEWNET))
            try:
                yield
            finally:
                _checked(_libc.setns(before, CLONE_NEWNET))
        finally:
            os.close(before)

    def dial(self, number: int, address: Address) -> socket.socket:
        """Returns a connection to an address in the namespace of a node."""
        with self.entered(number):
            return socket.create_connection(address, SWITCH_S)

    # --- faults --------------------------------------------------------------------------------------------------------

    def _do(self, what: str, **arguments: Any) -> Any:
        assert self._switch is not None and self._switch.stdin is not None and self._switch.stdout is not None
        self._switch.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._switch.stdin.flush()
        answer = self._switch.stdout.readline()
        assert answer, "the switch has ended"
        return json.loads(answer)

    def _change(self, ways: Iterable[tuple[int, int]], **changes: Any) -> None:
        self._do("ways", ways=[*ways], **changes)

    def between(self, *groups: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the ways from each node to those of other groups; without groups those between all nodes."""
        parts = groups or [(number,) for number in self._namespaces]
        return [(source, target) for some, others in permutations(parts, 2) for source in some for target in others]

    def slow(self, delay_s: float, loss: float = 0.0) -> None:
        """Delays each packet, and loses some."""
        self._change(self.between(), delay_s=delay_s, loss=loss)

    def split(self, *groups: Sequence[int], channel: int = EVERYTHING) -> None:
        """Drops all packets between groups of nodes, or those of one channel."""
        self._change(self.between(*groups), cut=[channel])

    def cut(self, source: int, target: int) -> None:
        """Drops all packets from one node to another, and none in the other direction."""
        self._change([(source, target)], cut=[EVERYTHING])

    def heal(self) -> None:
        self._change(self.between(), cut=[])

    def reset(self, one: int, other: int, channel: int) -> None:
        """Resets the connection of a channel between two nodes."""
        found = self._do("reset", nodes=[one, other], channel=channel)
        assert found == 1, f"{found} connections of channel {channel} between {one} and {other}"

    def counts(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Returns for each way the packets that have passed, and those that were dropped."""
        return {(source, target): (passed, dropped) for source, target, passed, dropped in self._do("counts")}


@contextmanager
def network(count: int) -> Iterator[Network]:
    """A network of nodes; skips the test where there can be none."""
    if reason := why_not():
        pytest.skip(reason)
    made = Network(count)
    try:
        yield made
    finally:
        made.close()
