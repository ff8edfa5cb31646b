"""Devices of drivers in simulated clusters: objects of fleet files, claims of strangers and of the mesh, devices that fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from moorage.model.problems import Refused
from moorage.podspec import ALLOCATES, CLASS_OF_PIN, DRA_LABEL, PINNED_DEVICES, TEMPLATE_SLOTS
from moorage.sim.core.fleet_documents import decode, expand

from .world import World, app, workload

Json = dict[str, Any]
CLUSTER, DRIVER, API = "lab/a", "gpu.example.com", {"apiVersion": "resource.k8s.io/v1"}
EVERY: Json = {**API, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": []}}


def device(name: str, memory: str = "80Gi", taint: str = "", **more: Any) -> Json:
    taints = {"taints": [{"key": "broken", "effect": taint}]} if taint else {}
    return {
        "name": name,
        "attributes": {"model": {"string": "h100"}},
        "capacity": {"memory": {"value": memory}},
        **taints,
        **more,
    }


def slice_of(node: str, *devices: Json, generation: int = 1, count: int = 1, name: str = "") -> Json:
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    own = [d | {"attributes": d["attributes"] | {"uuid": {"string": f"{node}-{d['name']}"}}} for d in devices]
    spec = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": own}
    return {**API, "kind": "ResourceSlice", "metadata": {"name": name or f"{node}-gpus"}, "spec": spec}


def claim_spec(count: int = 1, device_class: str = "gpu", **more: Any) -> Json:
    exactly = {"deviceClassName": device_class, "count": count, **more}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def claim(name: str, count: int = 1, devices: Iterable[str] = (), **more: Any) -> Json:
    results = [dict(zip(("driver", "pool", "device"), i.split("/"), strict=True)) | {"request": "gpu"} for i in devices]
    status = {"status": {"allocation": {"devices": {"results": results}}}} if results else {}
    metadata = {"name": name, "namespace": "shop"}
    return {**API, "kind": "ResourceClaim", "metadata": metadata, "spec": claim_spec(count, **more), **status}


def template(name: str, count: int = 1, **more: Any) -> Json:
    metadata = {"name": name, "namespace": "shop"}
    return {
        **API,
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": claim_spec(count, **more)},
    }


def fleet(*objects: Json, pods: Iterable[Json] = (), nodes: int = 2, **node: Any) -> Json:
    given = {"name": "n", "count": nodes, "allocatable": {"cpu": "8", "memory": "32Gi"}, **node}
    return {
        "clusters": [{"name": "a", "provider": "lab", "nodes": [given], "objects": list(objects), "pods": list(pods)}]
    }


def using(template: str = "", claim: str = "") -> Json:
    by = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
    return {"resourceClaims": [{"name": "gpu", **by}]}


def stranger(name: str, node: str = "", **spec: Any) -> Json:
    body = {"containers": [{"name": "c"}], **({"nodeName": node} if node else {}), **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop"}, "spec": body}


def pin(name: str, *devices: str, of: str = "gpu") -> Json:
    annotations = {CLASS_OF_PIN: of, PINNED_DEVICES: msgspec.json.encode(devices).decode()}
    return {**API, "kind": "DeviceClass", "metadata": {"name": name, "annotations": annotations}, "spec": {}}


def ident(node: str, name: str) -> str:
    return f"{DRIVER}/{node}/{name}"


def in_use(world: World, node: str) -> set[str]:
    return set(world.nodes[CLUSTER][node].in_use)


def change(world: World, document: Json) -> None:
    world.core.apply(expand(decode(document)), world.now)
    world.run(1)


GPUS = [slice_of("n-0", device("a"), device("b", "40Gi")), slice_of("n-1", device("a"), device("b"))]


def test_slices_and_claims_are_reported_as_by_agents() -> None:
    world = World(fleet(EVERY, *GPUS, claim("held", devices=[ident("n-0", "b")])))
    node = world.nodes[CLUSTER]["n-0"]
    assert [(d.id, d.capacity) for d in node.devices] == [
        (ident("n-0", "a"), {"memory": "80Gi"}),
        (ident("n-0", "b"), {"memory": "40Gi"}),
    ]
    assert [found.name for found in node.device_classes] == ["gpu"]
    assert node.in_use == {ident("n-0", "b"): {"GPU_EXAMPLE_COM": "1"}}
    world.assert_reported()


def test_pools_that_are_not_complete_or_make_no_sense_have_problems() -> None:
    twice = [slice_of("n-1", device("a"), count=2, name=name) for name in ("x", "y")]
    world = World(fleet(EVERY, slice_of("n-0", device("a"), count=2), *twice))
    for node, text in (("n-0", "1 of 2 slices"), ("n-1", "two devices are named a")):
        found = world.nodes[CLUSTER][node]
        assert found.incomplete_pools and text in found.problems[0]


def test_quotas_bound_the_devices_of_a_class_pinned_or_not() -> None:
    hard = {"gpu.deviceclass.resource.k8s.io/devices": "2"}
    quota: Json = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "shop"},
        "spec": {"hard": hard},
    }
    world = World(fleet(EVERY, quota, *GPUS))
    pinned = template("moorage-c-own")
    pinned["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "moorage-c-gpu"
    devices = [ident("n-0", "b"), ident("n-1", "a"), ident("n-1", "b")]
    objects = [pin("moorage-c-gpu", *devices), pinned, workload(replicas=3, **using("moorage-c-own"))]
    world.want(CLUSTER, app(1, *objects))
    world.run(5)
    had = in_use(world, "n-0") | in_use(world, "n-1")
    assert len(had) == 2 and had < set(devices), "the quota holds for pins, and they for the scheduler"
    told = {o.object: o.code for o in world.last().objects if o.code}
    assert [(name.partition("-c-own-")[0], code) for name, code in told.items()] == [
        ("ResourceClaimTemplate/moorage", "PinnedByTemplate")
    ]
    change(world, fleet(EVERY, {**quota, "spec": {"hard": {"pods": "9"}}}, *GPUS))
    world.run(5)
    assert in_use(world, "n-0") | in_use(world, "n-1") == set(devices)


def test_pods_of_the_mesh_and_of_strangers_get_the_first_devices_that_fit() -> None:
    large: Json = {
        "selectors": [{"cel": {"expression": f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("50Gi"))'}}]
    }
    world = World(fleet(EVERY, *GPUS, template("large", **large), pods=[stranger("first", **using("large"))]))
    assert in_use(world, "n-0") == {ident("n-0", "a")}
    world.want(CLUSTER, app(1, template("own", **large), workload(replicas=3, **using("own"))))
    world.run(5)
    pods = sorted(world.pods[CLUSTER].values(), key=lambda pod: pod.node)
    assert [pod.node for pod in pods] == ["", "n-1", "n-1"], "one has no device left"
    assert sorted(next(iter(pod.parts)) for pod in pods[1:]) == [ident("n-1", "a"), ident("n-1", "b")]
    assert "Unschedulable" in world.last().objects[-1].message
    change(world, fleet(EVERY, *GPUS, template("large", **large)))
    world.run(5)
    assert sorted(pod.node for pod in world.pods[CLUSTER].values()) == ["n-0", "n-1", "n-1"]
    world.want(CLUSTER, app(2, remove=True))
    world.run(5)
    assert not in_use(world, "n-0") | in_use(world, "n-1")
    world.assert_reported()


def test_pins_leave_no_other_choice_and_follow_a_device_that_is_replaced() -> None:
    world = World(fleet(EVERY, *GPUS))
    pinned = template("moorage-c1-gpu", device_class="moorage-c1-gpu")
    web = workload(replicas=1, **using("moorage-c1-gpu"))
    world.want(CLUSTER, app(1, web, pinned, pin("moorage-c1-gpu", ident("n-1", "b"))))
    world.run(2)
    (pod,) = world.pods[CLUSTER].values()
    assert (pod.node, set(pod.parts)) == ("n-1", {ident("n-1", "b")})
    broken = [GPUS[0], slice_of("n-1", device("a"), device("b", taint="NoExecute"))]
    change(world, fleet(EVERY, *broken))
    (again,) = world.pods[CLUSTER].values()
    assert again.uid != pod.uid and not again.node and not again.parts, "it was evicted, and has no other device"
    world.want(CLUSTER, app(2, web, pinned, pin("moorage-c1-gpu", ident("n-0", "b"))))
    world.run(2)
    (moved,) = world.pods[CLUSTER].values()
    assert (moved.uid, moved.node, set(moved.parts)) == (again.uid, "n-0", {ident("n-0", "b")})
    world.assert_reported()


def test_pods_that_are_pinned_to_halves_of_cards_without_names_take_no_card() -> None:
    def part(name: str, memory: str, slices: str) -> Json:
        uses = [{"counterSet": name[:2], "counters": {"slices": {"value": slices}}}]
        return {"name": name, "capacity": {"memory": {"value": memory}}, "consumesCounters": uses}

    devices = [
        part(f"c{card}{half}", "40Gi" if half else "80Gi", "1" if half else "2")
        for card in "01"
        for half in ("", "a", "b")
    ]
    spec = {"driver": DRIVER, "pool": {"name": "n", "generation": 1, "resourceSliceCount": 2}, "nodeName": "n"}
    sets = [{"name": f"c{card}", "counters": {"slices": {"value": "2"}}} for card in "01"]
    slices = [
        {**API, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec | more}
        for name, more in (("a", {"devices": devices}), ("b", {"sharedCounters": sets}))
    ]
    world = World(fleet(EVERY, *slices, nodes=1))
    card, half, *others = (device.alike for device in world.nodes[CLUSTER]["n"].devices)
    assert others == [half, card, half, half] and 0 != card != half != 0
    halves = [ident("n", name) for name in ("c0a", "c0b", "c1a")]
    pinned = template("moorage-c1-gpu", device_class="moorage-c1-gpu")
    web = workload(replicas=3, **using("moorage-c1-gpu"))
    world.want(CLUSTER, app(1, web, pinned, pin("moorage-c1-gpu", *halves)))
    world.run(2)
    assert sorted(part for pod in world.pods[CLUSTER].values() for part in pod.parts) == halves
    world.assert_reported()


def with_slots(*slots: tuple[str, str]) -> tuple[Json, ...]:
    """Returns a pinned template with these slots, each a node and a device, and its class."""
    pinned = template("moorage-c1-gpu", device_class="moorage-c1-gpu")
    found = [{"node": node, "devices": {"gpu": [ident(node, name)]}} for node, name in slots]
    pinned["metadata"]["annotations"] = {TEMPLATE_SLOTS: msgspec.json.encode(found).decode()}
    return pinned, pin("moorage-c1-gpu", *(ident(node, name) for node, name in slots))


def allocating(*objects: Json, **more: Any) -> Json:
    """Returns a fleet of a cluster whose agent allocates claims itself."""
    found = fleet(*objects, **more)
    found["clusters"][0]["labels"] = {DRA_LABEL: ALLOCATES}
    return found


def test_an_agent_that_allocates_gives_each_pod_the_devices_of_one_slot() -> None:
    # Equal to every selector, so that a scheduler would give the first pod the first of them.
    alike = [slice_of("n-0"), slice_of("n-1")]
    for found in alike:
        found["spec"]["devices"] = [{"name": name, "capacity": {"memory": {"value": "80Gi"}}} for name in "abc"]
    held = claim("held", devices=[ident("n-1", "a")])
    world = World(allocating(EVERY, *alike, held))
    web = workload(replicas=3, **using("moorage-c1-gpu"))
    slots = with_slots(("n-1", "a"), ("n-1", "c"), ("n-0", "b"))
    world.want(CLUSTER, app(1, web, *slots))
    world.run(2)
    first, second, waits = sorted(world.pods[CLUSTER].values(), key=lambda pod: pod.node or "z")
    assert (first.node, set(first.parts)) == ("n-0", {ident("n-0", "b")})
    assert (second.node, set(second.parts)) == ("n-1", {ident("n-1", "c")})
    assert not waits.node and not waits.parts, "a stranger has its device"
    world.assert_reported()
    change(world, allocating(EVERY, *alike))
    world.run(1)
    freed = world.pods[CLUSTER][waits.uid]
    assert (freed.node, set(freed.parts)) == ("n-1", {ident("n-1", "a")})
    change(world, fleet(EVERY, *alike))
    world.want(CLUSTER, app(2, workload(replicas=4, **using("moorage-c1-gpu")), *slots))
    world.run(2)
    assert sum(bool(pod.node) for pod in world.pods[CLUSTER].values()) == 4, "without the label the scheduler chooses"
    world.assert_reported()


def test_a_pod_is_bound_to_devices_only_when_their_conditions_hold() -> None:
    conditions: Json = {"bindingConditions": ["example.com/attached"]}
    document = fleet(EVERY, slice_of("n", device("a", **conditions), device("b", **conditions)), nodes=1)
    document["clusters"][0] |= {"behaviour": {"bindingDelayMs": 5000}}
    world = World(document)
    web = workload(replicas=2, cpu="5", **using("own"))
    world.want(CLUSTER, app(1, web, template("own")))
    world.run(3)
    pods = world.pods[CLUSTER].values()
    told = sorted((pod.node, pod.phase, list(pod.parts)) for pod in pods)
    assert told == [("", "Pending", []), ("n", "Pending", [ident("n", "a")])]
    assert in_use(world, "n") == {ident("n", "a")}, "the node has no room for the other pod"
    world.run(3)
    assert sorted((pod.node, pod.phase) for pod in pods) == [("", "Pending"), ("n", "Running")]
    for version, replicas in ((2, 0), (3, 1), (4, 0)):
        world.want(CLUSTER, app(version, workload(replicas=replicas, **using("own")), template("own")))
        world.run(1)
    assert not world.pods[CLUSTER] and not in_use(world, "n"), "a pod that waits gives back what it has"
    world.assert_reported()


def test_a_stranger_may_take_the_device_that_was_chosen() -> None:
    """The pin names a device that a stranger's pod has by the time: the pod waits, and what the stranger has is told."""
    world = World(fleet(EVERY, *GPUS, template("any")))
    change(world, fleet(EVERY, *GPUS, template("any"), pods=[stranger("quick", **using("any"))]))
    taken = in_use(world, "n-0")
    assert len(taken) == 1
    pinned = template("moorage-c1-gpu", device_class="moorage-c1-gpu")
    web = workload(replicas=1, **using("moorage-c1-gpu"))
    world.want(CLUSTER, app(1, web, pinned, pin("moorage-c1-gpu", *taken)))
    world.run(2)
    assert [pod.node for pod in world.pods[CLUSTER].values()] == [""]
    world.want(CLUSTER, app(2, web, pinned, pin("moorage-c1-gpu", *taken, ident("n-1", "a"))))
    world.run(2)
    assert [set(pod.parts) for pod in world.pods[CLUSTER].values()] == [{ident("n-1", "a")}]


def test_a_claim_used_by_name_is_one_allocation_for_all_its_pods() -> None:
    world = World(fleet(EVERY, *GPUS))
    world.want(CLUSTER, app(1, claim("ours", 2), workload(replicas=3, **using(claim="ours"))))
    world.run(5)
    pods = world.pods[CLUSTER].values()
    assert {pod.node for pod in pods} == {"n-0"} and in_use(world, "n-0") == {ident("n-0", "a"), ident("n-0", "b")}
    assert not any(pod.parts for pod in pods), "no pod alone has them"
    world.want(CLUSTER, app(2, claim("ours", 2), workload(replicas=0, **using(claim="ours"))))
    world.run(5)
    assert not in_use(world, "n-0"), "the last pod gives the devices back"


def test_devices_come_and_go_while_pods_run() -> None:
    world = World(fleet(EVERY, slice_of("n-0", device("a"))))
    world.want(CLUSTER, app(1, template("one"), workload(replicas=2, **using("one"))))
    world.run(2)
    assert sorted(pod.node for pod in world.pods[CLUSTER].values()) == ["", "n-0"]
    change(world, fleet(EVERY, slice_of("n-0", device("a"), device("new"), generation=2)))
    world.run(2)
    assert sorted(pod.node for pod in world.pods[CLUSTER].values()) == ["n-0", "n-0"], "the new one is taken at once"
    before = set(world.pods[CLUSTER])
    change(world, fleet(EVERY, slice_of("n-0", device("new"), generation=3)))
    assert set(world.pods[CLUSTER]) == before, "a device that is gone ends no pod"
    assert in_use(world, "n-0") == {ident("n-0", "new")}
    parts = sorted(part for pod in world.pods[CLUSTER].values() for part in pod.parts)
    assert parts == [ident("n-0", "a"), ident("n-0", "new")], "what a pod has is told though nobody offers it"
    world.assert_reported()


@pytest.mark.parametrize(("seconds", "stays"), [(None, True), (0, False), (5, True)])
def test_tolerations_keep_pods_on_tainted_devices_for_their_time(seconds: int | None, stays: bool) -> None:
    rule = {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "maintenance"},
        "spec": {"deviceSelector": {"pool": "n-0"}, "taint": {"key": "down", "effect": "NoExecute"}},
    }
    toleration: Json = {"key": "down", "operator": "Exists"} | (
        {} if seconds is None else {"tolerationSeconds": seconds}
    )
    world = World(fleet(EVERY, slice_of("n-0", device("a"))))
    own = template("one", tolerations=[toleration])
    world.want(CLUSTER, app(1, own, workload(replicas=1, **using("one"))))
    world.run(2)
    (before,) = world.pods[CLUSTER]
    change(world, fleet(EVERY, slice_of("n-0", device("a")), rule))
    assert (before in world.pods[CLUSTER]) == stays
    world.run(10)
    assert (before in world.pods[CLUSTER]) == (seconds is None)


def test_extended_resources_that_a_class_backs_are_served_by_devices() -> None:
    backing = {**EVERY, "spec": {"selectors": [], "extendedResourceName": "example.com/gpu"}}
    world = World(fleet(backing, *GPUS))
    assert world.nodes[CLUSTER]["n-0"].allocatable["example.com/gpu"] == "2"
    manifest = workload(replicas=1)
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["requests"]["example.com/gpu"] = "2"
    container["resources"]["limits"] = {"example.com/gpu": "2"}
    world.want(CLUSTER, app(1, manifest))
    world.run(2)
    (pod,) = world.pods[CLUSTER].values()
    assert pod.node == "n-0" and set(pod.parts) == in_use(world, "n-0") == {ident("n-0", "a"), ident("n-0", "b")}
    node = world.nodes[CLUSTER]["n-0"]
    assert (node.allocatable["example.com/gpu"], node.requested["example.com/gpu"]) == ("2", "2")
    world.assert_reported()


def test_admin_access_takes_nothing_and_needs_a_labelled_namespace() -> None:
    label = {"resource.kubernetes.io/admin-access": "true"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": label}}
    for objects, node in (((EVERY, *GPUS), ""), ((EVERY, *GPUS, space), "n-0")):
        world = World(fleet(*objects))
        world.want(CLUSTER, app(1, template("see", adminAccess=True), workload(replicas=1, **using("see"))))
        world.run(2)
        assert [pod.node for pod in world.pods[CLUSTER].values()] == [node]
        assert not in_use(world, "n-0")


def test_devices_of_documents_and_of_drivers_are_told_together() -> None:
    own = {"name": "nic", "kind": "nic", "used": 1}
    world = World(
        fleet(EVERY, slice_of("n", device("a")), claim("x", devices=[ident("n", "a")]), nodes=1, devices=[own])
    )
    node = world.nodes[CLUSTER]["n"]
    assert [device.name for device in node.devices] == ["nic", "a"]
    assert node.in_use == {"nic": {"NIC": "1"}, ident("n", "a"): {"GPU_EXAMPLE_COM": "1"}}


@pytest.mark.parametrize(
    ("objects", "path", "code"),
    [
        ([{"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}}], "[0].kind", "UnknownKind"),
        ([{**EVERY, "apiVersion": "v1"}], "[0].apiVersion", "UnknownKind"),
        ([EVERY, EVERY], "[1].metadata.name", "Duplicate"),
        ([{**EVERY, "metadata": {"name": "A b"}}], "[0].metadata.name", "BadName"),
        ([slice_of("other", device("a"))], "[0].spec.nodeName", "Invalid"),
        ([slice_of("n-0", device("a"), device("a"))], "[0].spec.devices[1].name", "Invalid"),
        ([slice_of("n-0", device("a", taint="Never"))], "[0].spec.devices[0].taints[0].effect", "Invalid"),
        ([slice_of("n-0", device("a", attributes={"x": 1}))], "[0].spec.devices[0].attributes.x", "Invalid"),
        ([slice_of("n-0", device("a", "many"))], "[0].spec.devices[0].capacity.memory", "Invalid"),
        ([slice_of("n-0", *(device(f"d{i}") for i in range(129)))], "[0].spec.devices", "Invalid"),
        ([slice_of("n-0", count=0)], "[0].spec.pool.resourceSliceCount", "Invalid"),
        (
            [claim("c", devices=["d/p/x"]) | {"spec": claim_spec(0)}],
            "[0].spec.devices.requests[0].exactly.count",
            "Invalid",
        ),
        (
            [template("t", selectors=[{"cel": {"expression": "device.x"}}])],
            "[0].spec.spec.devices.requests[0].exactly.selectors[0].cel.expression",
            "SelectorError",
        ),
        ([{**EVERY, "spec": {"selectors": "all"}}], "[0].spec.selectors", "WrongType"),
        (
            [{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"cpu": "x"}}}],
            "[0].spec.hard.cpu",
            "Invalid",
        ),
        ([7], "", "WrongType"),
    ],
)
def test_what_is_wrong_with_objects_is_told_with_its_path(objects: list[Any], path: str, code: str) -> None:
    with pytest.raises(Refused) as caught:
        decode(fleet(*objects))
    errors = {(error.path, error.code) for error in caught.value.problem.errors}
    assert (f"clusters[0].objects{path}", code) in errors
