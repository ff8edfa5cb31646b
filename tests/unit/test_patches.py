"""RFC 6902 on shared data: what the patcher makes, agents apply, and nothing that came in is touched."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.podspec import PatchError, apply, assigned, diff, replaced

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(alphabet="ab/~0 ", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet="ab/~", max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


def exact(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


@given(json_values, json_values)
def test_a_patch_turns_one_into_the_other_and_changes_neither(before: Any, after: Any) -> None:
    kept_before, kept_after = copy.deepcopy(before), copy.deepcopy(after)
    patch = diff(before, after)
    assert exact(apply(before, patch)) == exact(after)
    assert exact(before) == exact(kept_before)
    assert exact(after) == exact(kept_after)
    assert (patch == []) == (exact(before) == exact(after))


@pytest.mark.parametrize(
    ("document", "operation", "result"),
    [
        ({"a": 1}, {"op": "add", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
        ({"a": [1, 3]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2, 3]}),
        ({"a": [1]}, {"op": "add", "path": "/a/-", "value": 2}, {"a": [1, 2]}),
        ({"a": {"b/c": 1}}, {"op": "replace", "path": "/a/b~1c", "value": 2}, {"a": {"b/c": 2}}),
        ({"a": [1, 2]}, {"op": "remove", "path": "/a/0"}, {"a": [2]}),
        ({"a": 1}, {"op": "move", "from": "/a", "path": "/b"}, {"b": 1}),
        ({"a": [1]}, {"op": "copy", "from": "/a/0", "path": "/a/0"}, {"a": [1, 1]}),
        ({"a": 1}, {"op": "test", "path": "/a", "value": 1}, {"a": 1}),
        ({"a": 1}, {"op": "replace", "path": "", "value": [2]}, [2]),
    ],
)
def test_operations(document: Any, operation: dict[str, Any], result: Any) -> None:
    assert apply(document, [operation]) == result


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "path": "/x", "value": 1},
        {"op": "remove", "path": "/x"},
        {"op": "remove", "path": ""},
        {"op": "add", "path": "/x/y", "value": 1},
        {"op": "add", "path": "/l/01", "value": 1},
        {"op": "add", "path": "/l/9", "value": 1},
        {"op": "add", "path": "/n/y", "value": 1},
        {"op": "test", "path": "/n", "value": 2},
        {"op": "move", "from": "/l", "path": "/l/0"},
        {"op": "add", "path": "l", "value": 1},
        {"op": "add", "path": "/l/0"},
        {"op": "melt", "path": "/l"},
        {"op": "add"},
    ],
)
def test_what_does_not_fit_is_refused(operation: dict[str, Any]) -> None:
    with pytest.raises(PatchError):
        apply({"l": [1], "n": 1}, [operation])


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
            expected = replaced(expected, parts, value)
    except PatchError:
        with pytest.raises(PatchError):
            assigned(before, changes)
    else:
        assert exact(assigned(before, changes)) == exact(expected)
    assert exact(before) == exact(kept)
    assert exact([value for _, value in changes]) == exact(values)
