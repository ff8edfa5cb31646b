"""Every cluster that does not fit has exactly one reason, with correct amounts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moorage.fit import FitCache, explain
from moorage.model.reports import NodeReport
from moorage.model.shapes import Requirement, Shape
from moorage_testkit.brute_force import GPU, TAINT, clusters, may, rows_in, shape, shapes
from moorage_testkit.fleets import fleet_of, node


@given(st.lists(clusters, min_size=1, max_size=4), shapes)
def test_each_rejected_cluster_has_exactly_one_reason(many: list[list[NodeReport]], s: Shape) -> None:
    fleet = fleet_of({f"lab/{i}": nodes for i, nodes in enumerate(many)})
    rejected = fleet.known & ~FitCache(fleet).get(s).fits
    rejections = explain(fleet, s, rejected)
    if s.count or s.per_node:
        assert (sum((f.clusters.astype(int) for f in rejections), np.zeros(fleet.size, int)) == rejected).all()
    for rejection in rejections:
        for cid in np.flatnonzero(rejection.clusters).tolist():
            able = [row for row in rows_in(fleet, cid) if may(fleet, row, s)]
            if rejection.code in ("NodesUnusable", "LabelMissing"):
                assert not able
            elif rejection.resource and not s.per_node:
                column = fleet.free(rejection.resource)
                free = [0 if column is None else int(column[row]) for row in able]
                assert max(free) <= rejection.best < rejection.needed == s.resources[rejection.resource]
                assert rejection.unusable == 0 or rejection.unusable >= rejection.needed
            elif rejection.code == "CapacityShort":
                assert rejection.best < rejection.needed == s.count


def test_reasons_by_cluster() -> None:
    fleet = fleet_of(
        {
            "lab/small": [node(cpu="2", memory="9", labels={"zone": "a"})],
            "lab/tiny": [node(cpu="1", memory="9", labels={"zone": "a"})],
            "lab/elsewhere": [node(cpu="9", memory="9", labels={"zone": "b"})],
            "lab/tainted": [node(cpu="9", memory="9", labels={"zone": "a"}, taints=[TAINT])],
            "lab/split": [
                node(cpu="9", memory="1", labels={"zone": "a"}),
                node(cpu="1", memory="9", labels={"zone": "a"}),
            ],
            "lab/one": [node(cpu="4", memory="9", labels={"zone": "a"})],
            "lab/empty": [],
        }
    )
    zone = [[Requirement(key="zone", operator="In", values=("a",))]]
    s = shape(resources={"cpu": 4000, "memory": 4}, count=2, terms=zone)
    found = {
        (f.code, f.resource, f.label, f.needed, f.best): [fleet.names[i] for i in np.flatnonzero(f.clusters)]
        for f in explain(fleet, s, np.ones(fleet.size, np.bool_))
    }
    assert found == {
        ("LabelMissing", "", "zone=a", 0, 0): ["lab/elsewhere"],
        ("NodesUnusable", "", "", 0, 0): ["lab/tainted", "lab/empty"],
        ("ResourceShort", "cpu", "", 4000, 2000): ["lab/small", "lab/tiny"],
        ("ResourceShort", "", "", 0, 0): ["lab/split"],
        ("CapacityShort", "", "", 2, 1): ["lab/one"],
    }


def test_unusable_nodes_that_have_enough_are_told() -> None:
    fleet = fleet_of(
        {
            "lab/tainted": [
                node("n-0", cpu="2"),
                node("n-1", cpu="9", taints=[TAINT]),
                node("n-2", cpu="7", ready=False),
            ],
            "lab/small": [node("n-0", cpu="2"), node("n-1", cpu="3", taints=[TAINT])],
        }
    )
    one = [explain(fleet, shape(resources={"cpu": 4000}), np.arange(2) == cid)[0] for cid in range(2)]
    assert [(r.code, r.best, r.unusable) for r in one] == [("ResourceShort", 2000, 9000), ("ResourceShort", 2000, 0)]


def test_a_resource_that_no_node_has_is_short() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="2")]})
    (rejection,) = explain(fleet, shape(resources={GPU: 2}), np.ones(1, np.bool_))
    assert (rejection.code, rejection.resource, rejection.needed, rejection.best) == ("ResourceShort", GPU, 2, 0)


def test_an_unsupported_need_is_a_reason() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="2")]})
    (rejection,) = explain(fleet, shape(devices=[{}]), np.ones(1, np.bool_))
    assert rejection.code == "Unsupported"
    assert "devices" in rejection.message
