"""Verbs of connectors, actions and sources."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Page, Params, Verb, argument, table

__all__ = ["NewSink", "OneSink", "Rewind", "SinkChange", "SinkDelete", "SinkList", "SinkProbe"]

SinkId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,64}:[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Settings = Annotated[str, StringConstraints(max_length=262_144)]
SETTINGS = """Settings as a JSON object, such as '{"url": "http://127.0.0.1:8080"}'; a secret may be file:PATH."""


class OneSink(Params):
    """A connector, an action or a source."""

    id: SinkId = argument("Id, as type:name.")


class SinkList(Page):
    """Connectors, actions or sources, filtered and paged."""

    type: str | None = Field(None, description="Of this type.")
    like_id: str | None = Field(None, description="Ids that contain this text.")


class NewSink(OneSink):
    """A connector, an action or a source that is made."""

    definition: Settings = argument(SETTINGS)


class SinkChange(OneSink):
    """Settings that change."""

    definition: Settings = argument(SETTINGS)
    replace: bool = Field(False, description="Settings that are not given have their defaults, instead of staying as they are.")


class SinkDelete(OneSink):
    """What is removed."""

    also_delete_dep_actions: bool = Field(
        False, description="Actions and sources of the connector are removed as well, and references to actions in rules."
    )


class SinkProbe(OneSink):
    """What is tried."""

    definition: Settings = argument("Settings as a JSON object; by default those of the one with this id.", "")


class Rewind(OneSink):
    """Where an action continues."""

    at: str = argument("An age such as 15m, 2h, 7d, a time such as 2026-01-31T12:00:00Z, Unix ms, earliest or latest.")


def _verbs(
    kind: Literal["connectors", "actions", "sources"], one: str, users: str, tag: Literal["Connectors", "Actions", "Sources"]
) -> None:
    noun = kind[:-1]

    def ordered(verb: str, text: str) -> Verb:
        route = Rest(f"POST /{kind}/{{id}}/{verb}", tag, f"{verb}_{noun}", "nothing")
        return Verb(f"{kind} {verb}", f"{text}, for {one}.", OneSink, changes=True, rest=(route,))

    table(
        Verb(f"{kind} list", f"{tag} with their status.", SinkList,
             columns=("id", "status", "status_reason", "enable", "origin", users)),
        Verb(f"{kind} show", f"Settings and status of {one}.", OneSink),
        Verb(f"{kind} add", f"Makes {one}.", NewSink, changes=True),
        Verb(f"{kind} change", f"Changes settings of {one}.", SinkChange, changes=True),
        Verb(f"{kind} delete", f"Removes {one} that nothing uses.", SinkDelete, changes=True,
             rest=(Rest(f"DELETE /{kind}/{{id}}", tag, f"delete_{noun}", "nothing"),)),
        Verb(f"{kind} enable", f"Enables {one}.", OneSink, changes=True),
        Verb(f"{kind} disable", f"Disables {one}.", OneSink, changes=True),
        Verb(f"{kind} probe", "Tries to reach the server, and shows why that fails.", SinkProbe, changes=True),
        ordered("start", "Connects again"),
        ordered("stop", "Disconnects until it is started or changed"),
        ordered("restart", "Disconnects, and connects again"),
    )  # fmt: skip


_verbs("connectors", "a connector", "actions", "Connectors")
_verbs("actions", "an action", "rules", "Actions")
_verbs("sources", "a source", "rules", "Sources")
table(
    Verb("actions metrics", "Figures of an action.", OneSink),
    Verb("actions reset", "Sets the figures of an action to 0.", OneSink, changes=True,
         rest=(Rest("PUT /actions/{id}/metrics/reset", "Actions", "reset_action", "nothing"),)),
    Verb("sources metrics", "Figures of a source.", OneSink),
    Verb("sources reset", "Sets the figures of a source to 0.", OneSink, changes=True,
         rest=(Rest("PUT /sources/{id}/metrics/reset", "Sources", "reset_source", "nothing"),)),
    Verb("actions cursor", "Position of an action in the journals, and how far it is behind them.", OneSink,
         rest=(Rest("GET /actions/{id}/cursor", "Actions", "show_cursor"),)),
    Verb("actions rewind", "Lets an action continue at another time: rows since then are written again.", Rewind, changes=True,
         rest=(Rest("PUT /actions/{id}/cursor", "Actions", "rewind_action", "nothing"),)),
)  # fmt: skip
