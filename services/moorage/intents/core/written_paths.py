"""Translates the paths of stored fields into those that the client wrote, for errors."""

from __future__ import annotations

import msgspec

from moorage.model.problems import Problem, Violation


class WrittenPaths:
    def __init__(self) -> None:
        self._written: dict[str, str] = {}

    def add(self, stored: str, written: str) -> None:
        """Notes where a field was written. The fields inside it are at the same places below that."""
        self._written[stored] = written

    def of(self, path: str) -> str:
        """Returns where a field was written: by the longest part of its path that is known."""
        end = len(path)
        while end > 0:
            if (written := self._written.get(path[:end])) is not None:
                return written + path[end:]
            end = max(path.rfind(".", 0, end), path.rfind("[", 0, end))
        return path

    def violations(self, violations: list[Violation]) -> list[Violation]:
        return [msgspec.structs.replace(one, path=self.of(one.path)) for one in violations]

    def problem(self, problem: Problem) -> Problem:
        """Returns the problem with the paths of its errors, and its detail where that begins with one, translated."""
        detail = problem.detail
        for error in problem.errors:
            if detail.startswith(f"{error.path}: "):
                detail = self.of(error.path) + detail[len(error.path) :]
                break
        return msgspec.structs.replace(problem, errors=self.violations(problem.errors), detail=detail)
