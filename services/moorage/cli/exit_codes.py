"""Exit codes of all commands, and the exception that ends a command with one. Scripts rely on these numbers."""

from __future__ import annotations

DONE = 0
FAILED = 1  # refused (400), failed, or `diff` found a difference
USAGE = 2
MISSING = 3
CONFLICT = 4
FORBIDDEN = 5
UNREACHABLE = 6
TIMEOUT = 7


class Failure(Exception):
    """Ends a command with an exit code and a message for stderr that says what is wrong, where, and what to do."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def of_status(status: int) -> int:
    """Maps an HTTP status to an exit code."""
    if status < 400:
        return DONE
    if status in (401, 403):
        return FORBIDDEN
    if status in (502, 503, 504):
        return UNREACHABLE
    return {404: MISSING, 409: CONFLICT}.get(status, FAILED)
