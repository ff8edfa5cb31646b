"""Slices of fleet files that the API server would refuse are refused with path and code."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.sim.core.object_documents import check_objects


def _wrong(field: str, name: str, value: Any) -> list[tuple[str, str]]:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.x", "nodeName": "n", "pool": pool, "devices": [{"name": "g0", field: {name: value}}]}
    found = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    return [(one.path, one.code) for one in check_objects([found], ["n"], "objects")]


@pytest.mark.parametrize(
    ("field", "name", "value", "below"),
    [
        ("attributes", "a b", {"string": "x"}, ""),
        ("attributes", "x" * 33, {"string": "x"}, ""),
        ("attributes", "d.x/", {"string": "x"}, ""),
        ("attributes", "9a", {"string": "x"}, ""),
        ("attributes", "a-b", {"string": "x"}, ""),
        ("attributes", "s", {"string": "x" * 65}, ".string"),
        ("attributes", "v", {"version": "1.2"}, ".version"),
        ("attributes", "v", {"version": "v1.2.3"}, ".version"),
        ("attributes", "v", {"versions": ["1.2.3", "new"]}, ".versions"),
        ("attributes", "i", {"int": 2**63}, ".int"),
        ("attributes", "i", {"ints": [1, -(2**63) - 1]}, ".ints"),
        ("attributes", "i", {"int": "1"}, ""),
        ("capacity", "my memory", {"value": "1Gi"}, ""),
    ],
)
def test_what_the_api_server_refuses_is_refused(field: str, name: str, value: Any, below: str) -> None:
    assert _wrong(field, name, value) == [(f"objects[0].spec.devices[0].{field}.{name}{below}", "Invalid")]


@pytest.mark.parametrize(
    ("field", "name", "value"),
    [
        ("attributes", "a.com/some_Name9", {"string": "x" * 64}),
        ("attributes", "_v", {"version": "1.2.3-rc.1+build"}),
        ("attributes", "i", {"int": -(2**63)}),
        ("attributes", "i", {"ints": [2**63 - 1]}),
        ("attributes", "b", {"bools": [True, False]}),
        ("capacity", "d.x/memory", {"value": "1Gi"}),
    ],
)
def test_what_it_accepts_is_accepted(field: str, name: str, value: Any) -> None:
    assert _wrong(field, name, value) == []
