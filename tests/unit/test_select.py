"""Requirements, tolerations and placement terms are evaluated as Kubernetes does, one by one and over many sets at once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.model.documents import Term
from moorage.model.reports import Taint
from moorage.model.shapes import Requirement, Toleration
from moorage.selectors import LabelIndex, TaintIndex, select_clusters, term_matches, tolerated
from moorage_testkit.fleets import fleet_of

keys = st.sampled_from(["a", "b", "c"])
values = st.sampled_from(["", "x", "y", "1", "2", "-3", "10", "0x1", "9" * 19, "9" * 25])
label_sets = st.lists(st.dictionaries(keys, values, max_size=3), max_size=6)
requirements = st.builds(
    Requirement,
    key=keys,
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "in"]),
    values=st.lists(values, max_size=2).map(tuple),
)


def upstream() -> Path:
    path = Path(os.environ.get("MOORAGE_VECTORS", "")) / "units" / "selector.json"
    if not os.environ.get("MOORAGE_VECTORS") or not path.is_file():
        pytest.skip("MOORAGE_VECTORS does not name the directory with the upstream vectors")
    return path


def test_upstream_vectors() -> None:
    for case in json.loads(upstream().read_text())["labels_requirements_match"]:
        term = [
            Requirement(key=r["key"], operator=r["operator"], values=tuple(r["values"])) for r in case["requirements"]
        ]
        assert (term_matches(term, case["labels"]) if term else True) == case["match"], case


@pytest.mark.parametrize(
    ("operator", "bound", "labels", "expected"),
    [
        ("In", ("x", "y"), {"k": "y"}, True),
        ("In", ("x",), {}, False),
        ("NotIn", ("x",), {}, True),
        ("NotIn", ("x",), {"k": "x"}, False),
        ("Exists", (), {"k": ""}, True),
        ("DoesNotExist", (), {"k": ""}, False),
        ("Gt", ("3",), {"k": "10"}, True),
        ("Gt", ("3",), {"k": "3"}, False),
        ("Lt", ("3",), {"k": "-4"}, True),
        ("Lt", ("3",), {}, False),
        ("Gt", ("3",), {"k": "many"}, False),
        ("Gt", ("x",), {"k": "4"}, False),
        ("Gt", ("1", "2"), {"k": "4"}, False),
    ],
)
def test_each_operator_matches_as_in_kubernetes(
    operator: str, bound: tuple[str, ...], labels: dict[str, str], expected: bool
) -> None:
    assert term_matches([Requirement(key="k", operator=operator, values=bound)], labels) is expected


def test_an_empty_conjunction_selects_nothing() -> None:
    assert not term_matches([], {"a": "x"})


@given(label_sets, label_sets, st.lists(requirements, max_size=3).map(tuple))
def test_an_index_agrees_with_single_evaluation_also_when_sets_are_appended(
    first: list[dict[str, str]], more: list[dict[str, str]], term: tuple[Requirement, ...]
) -> None:
    index, sets = LabelIndex(), list(first)
    assert index.mask(sets, term).tolist() == [term_matches(term, labels) for labels in sets]
    sets += more
    assert index.mask(sets, term).tolist() == [term_matches(term, labels) for labels in sets]
    replaced = [dict(labels) for labels in reversed(sets)]
    assert index.mask(replaced, term).tolist() == [term_matches(term, labels) for labels in replaced]
    # The same list with other contents, as after a new generation of the fleet.
    replaced[:] = [{"a": "x"}, *({} for _ in replaced)]
    assert index.mask(replaced, term).tolist() == [term_matches(term, labels) for labels in replaced]


taints = st.builds(
    Taint,
    key=st.sampled_from(["k", "l"]),
    effect=st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
    value=st.sampled_from(["", "v", "w"]),
)
tolerations = st.builds(
    Toleration,
    key=st.sampled_from(["k", "l"]),
    operator=st.sampled_from(["Equal", "Exists", ""]),
    value=st.sampled_from(["", "v"]),
    effect=st.sampled_from(["", "NoSchedule", "NoExecute"]),
)


@given(st.lists(st.lists(taints, max_size=2).map(tuple), max_size=5), st.lists(tolerations, max_size=2).map(tuple))
def test_a_taint_index_agrees_with_single_evaluation(
    sets: list[tuple[Taint, ...]], tolerates: tuple[Toleration, ...]
) -> None:
    index, growing = TaintIndex(), sets[:2]
    index.mask(growing, tolerates)
    growing += sets[2:]
    assert index.mask(growing, tolerates).tolist() == [tolerated(s, tolerates) for s in growing]


def test_tolerations_match_as_in_kubernetes() -> None:
    gpu = Taint(key="gpu", effect="NoSchedule", value="yes")
    assert not tolerated([gpu], [])
    assert tolerated([gpu], [Toleration(key="gpu", operator="Exists")])
    assert tolerated([gpu], [Toleration(operator="Exists")])
    assert tolerated([gpu], [Toleration(key="gpu", value="yes")])
    assert not tolerated([gpu], [Toleration(key="gpu", value="no")])
    assert not tolerated([gpu], [Toleration(key="gpu", operator="Exists", effect="NoExecute")])
    assert tolerated([Taint(key="gpu", effect="PreferNoSchedule")], [])


def test_placement_terms_nest() -> None:
    fleet = fleet_of(
        {"lab/a": [], "lab/b": [], "far/c": [], "far/d": []},
        labels={"lab/a": {"region": "eu"}, "far/c": {"region": "eu", "tier": "1"}, "far/d": {"region": "us"}},
    )

    def names(all_of: list[Term], any_of: list[Term]) -> list[str]:
        return [fleet.names[i] for i in np.flatnonzero(select_clusters(all_of, any_of, fleet))]

    eu = Term(label={"region": "eu"})
    assert names([eu], []) == ["lab/a", "far/c"]
    assert names([eu, Term(provider="far")], []) == ["far/c"]
    assert names([eu, Term(any_of=[Term(cluster="lab/b"), Term(provider="lab")])], []) == ["lab/a"]
    assert names([], [Term(cluster="far/d"), Term(label={"region": "eu", "tier": "1"})]) == ["far/c", "far/d"]
    assert names([eu], [Term(cluster="far/d")]) == []
    assert names([Term(cluster="lab/a", provider="far")], []) == []
    assert names([Term()], []) == []
    assert names([], []) == fleet.names
