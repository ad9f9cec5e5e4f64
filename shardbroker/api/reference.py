"""docs/rest.md, from the routes."""

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

    shardbroker serve --set api.bind=127.0.0.1:18083
    echo 'correct horse' | shardbroker ctl admins passwd admin
    shardbroker ctl api-keys add thermometer              # tells KEY and SECRET

<!-- example: run: until curl -sf http://127.0.0.1:18083/api/v5/status; do sleep 0.1; done -->

    curl -sf http://127.0.0.1:18083/api/v5/status

    curl -sf http://127.0.0.1:18083/api/v5/login -H 'Content-Type: application/json' \\
        -d '{"username": "admin", "password": "correct horse"}'        # tells TOKEN

<!-- example: TOKEN = grep -rhoP '(?<="token":")[^"]+' $logs -->
<!-- example: KEY = shardbroker ctl --json api-keys add other | tee /run/key | grep -oP '(?<="api_key": ")[^"]+' -->
<!-- example: SECRET = grep -oP '(?<="api_secret": ")[^"]+' /run/key -->

    curl -sf http://127.0.0.1:18083/api/v5/clients -H 'Authorization: Bearer TOKEN'
    curl -sf http://127.0.0.1:18083/api/v5/publish -u KEY:SECRET -H 'Content-Type: application/json' -d '{"topic": "a"}'

It comes with the extra `api` (`pip install 'shardbroker[api]'`), which `make install` takes along.

It is what `shardbroker ctl` can do, over HTTP, with the paths and shapes that users of EMQX 5 know. It runs in a process of its
own and asks the manager like `ctl` does; when it dies, it is started again, and no message notices. `api.bind` is `disabled` by
default; give it `api.certfile` if others than this machine shall reach it. The OpenAPI document is at `/api-docs/swagger.json`.

## Who may ask

- **Accounts** are for people: `POST /login` gives a token for `api.token_expired_time` (1 h). The first account, `admin`, is
  there at the first start; its password is made then, and stands once in the log. `shardbroker ctl admins passwd admin` sets
  another one, and helps whoever has lost it. What is kept is an argon2id hash. After ten wrong passwords within a minute an
  address has to wait.
- **Keys** are for programs: `POST /api_key` or `shardbroker ctl api-keys add NAME` tells key and secret once; they go as HTTP
  Basic.
- **Roles**: an `administrator` may do everything, a `viewer` may GET. Who does less than the role allows gets 403 `FORBIDDEN`.
- Every change is in the log and in the audit log (`GET /audit`, `shardbroker ctl audit list`), 100,000 of them, with who, what
  and how it ended; publishes are in the log alone.

## Lists

`page` and `limit` are EMQX's, and reach the first 100,000 rows, since those before the page are read too. `meta.hasnext` says
whether there are more; `meta.count` how many there are, where nobody has to count. With a million clients use `/clients_v2`: it
is read from shared memory by cursor, each page costs the same, and no worker notices. `cursor` works with other lists as well:
without `page`, and with `meta.cursor` of the page before. A page by cursor looks at 10,000 clients at most, so one that is
filtered may be short or empty and still have a cursor.

A client id or topic in a path is escaped: `/clients/plant%2F7`, `/topics/a%2F%23`.

## Errors

`{"code": ..., "message": ...}` with the status that `GET /error_codes` lists. What is refused has changed nothing. A body may
have 16 MB, and 4 KB from somebody who has not logged in.

## Not as in EMQX

- Times are RFC 3339 in UTC; where one is given, Unix ms do as well. A field or parameter that there is not is refused.
- `PUT /configs/{section}` takes what is to change, all of it or nothing, and tells under `changed` what was applied, what needs a
  restart and what another source shadows. `GET /configs` lists values with their sources in place of a file.
- Listeners that are added or stopped here are so until the broker stops.
- Traces look for a user name, too (`type` `username`), and `payload_limit` says how much of a payload they show. Their times are
  Unix ms where they are numbers. A metric of a topic may be that of a filter.
- Authenticators and sources of rules are configured in the configuration; their users and rules here.
"""


def reference() -> str:
    """The whole page."""
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
                text = " ".join(operation["description"].split()) + (" Anybody may ask." if path in PUBLIC else "")
                given = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
                query = f" Query: {', '.join(f'`{name}`' for name in given)}." if given else ""
                yield f"| {method.upper()} | `{path.removeprefix('/api/v5')}` | {text}{query} |"


if __name__ == "__main__":
    print(reference(), end="")
