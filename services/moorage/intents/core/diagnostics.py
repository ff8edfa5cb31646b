"""Collects everything that is wrong with a document, so that one answer names it all."""

from __future__ import annotations

from moorage.model.problems import Violation
from moorage.model.reasons import Warn

#: Of one document that are told.
MAX_ERRORS = 200


class Diagnostics:
    """Errors, with which a document is refused, and warnings, with which it is accepted."""

    def __init__(self) -> None:
        self.errors: list[Violation] = []
        self.warnings: list[Warn] = []

    def error(self, path: str, code: str, message: str) -> None:
        self.errors.append(Violation(path=path, code=code, message=message))

    def warn(self, code: str, message: str) -> None:
        self.warnings.append(Warn(code=code, message=message))
