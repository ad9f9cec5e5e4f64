"""Verbs of the REST API's accounts and keys, and of the audit log."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import TIME_MAX, Page, Params, Verb, argument, table

__all__ = [
    "AccountAdd", "AccountPassword", "AccountUpdate", "AuditList", "KeyAdd", "KeyUpdate", "OneAccount", "OneKey",
]  # fmt: skip

Role = Literal["administrator", "viewer"]
AccountName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")]
Password = Annotated[str, StringConstraints(min_length=8, max_length=256)]
Description = Annotated[str, StringConstraints(max_length=400)]


class OneAccount(Params):
    name: AccountName = argument("Name: letters, digits, _ . @ -")


class AccountPassword(OneAccount):
    password: Password = Field(description="At least 8 characters; never on the command line.")


class AccountAdd(AccountPassword):
    role: Role = Field("administrator", description="A viewer is read-only.")
    description: Description = Field("", description="For the list.")


class AccountUpdate(OneAccount):
    role: Role | None = Field(None, description="A viewer is read-only.")
    description: Description | None = Field(None, description="For the list.")


class OneKey(Params):
    name: AccountName = argument("Name: letters, digits, _ . @ -")


class KeyAdd(OneKey):
    role: Role = Field("administrator", description="A viewer is read-only.")
    description: Description = Field("", description="For the list.")
    expired_at: int | None = Field(None, ge=0, le=TIME_MAX, description="Unix ms; by default never.")


class KeyUpdate(OneKey):
    role: Role | None = Field(None, description="A viewer is read-only.")
    description: Description | None = Field(None, description="For the list.")
    enable: bool | None = Field(None, description="Whether the key is valid.")
    expired_at: int | None = Field(None, ge=0, le=TIME_MAX, description="Unix ms; 0: never.")


class AuditList(Page):
    by: str | None = Field(None, description="Changes by exactly this account, key or `ctl`.")
    gte_at: int = Field(0, ge=0, le=TIME_MAX, description="At this time or later, Unix ms.")
    lte_at: int = Field(TIME_MAX, ge=0, le=TIME_MAX, description="At this time or earlier, Unix ms.")


KEY_COLUMNS = ("name", "api_key", "role", "enable", "expired", "expired_at", "description")

table(
    Verb("admins list", "Accounts of the REST API and the dashboard.", columns=("name", "role", "description"), is_shared=True),
    Verb("admins add", "Adds an account.", AccountAdd, changes=True),
    Verb("admins update", "Changes the role or description of an account.", AccountUpdate, changes=True),
    Verb("admins passwd", "Sets the password of an account and ends its logins.", AccountPassword, changes=True),
    Verb("admins delete", "Removes an account and ends its logins; the last administrator cannot be removed.", OneAccount,
         changes=True,
         rest=(Rest("DELETE /users/{username}", "Accounts", "delete_user", "nothing", names={"username": "name"}),)),
    Verb("api-keys list", "Keys of programs that use the REST API.", columns=KEY_COLUMNS, is_shared=True),
    Verb("api-keys add", "Creates a key; its secret is shown only once.", KeyAdd, changes=True),
    Verb("api-keys update", "Changes a key.", KeyUpdate, changes=True),
    Verb("api-keys delete", "Removes a key; requests with it are rejected from then on.", OneKey, changes=True,
         rest=(Rest("DELETE /api_key/{name}", "Accounts", "delete_key", "nothing"),)),
    Verb("audit list", "Changes with their authors, newest first; publishes are only in the log.", AuditList,
         columns=("at", "by", "verb", "code", "params")),
)  # fmt: skip
