"""The application: routes, error responses, and the OpenAPI document."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from shardbroker import __version__
from shardbroker.access.accounts import AccountError, Accounts
from shardbroker.api.guard import PREFIX, PUBLIC, Guard, Logins, error_body
from shardbroker.api.monitor import Monitor
from shardbroker.api.routes import ROUTERS
from shardbroker.control import AsyncControl, ControlError
from shardbroker.control.errors import STATUSES
from shardbroker.logs.phrases import Line, log_line

__all__ = ["DOCUMENT", "build_app", "document", "has_dashboard"]

DOCUMENT = "/api-docs/swagger.json"
"""Path of the OpenAPI document, which is public."""
CODES = {400: "BAD_REQUEST", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "PAYLOAD_TOO_LARGE"}
"""Codes of errors before a route is reached."""
DASHBOARD_PACKAGES = ("nicegui", "paho")
"""Packages of the extra `dashboard`; without them only the REST API is served."""
PROBLEMS_MAX = 10
"""Most problems of a request that the response lists."""
DESCRIPTION = "What `shardbroker ctl` can do, over HTTP, with the paths and shapes of EMQX 5. See docs/rest.md."


def has_dashboard() -> bool:
    """Returns whether the extra `dashboard` is installed."""
    return all(find_spec(name) is not None for name in DASHBOARD_PACKAGES)


def build_app(data_dir: Path, node: str, token_life_s: float, accounts: Accounts, complain: Callable[[Line], None]) -> FastAPI:
    """Returns the application of one broker. `complain` logs unexpected errors."""

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        monitoring = asyncio.create_task(app.state.monitor.run())
        yield
        monitoring.cancel()
        with suppress(asyncio.CancelledError):
            await monitoring
        await app.state.control.close()

    app = FastAPI(
        title="shardbroker", version=__version__, description=DESCRIPTION,
        openapi_url=DOCUMENT, docs_url=None, redoc_url=None, lifespan=running,
    )  # fmt: skip
    app.state.control = AsyncControl(data_dir)
    app.state.node = node
    app.state.logins = Logins(accounts, token_life_s)
    app.state.monitor = Monitor(app.state.control)
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX)
    app.add_middleware(Guard, accounts=accounts)
    if has_dashboard():
        from shardbroker.api.dashboard import add_dashboard

        add_dashboard(app)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]

    @app.exception_handler(ControlError)
    async def refused(request: Request, error: ControlError) -> JSONResponse:
        return JSONResponse(error_body(error.code, str(error)), error.status)

    @app.exception_handler(AccountError)
    async def no_account(request: Request, error: AccountError) -> JSONResponse:
        return JSONResponse(error_body(error.code, str(error)), ControlError(error.code, "").status)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = [f"{'.'.join(map(str, one['loc'][1:])) or 'body'}: {one['msg']}" for one in error.errors()[:PROBLEMS_MAX]]
        return JSONResponse(error_body("BAD_REQUEST", "; ".join(problems)), 400)

    @app.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> JSONResponse:
        code = CODES.get(error.status_code, "BAD_REQUEST")
        return JSONResponse(error_body(code, str(error.detail)), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        reason = f"{type(error).__name__}: {error}"
        complain(log_line("request failed", method=request.method, path=request.url.path, reason=reason))
        return JSONResponse(error_body("INTERNAL_ERROR", "internal error: see the log of the broker"), 500)

    return app


def document(app: FastAPI) -> dict[str, Any]:
    """Returns the OpenAPI document: that of FastAPI, with the error responses and security schemes of this API."""
    if app.openapi_schema is None:
        made = FastAPI.openapi(app)
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        properties = {"code": {"type": "string", "enum": [*STATUSES]}, "message": {"type": "string"}}
        schemas["Error"] = {"type": "object", "required": ["code", "message"], "properties": properties}
        made["components"]["securitySchemes"] = {
            "key": {"type": "http", "scheme": "basic", "description": "An API key and its secret."},
            "token": {"type": "http", "scheme": "bearer", "description": "A token of POST /login."},
        }
        error = {"description": "Error.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
        for path, methods in made["paths"].items():
            for operation in methods.values():
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = error
                if path not in PUBLIC:
                    operation["security"] = [{"key": []}, {"token": []}]
        app.openapi_schema = made
    return app.openapi_schema
