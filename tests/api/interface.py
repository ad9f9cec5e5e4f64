"""The interface of the REST API without its wording: what a program relies on.

    python -m tests.api.interface > tests/api/interface.json

Each operation has one row: operation id, parameters, body and responses, with schemas in place of their names. Descriptions,
titles, examples and names of schemas are left out; the response of all errors has a row of its own.
"""

import json
from typing import Any

from fastapi import FastAPI

from shardbroker.api.app import document
from shardbroker.api.routes import ROUTERS

__all__ = ["interface"]

WORDING = {"description", "title", "summary", "examples", "tags"}


def interface() -> dict[str, Any]:
    """Returns the operations of this source tree by method and path."""
    app = FastAPI()
    for router in ROUTERS:
        app.include_router(router, prefix="/api/v5")
    made = document(app)
    schemas = made["components"]["schemas"]
    return {"errors": _bare(schemas["Error"], schemas)} | {
        f"{method.upper()} {path}": _bare(operation, schemas)
        for path, methods in sorted(made["paths"].items())
        for method, operation in sorted(methods.items())
    }


def _bare(value: Any, schemas: dict[str, Any], names: bool = False) -> Any:
    """Returns a part of the document without wording; `names`: the keys are names of fields, not keywords."""
    if isinstance(value, list):
        rows = [_bare(one, schemas) for one in value]
        return sorted(rows, key=lambda row: row["name"]) if rows and isinstance(rows[0], dict) and "in" in rows[0] else rows
    if not isinstance(value, dict):
        return value
    if value.get("$ref") == "#/components/schemas/Error":
        return "errors"
    if "$ref" in value:
        return _bare(schemas[value["$ref"].rpartition("/")[2]], schemas)
    return {
        key: sorted(one) if key == "required" and isinstance(one, list) else _bare(one, schemas, key == "properties")
        for key, one in sorted(value.items())
        if names or key not in WORDING
    }


if __name__ == "__main__":
    print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in interface().items()) + "\n}")
