"""JSON pointers, values set at them and RFC 6902 differences, none of which change their inputs."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.podspec import PointerError, diff, parse_pointer, with_value, with_values

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(alphabet="ab/~0 ", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet="ab/~", max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


def exact(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def apply(document: Any, patch: list[dict[str, Any]]) -> Any:
    """Applies `add`, `replace` and `remove` of RFC 6902, in place, to a copy."""
    root = [copy.deepcopy(document)]
    for operation in patch:
        parent: Any = root
        key: Any = 0
        for part in parse_pointer(operation["path"]):
            parent = parent[key]
            key = int(part) if isinstance(parent, list) else part
        if operation["op"] == "remove":
            del parent[key]
        elif operation["op"] == "add" and isinstance(parent, list):
            parent.insert(key, operation["value"])
        else:
            assert (
                operation["op"] == "add"
                or parent is root
                or key in (parent if isinstance(parent, dict) else range(len(parent)))
            )
            parent[key] = operation["value"]
    return root[0]


@given(json_values, json_values)
def test_a_patch_turns_one_into_the_other_and_changes_neither(before: Any, after: Any) -> None:
    kept_before, kept_after = copy.deepcopy(before), copy.deepcopy(after)
    patch = diff(before, after)
    assert exact(apply(before, patch)) == exact(after)
    assert exact(before) == exact(kept_before)
    assert exact(after) == exact(kept_after)
    assert (patch == []) == (exact(before) == exact(after))


@pytest.mark.parametrize(
    ("document", "path"), [([1], "/01"), ([1], "/1"), ([1], "/x"), (1, "/y"), ({"n": 1}, "/n/y"), ({}, "n")]
)
def test_where_nothing_can_be_set(document: Any, path: str) -> None:
    with pytest.raises(PointerError):
        with_value(document, parse_pointer(path), 2)


@given(
    st.dictionaries(st.sampled_from("ab"), json_values),
    st.lists(st.tuples(st.lists(st.sampled_from("ab01"), min_size=1, max_size=4), json_values), max_size=5),
)
def test_many_at_once_are_the_same_as_one_after_the_other(before: Any, changes: list[tuple[list[str], Any]]) -> None:
    kept = copy.deepcopy(before)
    changes.sort(key=lambda change: len(change[0]))
    values = copy.deepcopy([value for _, value in changes])
    expected: Any = before
    try:
        for parts, value in changes:
            expected = with_value(expected, parts, value)
    except PointerError:
        with pytest.raises(PointerError):
            with_values(before, changes)
    else:
        assert exact(with_values(before, changes)) == exact(expected)
    assert exact(before) == exact(kept)
    assert exact([value for _, value in changes]) == exact(values)
