"""ResourceClaims of Kubernetes: what they ask for becomes groups and relations, and gets the devices that Kubernetes chooses."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorage.agent.core import kube_types
from moorage.agent.core.cluster_state import ClusterState
from moorage.dra import objects as dra
from moorage.fit.asked_parts import Asked
from moorage.fit.node_state import NodeState
from moorage.fit.static_inside import StaticInside
from moorage.fleet.normalize import normalize_node
from moorage.kube.objects import Key
from moorage.model.part_requests import PartGroup, Relation
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape
from moorage.parts.device_parts import id_of_device
from moorage.parts.layout import layout_of
from moorage.podspec.device_claims import claim_errors, claim_needs, read_claim

#: Cases whose claims the API server refuses, and so does Moorage.
REFUSED = {
    "empty-class",
    "list-attributes-match-constaint-list-of-string-values-without-common-elements",  # two requests of one name
    "unknown-allocation-mode",
}
#: Cases in which nothing is asked for.
NOTHING_ASKED = {"empty", "no-claims-to-allocate"}
Json = dict[str, Any]


def vectors() -> list[Json] | None:
    path = Path(os.environ.get("MOORAGE_VECTORS", "")) / "dra" / "allocator.json"
    if not os.environ.get("MOORAGE_VECTORS") or not path.is_file():
        return None
    found: list[Json] = json.loads(path.read_text())["cases"]
    return found


def _cases() -> list[Json]:
    found = vectors()
    if found is None:
        pytest.skip("MOORAGE_VECTORS does not name the directory with the upstream vectors")
    return found


def _object(given: Json, name: str, **more: Any) -> bytes:
    return msgspec.json.encode({**given, "metadata": {**given["metadata"], "name": name, "uid": name, **more}})


def node_report(case: Json) -> NodeReport:
    """Returns what the agent reports of a cluster with these objects."""
    state, node = ClusterState(), {"spec": {}, "status": {"allocatable": {"cpu": "8"}}, **case["node"]}
    name = node["metadata"]["name"]
    state.put_node(Key("", name), kube_types.node(_object(node, name)))
    for i, found in enumerate(case.get("slices", ())):
        own = f"{found['metadata']['name']}.{i:03}"  # names are not unique in the vectors, as they are in a cluster
        state.put_slice(Key("", own), dra.slice_(_object(found, own)))
    for found in case.get("classes", ()):
        own = found["metadata"]["name"]
        state.put_device_class(Key("", own), dra.device_class(_object(found, own)))
    for i, result in enumerate(_allocated(case)):
        claim = {"metadata": {"namespace": "others"}, "status": {"allocation": {"devices": {"results": [result]}}}}
        state.put_device_claim(Key("others", f"c{i}"), dra.device_claim(_object(claim, f"c{i}")))
    return msgspec.json.decode(msgspec.json.encode(state.row(state.nodes[name])), type=NodeReport)


def _allocated(case: Json) -> Iterable[Json]:
    """Yields the results of strangers' claims."""
    for ident in case.get("allocated", ()):
        yield _result(ident)
    consumed: Mapping[str, Any] = case.get("consumed", {})
    for ident, capacity in consumed.items():
        yield _result(ident) | {"consumedCapacity": capacity}
    for ident in {share.rpartition("/")[0] for share in case.get("allocatedShares", ())} - consumed.keys():
        yield _result(ident) | {"consumedCapacity": {}}


def _result(ident: str) -> Json:
    driver, _, rest = ident.partition("/")
    pool, _, device = rest.rpartition("/")
    return {"driver": driver, "pool": pool, "device": device}


def asked(specs: Sequence[Json]) -> Shape:
    groups: list[PartGroup] = []
    relations: list[Relation] = []
    for i, spec in enumerate(specs):
        needs = claim_needs(f"claim-{i}", read_claim(spec))
        groups += needs.groups
        relations += needs.relations
    return Shape(key="k", object="Pod/p", groups=groups, relations=relations)


def state_of(report: NodeReport) -> NodeState:
    row, _ = normalize_node(report)
    layout = layout_of(row.inside)
    inventories = [layout.parts[entry.part].inventories[entry.resource] for entry in layout.entries]
    used = row.in_use or [0] * len(inventories)
    return NodeState.of(layout, tuple(i.capacity - n for i, n in zip(inventories, used, strict=True)))


def chosen(case: Json, state: NodeState) -> list[list[tuple[str, str]]] | None:
    """Returns the devices of each claim with their requests, in order; None if there are none."""
    shares = state.assign([(Asked(asked([claim["spec"] for claim in case["claims"]])), 1)])
    if shares is None:
        return None
    found: list[list[tuple[str, str]]] = [[] for _ in case["claims"]]
    for grant in dict.fromkeys((grant.need, grant.part) for grant in shares[0][0].grants):
        claim, _, request = grant[0].partition("/")
        found[int(claim.removeprefix("claim-"))].append(
            (request, id_of_device(case["node"]["metadata"]["name"], grant[1]))
        )
    return found


def test_all_claims_get_the_devices_that_kubernetes_chooses() -> None:
    wrong: list[object] = []
    differing, took = [], []
    for case in _cases():
        name, expected = case["name"], case["expect"]
        if name in NOTHING_ASKED:
            continue
        if name in REFUSED:
            assert expected["outcome"] != "allocated"
            assert any(any(claim_errors(read_claim(claim["spec"]))) for claim in case["claims"])
            continue
        state = state_of(node_report(case))
        start = time.process_time()
        found = chosen(case, state)
        took.append(time.process_time() - start)
        devices = [
            [(one["request"], f"{one['driver']}/{one['pool']}/{one['device']}") for one in claim["devices"]]
            for claim in expected.get("claims", ())
        ]
        if "differs" in case:
            # An exhaustive search tells only whether there are devices.
            differing.append(name)
            if (found is not None) != (expected["outcome"] == "allocated"):
                wrong.append((name, found, expected))
        elif found != (devices if expected["outcome"] == "allocated" else None):
            wrong.append((name, found, expected))
    assert not wrong
    assert len(differing) == 8
    took.sort()
    assert took[-3] < 1.5  # milliseconds each, but where a machine is busy


def test_a_domain_of_devices_without_a_solution_costs_no_factorial() -> None:
    """16 requests of one pod for 64 devices, in four forms that have no solution."""
    devices = [
        {
            "name": f"gpu-{i:02}",
            "attributes": {"numa": {"int": i // 15}, "model": {"string": "ab"[i % 2]}, "index": {"int": i % 15}},
            "capacity": {"memory": {"value": f"{10 + i % 3}Gi"}},
        }
        for i in range(64)
    ]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    case = {
        "node": {"metadata": {"name": "n", "labels": {}}},
        "slices": [
            {"metadata": {"name": "s"}, "spec": {"driver": "d.io", "pool": pool, "nodeName": "n", "devices": devices}}
        ],
        "classes": [{"metadata": {"name": "gpu"}, "spec": {}}],
    }
    state = state_of(node_report(case))
    StaticInside.of(state.layout).table.verdicts(())
    for constraints, selectors in (
        ([{"matchAttribute": "d.io/numa"}], {}),
        ([{"distinctAttribute": "d.io/index"}], {}),
        ([{"matchAttribute": "d.io/model"}, {"distinctAttribute": "d.io/numa"}], {}),
        ([], dict.fromkeys(range(16), "device.attributes['d.io'].numa == 0")),
    ):
        requests = [
            {
                "name": f"r{i}",
                "exactly": {
                    "deviceClassName": "gpu",
                    "selectors": [{"cel": {"expression": selectors[i]}}] if i in selectors else [],
                },
            }
            for i in range(16)
        ]
        shape = asked([{"devices": {"requests": requests, "constraints": constraints}}])
        start = time.process_time()
        assert state.assign([(Asked(shape), 1)]) is None
        assert time.process_time() - start < 15, "a tenth of a second on a quiet machine"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"requests": [{"name": "a"}]}, ("devices", "requests", 0, "deviceClassName")),
        (
            {"requests": [{"name": "a", "exactly": {"deviceClassName": "c", "count": 0}}]},
            ("devices", "requests", 0, "exactly", "count"),
        ),
        (
            {"requests": [{"name": "a", "exactly": {"deviceClassName": "c", "count": 33}}]},
            ("devices", "requests", 0, "exactly", "count"),
        ),
        (
            {
                "requests": [
                    {"name": "a", "exactly": {"deviceClassName": "c", "selectors": [{"cel": {"expression": "1"}}]}}
                ]
            },
            ("devices", "requests", 0, "exactly", "selectors", 0, "cel", "expression"),
        ),
        (
            {
                "requests": [
                    {"name": "a", "firstAvailable": [{"name": str(i), "deviceClassName": "c"} for i in range(9)]}
                ]
            },
            ("devices", "requests", 0, "firstAvailable"),
        ),
        (
            {
                "requests": [{"name": "a", "deviceClassName": "c"}],
                "constraints": [{"requests": ["b"], "matchAttribute": "d/x"}],
            },
            ("devices", "constraints", 0, "requests", 0),
        ),
        (
            {"requests": [{"name": "a", "deviceClassName": "c"}], "constraints": [{"matchAttribute": "x"}]},
            ("devices", "constraints", 0),
        ),
        (
            {"requests": [{"name": "a", "exactly": {"deviceClassName": "c", "capacity": {"requests": {"m": "x"}}}}]},
            ("devices", "requests", 0, "exactly", "capacity", "requests", "m"),
        ),
    ],
)
def test_what_is_wrong_with_a_claim_is_told_with_its_path(spec: Json, path: tuple[str | int, ...]) -> None:
    assert [error.path for error in claim_errors(read_claim({"devices": spec}))] == [path]


def test_claims_of_the_first_version_are_read_alike() -> None:
    flat = {"devices": {"requests": [{"name": "a", "deviceClassName": "c", "count": 2}]}}
    nested = {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c", "count": 2}}]}}
    assert claim_needs("x", read_claim(flat)) == claim_needs("x", read_claim(nested))
