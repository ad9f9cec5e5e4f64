"""Verbs of an upgrade to the installed code. There is no route: the installation is replaced on the machine itself."""

from pydantic import Field

from shardbroker.control.verbs import Params, Verb, table

__all__ = ["Begin"]


class Begin(Params):
    drain: bool = Field(True, description="Go on if clients have to be disconnected; otherwise nothing is begun then.")


table(
    Verb("upgrade", "Moves the broker to the installed code; clients stay connected where possible.", Begin, changes=True),
    Verb("upgrade-check", "Runs the installed code beside the broker, and shows what an upgrade would do with each process."),
    Verb("upgrade-state", "Progress of the upgrade that is under way, or was the last one."),
)
