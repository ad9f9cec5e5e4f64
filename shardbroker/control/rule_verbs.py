"""Verbs of rules."""

from typing import Annotated

from pydantic import Field, StringConstraints

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Page, Params, Verb, argument, table

__all__ = ["OneRule", "RuleChange", "RuleList", "RulePast", "RuleSettings", "RuleTrial"]

RuleId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Sql = Annotated[str, StringConstraints(min_length=1, max_length=65_536)]
Name = Annotated[str, StringConstraints(max_length=256)]
Description = Annotated[str, StringConstraints(max_length=4096)]
Actions = Annotated[str, StringConstraints(max_length=262_144)]
ACTIONS = """Actions as a JSON array, such as '[{"function": "republish", "args": {"topic": "out/${clientid}"}}]'."""


Metadata = Annotated[str, StringConstraints(max_length=65_536)]
METADATA = "What programs keep about the rule, as a JSON object of at most 16,384 bytes."
CONTEXT = """Columns as a JSON object, such as '{"topic": "t/1"}'; others have example values."""


class OneRule(Params):
    """A rule."""

    id: RuleId = argument("Id of the rule.")


class RuleList(Page):
    """Rules, filtered and paged."""

    enable: bool | None = Field(None, description="Rules that are enabled, or disabled.")
    like_id: str | None = Field(None, description="Ids that contain this text.")
    topic: str | None = Field(None, description="Rules with exactly this topic filter behind FROM.")


class RuleSettings(OneRule):
    """A rule that is made."""

    sql: Sql = argument("The rule, see rules.md.")
    actions: Actions = Field("[]", description=ACTIONS)
    name: Name = Field("", description="Name for people.")
    description: Description = Field("", description="What the rule is for.")
    enable: bool = Field(True, description="Whether the rule is evaluated.")
    metadata: Metadata = Field("{}", description=METADATA)


class RuleTrial(OneRule):
    """Columns for a rule."""

    context: Actions = Field("{}", description=CONTEXT)
    carry_out: bool = Field(False, description="Carry the actions out, instead of showing what they would do.")


class RulePast(Params):
    """A rule, and over what it is evaluated."""

    sql: Sql = argument("The rule, see rules.md.")
    last: int = Field(100, ge=1, le=100, description="Messages and events that FROM matches, the last ones that journals have.")


class RuleChange(OneRule):
    """Fields of a rule that change."""

    sql: Sql | None = Field(None, description="The rule, see rules.md.")
    actions: Actions | None = Field(None, description=ACTIONS)
    name: Name | None = Field(None, description="Name for people.")
    description: Description | None = Field(None, description="What the rule is for.")
    enable: bool | None = Field(None, description="Whether the rule is evaluated.")
    metadata: Metadata | None = Field(None, description=METADATA)


table(
    Verb("rules list", "Rules with counts of messages.", RuleList,
         columns=("id", "status", "from", "matched", "passed", "failed", "sql")),
    Verb("rules show", "One rule with its figures.", OneRule),
    Verb("rules create", "Makes a rule; it sees each message published after the response.", RuleSettings, changes=True),
    Verb("rules update", "Changes fields of a rule, which continues at its position.", RuleChange, changes=True),
    Verb("rules delete", "Removes a rule.", OneRule, changes=True,
         rest=(Rest("DELETE /rules/{id}", "Rules", "delete_rule", "nothing"),)),
    Verb("rules try", "Evaluates a rule in force over one message or event, and shows what its actions make of it.", RuleTrial,
         changes=True),
    Verb("rules past", "Evaluates a rule over the last messages and events of the journals, without its actions.", RulePast,
         columns=("occurred_at", "topic", "result", "error"), changes=True,
         rest=(Rest("POST /rule_test/past", "Rules", "test_rule_over_the_past"),)),
    Verb("rules reset", "Sets the figures of a rule to 0.", OneRule, changes=True,
         rest=(Rest("PUT /rules/{id}/metrics/reset", "Rules", "reset_rule", "nothing"),)),
)  # fmt: skip
