"""Tells which projects may use which classes, and which algorithms they may name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from moorage.model.part_requests import PartGroup
from moorage.model.resource_classes import ClassGrantSpec

EVERYTHING = "*"


class AskedClass(NamedTuple):
    """A class that a need asks for, and the algorithm that it names."""

    name: str
    algorithm: str = ""
    need: str = ""


def asked_classes(groups: Iterable[Iterable[PartGroup]]) -> Iterator[AskedClass]:
    """Yields the classes that groups of shapes ask for."""
    for of_shape in groups:
        for group in of_shape:
            for device in group.devices:
                if device.resource_class:
                    yield AskedClass(device.resource_class, device.algorithm, group.suffix)


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

    def problem(self, project: str, asked: AskedClass) -> str | None:
        """Returns why a project may not ask for this, or None."""
        if not self.allow(project, asked.name):
            return f"project {project} may not use the resource class {asked.name}; a ClassGrant must grant it"
        if asked.algorithm and not self.allow_algorithm(project, asked.name, asked.algorithm):
            return (
                f"project {project} may not name the algorithm {asked.algorithm} for the resource class {asked.name}; a "
                "ClassGrant must grant it"
            )
        return None

    def allow_algorithm(self, project: str, class_: str, algorithm: str) -> bool:
        """Returns whether a project may name an algorithm in a need for a class."""
        return any(
            _any(project, spec.projects) and _any(class_, spec.classes) and _any(algorithm, spec.algorithms)
            for spec in self._specs
        )


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
