"""Access rules of a listener, by address. The first rule that matches decides; without a match the address is allowed."""

from collections.abc import Sequence
from ipaddress import ip_network

__all__ = ["AccessRules"]


class AccessRules:
    """Rules such as "allow 10.0.0.0/8" and "deny all", validated with the configuration."""

    def __init__(self, rules: Sequence[str]) -> None:
        self._rules: list[tuple[int, int, int, bool]] = []
        """Size of an address, or 0 for all; network; mask; whether it is allowed."""
        for rule in rules:
            verdict, _, whom = rule.strip().partition(" ")
            if whom.strip() == "all":
                self._rules.append((0, 0, 0, verdict == "allow"))
            else:
                network = ip_network(whom.strip(), strict=False)
                size, mask = network.max_prefixlen // 8, int(network.netmask)
                self._rules.append((size, int(network.network_address), mask, verdict == "allow"))
        self.open = not self._rules or (self._rules[0][0] == 0 and self._rules[0][3])
        """Every address is allowed: no lookup is needed."""

    def allow(self, host: bytes) -> bool:
        """Returns whether this address, 4 or 16 bytes, may connect."""
        number = int.from_bytes(host)
        for size, network, mask, verdict in self._rules:
            if not size or (size == len(host) and number & mask == network):
                return verdict
        return True
