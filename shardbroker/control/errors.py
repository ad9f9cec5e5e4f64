"""Errors of requests: a code for programs, a text for operators, a status for HTTP."""

__all__ = ["STATUSES", "ControlError"]

STATUSES = {
    "BAD_REQUEST": 400,
    "UNAUTHORIZED": 401,
    "BAD_USERNAME_OR_PWD": 401,
    "BAD_API_KEY_OR_SECRET": 401,
    "BAD_TOKEN": 401,
    "TOKEN_TIME_OUT": 401,
    "FORBIDDEN": 403,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "CLIENTID_NOT_FOUND": 404,
    "NOT_MATCH": 412,
    "TEST_FAILED": 400,
    "ALREADY_EXISTS": 409,
    "DUPLICATE_CONDITION": 409,
    "EXCEED_LIMIT": 400,
    "NOT_AVAILABLE": 409,
    "PAYLOAD_TOO_LARGE": 413,
    "TOO_MANY_REQUESTS": 429,
    "INTERNAL_ERROR": 500,
    "BROKER_DOWN": 503,
    "NODE_EVACUATING": 503,
    "TRY_AGAIN": 503,
    "WORKER_DOWN": 503,
    "WORKER_TIMEOUT": 504,
}
"""Code -> HTTP status."""


class ControlError(Exception):
    """A request that was rejected or failed; `code` is one of STATUSES."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code if code in STATUSES else "INTERNAL_ERROR"

    @property
    def status(self) -> int:
        """Returns the HTTP status of the code."""
        return STATUSES[self.code]
