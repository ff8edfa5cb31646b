"""Documents of the fleet that name an algorithm for devices which there is not are refused."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.intents.core.fleet_documents import accept
from moorage.model.problems import Refused


def _grant(*algorithms: str, projects: tuple[str, ...] = ("a",)) -> dict[str, Any]:
    spec = {"projects": list(projects), "classes": ["*"], "algorithms": list(algorithms)}
    return {"kind": "ClassGrant", "metadata": {"name": "g"}, "spec": spec}


def _class(algorithm: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "Kind", "operator": "Exists"}]}]
    metadata = {"name": "c", "annotations": {"moorage.dev/algorithm": algorithm}}
    return {"kind": "ResourceClass", "metadata": metadata, "spec": {"resourceSelector": terms}}


def _wrong(document: dict[str, Any]) -> list[tuple[str, str]]:
    try:
        accept(document)
    except Refused as refused:
        return [(error.path, error.code) for error in refused.problem.errors]
    return []


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        (_grant("best-fit", "spred"), [("spec.algorithms[1]", "BadValue")]),
        (_grant("best fit"), [("spec.algorithms[0]", "InvalidName")]),
        (_class("first-fitt"), [("metadata.annotations.moorage.dev/algorithm", "BadValue")]),
        (_grant("best-fit", "*", "most-*"), []),
        (_grant(), []),
        (_class("first-fit"), []),
        (_class(""), []),
    ],
)
def test_algorithms_that_there_are_not_are_refused(document: dict[str, Any], wrong: list[tuple[str, str]]) -> None:
    assert _wrong(document) == wrong
