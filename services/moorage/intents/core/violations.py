"""Collects everything that is wrong with a document, so that one answer names it all."""

from __future__ import annotations

from collections.abc import Callable

from moorage.model.problems import Violation

#: Takes path, code and message of a violation.
Report = Callable[[str, str, str], None]


def reporter(violations: list[Violation]) -> Report:
    def report(path: str, code: str, message: str) -> None:
        violations.append(Violation(path=path, code=code, message=message))

    return report
