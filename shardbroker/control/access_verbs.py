"""Verbs of access control: users, rules, bans."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Params, Verb, argument, table

__all__ = [
    "AclAdd", "AclOf", "AclSet", "AclTest", "BannedAdd", "BannedDelete", "UserAdd", "UserDelete", "UserList",
]  # fmt: skip

Name = Annotated[str, StringConstraints(min_length=1, max_length=65535)]
UserKind = Literal["username", "clientid"]
RuleKind = Literal["username", "clientid", "all"]
BanKind = Literal["clientid", "username", "peerhost", "clientid_re", "username_re", "peerhost_net"]


class UserList(Params):
    """Which users."""

    kind: UserKind = Field("username", description="What they are known by.")
    scram: bool = Field(False, description="Those of auth.chain scram, in place of builtin.")


class UserAdd(Params):
    """A user, and the password, which is asked for or read from standard input."""

    name: Name = argument("User name or client id.")
    password: Name = Field(description="Never on the command line.")
    kind: UserKind = Field("username", description="What the name is.")
    superuser: bool = Field(False, description="May publish and subscribe everything.")
    scram: bool = Field(False, description="For auth.chain scram, in place of builtin.")


class UserDelete(Params):
    """One user."""

    name: Name = argument("User name or client id.")
    kind: UserKind = Field("username", description="What the name is.")
    scram: bool = Field(False, description="Of auth.chain scram, in place of builtin.")


class AclOf(Params):
    """Whose rules."""

    kind: RuleKind = argument("username, clientid or all.")
    name: str = argument("Whose; nothing for all.", "")


class AclSet(AclOf):
    """All rules of one user, one client or all."""

    rules: list[str] = Field(description='JSON of a rule: {"permission": "allow", "action": "publish", "topic": "a/#"}')


class AclAdd(AclOf):
    """One more rule, behind those there are."""

    permission: Literal["allow", "deny"] = Field("allow", description="What the rule says.")
    action: Literal["publish", "subscribe", "all"] = Field("all", description="About what.")
    topic: Name = Field(description="Topic filter; `eq ` before it makes it literal.")
    qos: str | None = Field(None, description="Such as 0 or 1,2.")
    retain: Literal["true", "false"] | None = Field(None, description="Of a publish.")


class AclTest(Params):
    """A question that a client might ask."""

    action: Literal["publish", "subscribe"] = argument("publish or subscribe.")
    topic: Name = argument("Topic, or topic filter.")
    clientid: str = Field("", max_length=65535, description="Client id.")
    username: str | None = Field(None, max_length=65535, description="User name; without, anonymous.")
    ip_address: str = Field("127.0.0.1", max_length=45, description="Address of the client.")
    listener: str = Field("default", description="Name of the listener.")
    qos: Literal[0, 1, 2] = Field(0, description="QoS.")
    retain: bool = Field(False, description="Of a publish.")


class BannedDelete(Params):
    """One ban."""

    kind: BanKind = argument("clientid, username, peerhost, clientid_re, username_re or peerhost_net.")
    value: Name = argument("Whom.")


class BannedAdd(BannedDelete):
    """A ban. Whoever falls under it and is connected is sent away."""

    seconds: float | None = Field(None, gt=0, description="How long; without, for good.")
    by: str = Field("ctl", max_length=400, description="Who bans, for the list.")
    reason: str = Field("", max_length=400, description="For the log and the list.")


table(
    Verb("users list", "Users of the broker's own store.", UserList, columns=("name", "superuser")),
    Verb("users add", "Adds a user, or changes the password of one.", UserAdd, changes=True),
    Verb("users delete", "Removes a user.", UserDelete, changes=True),
    Verb("acl list", "Rules of users, clients and all.", columns=("kind", "name", "rules")),
    Verb("acl set", "Takes the place of somebody's rules.", AclSet, changes=True),
    Verb("acl add", "Adds a rule behind somebody's rules.", AclAdd, changes=True),
    Verb(
        "acl test",
        "Whether the rules of the broker's own sources let a client publish or subscribe; `allowed` is null where another source "
        "decides.",
        AclTest,
        rest=(Rest("GET /authorization/test", "Access", "test_rules"),),
    ),
    Verb("acl delete", "Removes somebody's rules.", AclOf, changes=True),
    Verb(
        "acl reload",
        "Reads the files of rules and passwords again.",
        changes=True,
        rest=(Rest("POST /authorization/reload", "Access", "reload"),),
    ),
    Verb("banned list", "Who is not let in.", columns=("kind", "value", "until", "by", "reason", "at")),
    Verb("banned add", "Bans somebody, and ends their connections.", BannedAdd, changes=True),
    Verb(
        "banned delete",
        "Ends a ban.",
        BannedDelete,
        changes=True,
        rest=(Rest("DELETE /banned/{kind}/{who:name}", "Access", "delete_ban", "nothing", names={"who": "value"}),),
    ),
)
