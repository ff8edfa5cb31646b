"""Tells which projects may use which classes, and which algorithms they may name."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from moorage.model.resource_classes import ClassGrantSpec

EVERYTHING = "*"


class Grants:
    """Grants of classes. A class that a grant names, other than by `*` alone, is only for those to whom it is granted."""

    def __init__(self, specs: Iterable[ClassGrantSpec] = ()) -> None:
        self._specs = list(specs)

    def allow(self, project: str, class_: str) -> bool:
        """Returns whether a project may use a class."""
        naming = [spec for spec in self._specs if _any(class_, (n for n in spec.classes if n != EVERYTHING))]
        return any(
            _any(project, spec.projects) for spec in naming or self._specs if naming or EVERYTHING in spec.classes
        )

    def allow_algorithm(self, project: str, class_: str, algorithm: str) -> bool:
        """Returns whether a project may name an algorithm in a need for a class."""
        return any(
            _any(project, spec.projects) and _any(class_, spec.classes) and _any(algorithm, spec.algorithms)
            for spec in self._specs
        )


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
