"""What each part of a preset writes, for all databases whose rows have keys."""

from typing import Any, NamedTuple

__all__ = ["Statements"]


class Statements(NamedTuple):
    """Statements in the form of a database, each of which changes nothing when it is repeated, or older than what is stored."""

    client: Any
    offline: Any
    """Of clients that were online before the start of the broker."""
    subscription: Any
    unsubscription: Any
    message: Any
    acked_message: Any
    """Removes a message."""
    retained: Any
    removed: Any
    """None: `retained` also removes."""
    position: Any

    def of_part(self, part: str, section: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the statement of a part, and others by the name that a row chooses them by."""
        deletes = {"delete": self.acked_message} if section.acked and section.on_acked == "delete" else {}
        of_parts: dict[str, tuple[Any, dict[str, Any]]] = {
            "clients": (self.client, {"offline": self.offline}),
            "subscriptions": (self.subscription, {"delete": self.unsubscription}),
            "messages": (self.message, deletes),
            "retained": (self.retained, {} if self.removed is None else {"delete": self.removed}),
            "acked": (self.position, {}),
        }
        return of_parts[part]
