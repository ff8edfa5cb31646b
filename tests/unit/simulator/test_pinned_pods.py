"""Simulated clusters bind no gated pod, and open the gate of claims as agents do: each pod runs in a slot of its claim."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from moorage.model.desired_state import DesiredApp, PinnedClaim, PinnedSlot, Pins
from moorage.podspec import CLAIM, GATE

from .world import World, app, workload

CLUSTER = "lab/a"
GATES: dict[str, Any] = {"schedulingGates": [{"name": GATE}]}


def fleet(**behaviour: float) -> dict[str, Any]:
    """Four nodes with room for two pods each."""
    node = {"name": "n", "count": 4, "allocatable": {"cpu": "2", "memory": "8Gi"}}
    return {"clusters": [{"name": "a", "provider": "lab", "nodes": [node], "behaviour": behaviour}]}


def pins(obj: str = "Deployment/web", **of_claims: Mapping[str, int]) -> Pins:
    claims = [
        PinnedClaim(claim=claim, object=obj, slots=[PinnedSlot(node=node, count=n) for node, n in slots.items()])
        for claim, slots in of_claims.items()
    ]
    return Pins(tag=str(of_claims), claims=claims)


def with_pins(version: int, manifest: dict[str, Any], given: Pins, claim: str = "c1") -> DesiredApp:
    made = msgspec.json.decode(msgspec.json.encode(manifest))
    made["spec"]["template"]["metadata"]["labels"][CLAIM] = claim
    return msgspec.structs.replace(app(version, made), pins=given)


def nodes(world: World) -> dict[str, int]:
    return dict(Counter(pod.node for pod in world.pods[CLUSTER].values()))


def test_pods_with_gates_of_others_wait() -> None:
    world = World(fleet())
    world.want(CLUSTER, app(1, workload(schedulingGates=[{"name": "other/gate"}])))
    world.run(10)
    assert nodes(world) == {"": 2} and "SchedulingGated" in world.last().objects[0].message


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet", "Job"])
def test_each_pod_runs_in_a_slot(kind: str) -> None:
    world = World(fleet())
    obj = f"{kind}/web"
    world.want(CLUSTER, with_pins(1, workload(kind, replicas=3, **GATES), pins(obj, c1={"n-1": 1, "n-3": 2})))
    world.run(5)
    assert nodes(world) == {"n-1": 1, "n-3": 2} and world.last().objects[0].state == "Ready"
    world.core.fault(CLUSTER, "lose-pods", 1.0, world.now)
    world.run(10)
    assert nodes(world) == {"n-1": 1, "n-3": 2}
    before = set(world.pods[CLUSTER])
    # One more, whose template is the same.
    if kind != "Job":
        world.want(
            CLUSTER, with_pins(2, workload(kind, replicas=4, **GATES), pins(obj, c1={"n-1": 1, "n-3": 2, "n-0": 1}))
        )
        world.run(5)
        assert nodes(world) == {"n-0": 1, "n-1": 1, "n-3": 2} and before < set(world.pods[CLUSTER])
    world.assert_reported()


def test_pods_wait_for_a_slot_and_take_the_one_that_moves() -> None:
    world = World(fleet())
    manifest = workload(replicas=3, **GATES)
    world.want(CLUSTER, with_pins(1, manifest, pins(c1={"n-1": 1, "gone": 2})))
    world.run(5)
    assert nodes(world) == {"n-1": 1, "": 2}
    assert "SchedulingGated" in world.last().objects[0].message
    world.want(CLUSTER, with_pins(1, manifest, pins(c1={"n-1": 1, "n-2": 2})))
    world.run(5)
    assert nodes(world) == {"n-1": 1, "n-2": 2}


def test_what_leads_to_no_pins_lets_gated_pods_wait() -> None:
    world = World(fleet())
    world.want(CLUSTER, with_pins(1, workload(**GATES), pins(other={"n-1": 2})))
    world.run(5)
    assert nodes(world) == {"": 2}
    world.want(CLUSTER, app(2, remove=True))
    world.run(5)
    assert not world.pods[CLUSTER]


@pytest.mark.parametrize("seed", range(25))
def test_rollouts_and_losses_end_in_the_slots(seed: int) -> None:
    """Slots for one pod of the surge stand beside the older claim, as the ledger has them."""
    rng = random.Random(seed)
    world = World(fleet(readyDelayMs=300))
    every = [f"n-{i}" for i in range(4)] * 2
    version, slots = 1, Counter(rng.sample(every, 4))
    strategy = {"strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}

    def want(claim: str, image: str, given: Pins) -> None:
        made = workload(replicas=4, **GATES)
        made["spec"] |= strategy
        made["spec"]["template"]["spec"]["containers"][0]["image"] = image
        world.want(CLUSTER, with_pins(version, made, given, claim))

    claim = 1
    want("c1", "0", pins(c1=slots))
    for step in range(1, 5):
        world.run(rng.uniform(0, 2))
        if rng.random() < 0.5:
            world.core.fault(CLUSTER, "lose-pods", rng.uniform(0, 1), world.now)
        world.run(20)
        assert Counter(nodes(world)) == slots, (seed, step)
        version, claim = version + 1, claim + 1
        surge = rng.choice([node for node in sorted(set(every)) if slots[node] < 2])
        both = pins("Deployment/web", **{f"c{claim - 1}": slots, f"c{claim}": slots})
        both.claims[1].slots.append(PinnedSlot(node=surge, surge=True))
        want(f"c{claim}", str(step), both)
        world.run(rng.uniform(0, 3))
        if rng.random() < 0.5:
            world.core.fault(CLUSTER, "lose-pods", rng.uniform(0, 1), world.now)
        world.run(60)
        assert world.last().objects[0].state == "Ready", (seed, step, nodes(world), slots, surge)
        found = Counter(nodes(world))
        assert not found - (slots + Counter([surge])), (seed, step, found, slots, surge)
        slots = found  # what a settlement makes of it
        want(f"c{claim}", str(step), pins("Deployment/web", **{f"c{claim}": slots}))
    world.assert_reported()
