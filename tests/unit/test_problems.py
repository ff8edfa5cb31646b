"""Tests that errors of decoding name the place, in the words of the interface."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from moorage.model.documents import Strict
from moorage.model.problems import unknown_fields, unreadable


class Inner(Strict, kw_only=True):
    x: int


class Outer(Strict, kw_only=True):
    deadline_ms: float = 0
    policy: Literal["required", "optional"] = "optional"
    labels: dict[str, str] = {}
    items: list[Inner] = []
    only: Inner | None = None


WRONG: list[tuple[Any, tuple[str, str]]] = [
    ({"bogus": 1}, ("bogus", "UnknownField")),
    ({"deadlineMs": "x"}, ("deadlineMs", "WrongType")),
    ({"policy": "sometimes"}, ("policy", "BadValue")),
    ({"policy": 3}, ("policy", "WrongType")),
    ({"labels": {"a": 1}}, ("labels[...]", "WrongType")),
    ({"items": [{"x": 1}, {"x": 1, "y": 2}]}, ("items[1].y", "UnknownField")),
    ({"items": [{}]}, ("items[0].x", "Required")),
    ({"only": {}}, ("only.x", "Required")),
    ([], ("", "WrongType")),
    (None, ("", "WrongType")),
]


@pytest.mark.parametrize(("data", "expected"), WRONG, ids=lambda v: str(v)[:40])
def test_what_has_the_wrong_form_is_named(data: Any, expected: tuple[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.convert(data, Outer)
    problem = unreadable(wrong.value)
    assert (problem.status, problem.code) == (400, "Undecodable")
    assert [(e.path, e.code) for e in problem.errors] == [expected] and problem.errors[0].message


def test_what_is_no_json_has_no_place() -> None:
    with pytest.raises(msgspec.DecodeError) as wrong:
        msgspec.json.decode(b"{")
    assert not unreadable(wrong.value).errors
    assert unreadable(RecursionError()).detail


def test_unknown_fields_are_all_named() -> None:
    assert [e.path for e in unknown_fields({"b": 1, "known": 2, "a": 3}, ("known", "other"))] == ["a", "b"]
