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
    """Which users are listed."""

    kind: UserKind = Field("username", description="What identifies the users.")
    scram: bool = Field(False, description="Users of auth.chain scram instead of builtin.")


class UserAdd(Params):
    """A user with a password, which is read from a prompt or from standard input."""

    name: Name = argument("User name or client id.")
    password: Name = Field(description="Never on the command line.")
    kind: UserKind = Field("username", description="What the name is.")
    superuser: bool = Field(False, description="May publish and subscribe to all topics.")
    scram: bool = Field(False, description="For auth.chain scram instead of builtin.")


class UserDelete(Params):
    """One user."""

    name: Name = argument("User name or client id.")
    kind: UserKind = Field("username", description="What the name is.")
    scram: bool = Field(False, description="Of auth.chain scram instead of builtin.")


class AclOf(Params):
    """Owner of rules."""

    kind: RuleKind = argument("username, clientid or all.")
    name: str = argument("User name or client id; empty for all.", "")


class AclSet(AclOf):
    """All rules of one user, one client or all."""

    rules: list[str] = Field(description='JSON of a rule: {"permission": "allow", "action": "publish", "topic": "a/#"}')


class AclAdd(AclOf):
    """A rule that is appended."""

    permission: Literal["allow", "deny"] = Field("allow", description="Effect of the rule.")
    action: Literal["publish", "subscribe", "all"] = Field("all", description="Action that the rule covers.")
    topic: Name = Field(description="Topic filter; the prefix `eq ` makes it literal.")
    qos: str | None = Field(None, description="Such as 0 or 1,2; by default all.")
    retain: Literal["true", "false"] | None = Field(None, description="RETAIN flag of the PUBLISH; by default both.")


class AclTest(Params):
    """An action of a client that is checked."""

    action: Literal["publish", "subscribe"] = argument("publish or subscribe.")
    topic: Name = argument("Topic, or topic filter.")
    clientid: str = Field("", max_length=65535, description="Client id.")
    username: str | None = Field(None, max_length=65535, description="User name; by default anonymous.")
    ip_address: str = Field("127.0.0.1", max_length=45, description="Address of the client.")
    listener: str = Field("default", description="Name of the listener.")
    qos: Literal[0, 1, 2] = Field(0, description="QoS.")
    retain: bool = Field(False, description="RETAIN flag of the PUBLISH.")


class BannedDelete(Params):
    """One ban."""

    kind: BanKind = argument("clientid, username, peerhost, clientid_re, username_re or peerhost_net.")
    value: Name = argument("Value to match.")


class BannedAdd(BannedDelete):
    """A ban; connected clients that match are disconnected."""

    seconds: float | None = Field(None, gt=0, description="Duration; by default unlimited.")
    by: str = Field("ctl", max_length=400, description="Author of the ban, for the list.")
    reason: str = Field("", max_length=400, description="For the log and the list.")


table(
    Verb("users list", "Users of the broker's own database.", UserList, columns=("name", "superuser"), is_shared=True),
    Verb("users add", "Adds a user, or changes its password.", UserAdd, changes=True),
    Verb("users delete", "Removes a user.", UserDelete, changes=True),
    Verb("acl list", "Rules of users, clients and all.", columns=("kind", "name", "rules"), is_shared=True),
    Verb("acl set", "Replaces the rules of a user, a client or all.", AclSet, changes=True),
    Verb("acl add", "Appends a rule to those of a user, a client or all.", AclAdd, changes=True),
    Verb(
        "acl test",
        "Whether the local sources of rules permit an action of a client; `allowed` is null where another source decides.",
        AclTest,
        rest=(Rest("GET /authorization/test", "Access", "test_rules"),),
    ),
    Verb("acl delete", "Removes the rules of a user, a client or all.", AclOf, changes=True),
    Verb(
        "acl reload",
        "Reloads the files of rules and passwords.",
        changes=True,
        rest=(Rest("POST /authorization/reload", "Access", "reload"),),
    ),
    Verb("banned list", "Bans.", columns=("kind", "value", "until", "by", "reason", "at"), is_shared=True),
    Verb("banned add", "Adds a ban and disconnects the clients that match.", BannedAdd, changes=True),
    Verb(
        "banned delete",
        "Removes a ban.",
        BannedDelete,
        changes=True,
        rest=(Rest("DELETE /banned/{kind}/{who:name}", "Access", "delete_ban", "nothing", names={"who": "value"}),),
    ),
)
