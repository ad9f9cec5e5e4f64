"""Verbs of the presets that keep clients, subscriptions and messages in databases."""

from typing import Annotated

from pydantic import StringConstraints

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Params, Verb, argument, table

__all__ = ["OneDatabase"]

Name = Annotated[str, StringConstraints(max_length=64)]


class OneDatabase(Params):
    """A database of the section `persistence`."""

    database: Name = argument("Database, as in persistence.<db>; by default all that are in use.", "")


table(
    Verb("persistence show", "What the presets persistence.<db> expand to.", OneDatabase,
         columns=("database", "part", "rule", "action", "connector", "status", "status_reason"),
         rest=(Rest("GET /persistence", "Persistence", answer="data"),)),
    Verb("persistence create", "Creates the tables of presets that are missing; those that exist stay as they are.", OneDatabase,
         changes=True, columns=("database", "connector", "created"),
         rest=(Rest("POST /persistence/create", "Persistence", answer="data"),)),
)  # fmt: skip
