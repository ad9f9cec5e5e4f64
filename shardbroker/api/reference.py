"""Generates docs/rest.md from the routes."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from shardbroker.api.app import document
from shardbroker.api.guard import PUBLIC
from shardbroker.api.routes import ROUTERS
from shardbroker.control.rest import TAGS

__all__ = ["reference"]

INTRODUCTION = """\
# REST API

Made by `make docs` from the rows of the verbs (`shardbroker/control/`) and from the routes in `shardbroker/api/routes/`.

    shardbroker serve
    echo 'correct horse' | shardbroker ctl admins passwd admin
    shardbroker ctl api-keys add thermometer              # prints KEY and SECRET

<!-- example: run: until curl -sf http://127.0.0.1:18083/api/v5/status; do sleep 0.1; done -->

    curl -sf http://127.0.0.1:18083/api/v5/status

    curl -sf http://127.0.0.1:18083/api/v5/login -H 'Content-Type: application/json' \\
        -d '{"username": "admin", "password": "correct horse"}'        # returns TOKEN

<!-- example: TOKEN = grep -rhoP '(?<="token":")[^"]+' $logs -->
<!-- example: KEY = shardbroker ctl --json api-keys add other | tee /run/key | grep -oP '(?<="api_key": ")[^"]+' -->
<!-- example: SECRET = grep -oP '(?<="api_secret": ")[^"]+' /run/key -->

    curl -sf http://127.0.0.1:18083/api/v5/clients -H 'Authorization: Bearer TOKEN'
    curl -sf http://127.0.0.1:18083/api/v5/publish -u KEY:SECRET -H 'Content-Type: application/json' -d '{"topic": "a"}'

The REST API is part of the extra `api` (`pip install 'shardbroker[api]'`), which `make install` includes.

It offers the operations of `shardbroker ctl` over HTTP, with the paths and shapes of EMQX 5. It runs in a process of its own,
which uses the control socket of the manager like `ctl`; a crash of it affects no message, and the supervisor restarts it.
`api.bind` is `auto` by default, 127.0.0.1:18083; set it and `api.certfile` to serve other machines, or `disabled` to have neither
API nor dashboard. The OpenAPI document is at
`/api-docs/swagger.json`.

## Authentication and roles

- **Accounts** are for people: `POST /login` returns a token that is valid for `api.token_expired_time` (1 h). The first start
  creates the account `admin` and writes its password to the log, once. `shardbroker ctl admins passwd admin` sets another one,
  also if the password is lost. Passwords are stored as argon2id hashes. After ten wrong passwords within a minute an address has
  to wait.
- **Keys** are for programs: `POST /api_key` or `shardbroker ctl api-keys add NAME` shows key and secret once; they are sent as
  HTTP Basic.
- **Roles**: an `administrator` may call all routes, a `viewer` may GET. A request beyond the role gets 403 `FORBIDDEN`.
- Every change is written to the log and to the audit log (`GET /audit`, `shardbroker ctl audit list`), which keeps 100,000
  changes with author, parameters and result. Publishes are only in the log.

## Lists

`page` and `limit` are those of EMQX and reach the first 100,000 rows, since all rows before the page are read too. `meta.hasnext`
is true if more rows follow; `meta.count` is the number of all rows, where it is known without counting. With a million clients
use `/clients_v2`: it is read from shared memory by cursor, at the same cost for each page and without load on workers. Other
lists accept `cursor` as well: omit `page` and pass `meta.cursor` of the previous page. A page by cursor reads 10,000 clients at
most, so a filtered page may be short or empty and still have a cursor.

A client id or topic in a path is escaped: `/clients/plant%2F7`, `/topics/a%2F%23`.

## Errors

`{"code": ..., "message": ...}` with the status that `GET /error_codes` lists. A rejected request has changed nothing, but for
an import that names what it has refused. A body may have 16 MB, an upload to `/data/files` 256 MB, and 4 KB without authentication.

## Differences from EMQX

[Paths of EMQX's REST API](rest-emqx.md) has each path of EMQX 5.8, and those that are not here with the reason. In the others:

- Times are RFC 3339 in UTC; parameters accept Unix ms as well. Unknown fields and parameters are rejected.
- `PUT /configs/{section}` takes the values to change and applies all of them or none. `changed` in the response lists what was
  applied, what needs a restart and what another source shadows. `GET /configs` lists values with their sources instead of a file.
- Listeners that are added or stopped here are so until the broker stops.
- Traces can match a user name too (`type` `username`), and `payload_limit` limits the payload that they show. Their times are
  Unix ms where they are numbers. A metric of a topic may be that of a filter.
- Authenticators and sources of rules have the settings of `auth.NAME` and `acl.TYPE`; `PUT` keeps those that are omitted. One that
  is not to be used is deleted instead of disabled, and its settings stay. Secrets are set in the configuration file. A change is of
  this node, and refused while the environment, the command line or a setting of all nodes sets the list.
- `POST /data/import` returns what it has done, with status 200, instead of 204 without a body. If entries are refused, the
  status is 400 as in EMQX, and the body has `parts`, `config_errors`, `db_errors`, `skipped`, `needs_restart` and `remarks` beside
  `code` and `message`. The node that has the file imports it. Files of EMQX are refused: [config import](coming-from.md#emqx) reads
  its configuration. A viewer may list files, and download none ([backup](operation-backup.md#export-and-import)).
"""


def reference() -> str:
    """Returns the whole page."""
    app = FastAPI()
    for router in ROUTERS:
        app.include_router(router, prefix="/api/v5")
    lines = [INTRODUCTION]
    for tag in TAGS:
        lines += [f"## {tag}", "", "| method | path | |", "|---|---|---|", *_rows(document(app), tag), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(made: dict[str, Any], tag: str) -> Iterator[str]:
    for path, methods in sorted(made["paths"].items()):
        for method, operation in sorted(methods.items()):
            if tag in operation["tags"]:
                text = " ".join(operation["description"].split()) + (" Public." if path in PUBLIC else "")
                given = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
                query = f" Query: {', '.join(f'`{name}`' for name in given)}." if given else ""
                yield f"| {method.upper()} | `{path.removeprefix('/api/v5')}` | {text}{query} |"


if __name__ == "__main__":
    print(reference(), end="")
