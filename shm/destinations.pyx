"""Destinations of routes; see destinations.pxd."""

__all__ = [
    "FEED_DESTINATION", "KEPT_DESTINATION", "NUMBER_MAX", "DestinationKind", "destination", "destination_kind", "destination_name", "destination_number", "worker_destination",
]

FEED_DESTINATION = <long>FEED
"""To rules: a message with this destination is captured in the journal of its publisher's worker. No record is sent for it."""
KEPT_DESTINATION = <long>KEPT
"""To streams, likewise."""
NUMBER_MAX = (1 << <int>NUMBER_BITS) - 1
_NAMES = {int(kind): name.lower() for name, kind in DestinationKind.__members__.items()}


def destination(int kind, number) -> int:
    """Returns the destination `number` of a kind. Raises ValueError if the number has more than 24 bits."""
    if not 0 <= number <= NUMBER_MAX:
        raise ValueError(f"destination: must be a number from 0 to {NUMBER_MAX}, got {number}")
    return kind << <int>NUMBER_BITS | <long>number


def worker_destination(number) -> int:
    """Returns the destination of worker `number`."""
    return destination(WORKER, number)


def destination_kind(long value) -> int:
    """Returns the kind of a destination, which may be missing from DestinationKind."""
    return kind_of(value)


def destination_number(long value) -> int:
    """Returns the number of a destination within its kind."""
    return number_of(value)


def destination_name(long value) -> str:
    """Returns a destination as displayed: "worker-3", or "kind-9-3" for an unknown kind."""
    kind = kind_of(value)
    return f"{_NAMES.get(kind, f'kind-{kind}')}-{number_of(value)}"
