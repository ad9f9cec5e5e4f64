"""dnsmasq from Debian: a DNS server with records of a test."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dns import message, query
from dns.exception import DNSException

from tests.harness.needed import needed
from tests.servers.processes import folder
from tests.servers.service import Service, service

__all__ = ["dns"]


@contextmanager
def dns(host: str, port: int, records: Sequence[str]) -> Iterator[Service]:
    """Answers with these records alone, options of dnsmasq such as `--host-record=NAME,ADDRESS`."""
    command = [
        needed("dnsmasq"), "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--no-daemon",
        f"--listen-address={host}", "--bind-interfaces", f"--port={port}", "--local=/test/", "--pid-file=", *records,
    ]  # fmt: skip

    def answers() -> bool:
        try:
            query.udp(message.make_query("ready.test", "A"), host, 0.5, port)
        except (OSError, DNSException):
            return False
        return True

    with folder() as where, service(command, port, answers, where, as_nobody=False) as one:
        yield one
