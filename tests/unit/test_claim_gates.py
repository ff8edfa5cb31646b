"""Gated pods get the slots of their claims: each slot one pod, in whatever order pods, rollouts, evictions and restarts come."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from moorage.agent.core import kube_types
from moorage.agent.core.gated_pods import GatedPods
from moorage.kube.objects import Key
from moorage.model.desired_state import PinnedClaim, PinnedSlot, Pins
from moorage.podspec import CLAIM, GATE, PARTS, ClaimedPod, Refusals, assign, pinned_node, pinned_to

CPU = {"cpu": 1000, "pods": 1}
Free = Callable[[str], Mapping[str, int] | None]


def claim(ident: str = "c", obj: str = "Deployment/web", surge: str = "", **nodes: int) -> PinnedClaim:
    slots = [PinnedSlot(node=node, count=count) for node, count in nodes.items()]
    return PinnedClaim(claim=ident, object=obj, slots=slots + ([PinnedSlot(node=surge, surge=True)] if surge else []))


def pod(number: int, of: str = "c", node: str = "", **more: Any) -> ClaimedPod:
    more.setdefault("gated", not node)
    return ClaimedPod(uid=f"{of}-{number}", claim=of, created=f"{number:03}", requests=CPU, node=node, **more)


def bound(number: int, node: str, of: str = "c", **more: Any) -> ClaimedPod:
    return pod(number, of, node, bound=True, **more)


def by_claim(*pods: ClaimedPod) -> dict[str, list[ClaimedPod]]:
    found: dict[str, list[ClaimedPod]] = {}
    for one in pods:
        found.setdefault(one.claim, []).append(one)
    return found


def cores(**free: int) -> Free:
    return lambda node: {"cpu": 1000 * free.get(node, 8), "pods": 100}


def test_each_pod_gets_a_slot_of_its_own() -> None:
    found = assign([claim(a=1, b=2)], by_claim(*(pod(i) for i in range(4))), cores())
    assert Counter(found.opened.values()) == {"a": 1, "b": 2} and "c-3" not in found.opened and not found.misplaced
    again = assign([claim(a=1, b=2)], by_claim(*(pod(i) for i in reversed(range(4)))), cores())
    assert again == found, "whoever reads the pods comes to the same"


def test_bound_and_pinned_pods_have_their_slots() -> None:
    pods = by_claim(bound(0, "b"), pod(1, node="b"), pod(2), bound(3, "a", ending=True))
    assert assign([claim(a=1, b=2)], pods, cores()).opened == {"c-2": "a"}


def test_a_pod_waits_until_its_node_has_room() -> None:
    one = claim(a=1, b=1)
    assert assign([one], by_claim(pod(0), pod(1)), cores(a=0, b=1)).opened == {"c-0": "b"}
    assert not assign([one], by_claim(pod(0)), lambda _node: None).opened
    beside = claim("d", "Deployment/other", b=1)
    pinned = by_claim(pod(0), pod(1, "d", node="b"))
    assert not assign([claim(b=1), beside], pinned, cores(b=1)).opened, "pods that are on their way count"


def test_the_first_pod_of_a_rollout_takes_the_slot_with_room() -> None:
    """All nodes are full of older pods but the one that is claimed for the surge."""
    old, new = claim("old", a=1, b=1, c=1), claim("new", a=1, b=1, c=1, surge="d")
    older = [bound(i, node, "old") for i, node in enumerate("abc")]
    full = cores(a=0, b=0, c=0, d=1)
    assert assign([old, new], by_claim(*older, pod(0, "new"), pod(1, "new")), full).opened == {"new-0": "d"}
    rest = [bound(0, "d", "new"), pod(1, "new"), *older[:1], *older[2:]]
    assert assign([old, new], by_claim(*rest), cores(a=0, b=1, c=0, d=0)).opened == {"new-1": "b"}


def test_a_pod_that_an_older_claim_loses_during_a_rollout_comes_back() -> None:
    old, new = claim("old", a=1), claim("new", a=1, surge="b")
    assert assign([old, new], by_claim(pod(0, "old")), cores()).opened == {"old-0": "a"}


def test_another_template_of_one_claim_starts_beside_the_pods_that_it_replaces() -> None:
    one = claim(a=1, b=1)
    old = [bound(0, "a", revision="1"), bound(1, "b", revision="1")]
    new = [pod(2, revision="2"), pod(3, revision="2")]
    assert assign([one], by_claim(*old, *new), cores(a=0, b=1)).opened == {"c-2": "b"}
    assert not assign([one], by_claim(*old, pod(2, revision="1")), cores()).opened


def test_a_pod_whose_slot_moved_before_it_was_bound_is_made_again() -> None:
    found = assign([claim(b=1)], by_claim(pod(0, node="a")), cores())
    assert found.misplaced == ["c-0"] and not found.opened
    assert not assign([claim(b=1)], by_claim(bound(0, "a")), cores()).misplaced, "what runs is let run"
    assert not assign([], by_claim(pod(0, node="a")), cores()).misplaced, "nothing is known of the claim"
    twice = assign([claim(a=1)], by_claim(pod(0, node="a"), pod(1, node="a")), cores())
    assert twice.misplaced == ["c-1"], "the younger of two that two agents sent there"


def test_a_node_that_refused_a_pod_is_left_alone_for_a_while() -> None:
    refusals, pods = Refusals(), by_claim(pod(0))

    def opened(now: float) -> Mapping[str, str]:
        return assign([claim(a=1)], pods, cores(), lambda c, n: refusals.avoids(c, n, now)).opened

    assert opened(0)
    for times, pause in enumerate((5, 10, 20)):
        now = 100.0 * times
        refusals.note(f"p{times}", "c", "a", now)
        refusals.note(f"p{times}", "c", "a", now + 3)
        assert not opened(now + pause - 0.1) and opened(now + pause) and refusals.next(now) == now + pause


# --- random lives of one object


class World:
    """One Deployment, a scheduler that binds only where there is room, and slots that the ledger would have."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.room = {f"n{i}": rng.randint(1, 3) for i in range(4)}
        self.pods: dict[str, ClaimedPod] = {}
        self.serial = 0
        self.revision = 1
        self.claims = [self.laid(1)]

    @property
    def wanted(self) -> int:
        return sum(slot.count for slot in self.claims[-1].slots if not slot.surge)

    def laid(self, revision: int, like: PinnedClaim | None = None) -> PinnedClaim:
        if like is not None:
            counts = Counter({slot.node: slot.count for slot in like.slots if not slot.surge})
        else:
            places = [node for node, most in self.room.items() for _ in range(most)]
            counts = Counter(self.rng.sample(places, self.rng.randint(1, len(places) - 1)))
        left = [n for n in self.room if counts[n] < self.room[n]]
        slots = [PinnedSlot(node=node, count=count) for node, count in sorted(counts.items())]
        surge = [PinnedSlot(node=self.rng.choice(left), surge=True)] if like is not None else []
        return PinnedClaim(claim=f"c{revision}", object="Deployment/web", slots=slots + surge)

    def free(self, node: str) -> Mapping[str, int] | None:
        on = sum(p.bound and p.node == node for p in self.pods.values())
        return {"cpu": 1000 * (self.room[node] - on), "pods": 100 - on} if node in self.room else None

    def agent(self) -> None:
        of_claim = by_claim(*self.pods.values())
        found = assign(self.claims, of_claim, self.free)
        assert found == assign(self.claims, {c: pods[::-1] for c, pods in of_claim.items()}, self.free)
        self.check_opened(found.opened)
        for uid, node in found.opened.items():
            if self.rng.random() < 0.2:
                continue  # an agent that is killed between two pods
            assert self.pods[uid].gated
            self.pods[uid] = self.pods[uid]._replace(node=node, gated=False)
        for uid in found.misplaced:
            assert not self.pods[uid].bound
            del self.pods[uid]

    def scheduler(self) -> None:
        for uid, one in list(self.pods.items()):
            free = self.free(one.node) if one.node else None
            if one.node and not one.bound and free is not None and free["cpu"] >= 1000 and self.rng.random() < 0.7:
                self.pods[uid] = one._replace(bound=True)

    def controller(self) -> None:
        """Surge of one, none missing: an older pod goes when as many new ones run."""
        newest = self.claims[-1].claim
        new = [p for p in self.pods.values() if p.claim == newest]
        old = [p for p in self.pods.values() if p.claim != newest]
        for one in [p for p in old if not p.bound]:
            del self.pods[one.uid]
            old.remove(one)
        if len(new) < self.wanted and len(new) + len(old) < self.wanted + 1:
            self.serial += 1
            self.pods[f"p{self.serial}"] = ClaimedPod(
                f"p{self.serial}", newest, f"{self.serial:05}", CPU, gated=True, revision=str(self.revision)
            )
        running = sum(p.bound for p in self.pods.values())
        if old and running > self.wanted:
            del self.pods[self.rng.choice(old).uid]
        for one in sorted(new, key=lambda p: p.bound)[: max(0, len(new) - self.wanted)]:
            del self.pods[one.uid]
        if not old:
            self.claims = self.claims[-1:]

    def trouble(self) -> None:
        what = self.rng.random()
        if what < 0.3 and self.pods:  # evicted
            del self.pods[self.rng.choice(sorted(self.pods))]
        elif what < 0.5 and len(self.claims) == 1:  # another template
            self.revision += 1
            self.claims.append(self.laid(self.revision, self.claims[-1]))
        elif what < 0.7 and len(self.claims) == 1:  # one pod more
            left = [n for n, most in self.room.items() for _ in range(most - self.slots[n])]
            if len(left) > 1:
                self.set_slots(self.slots + Counter([self.rng.choice(left)]))
        elif (
            what < 0.8 and len(self.claims) == 1 and self.wanted > 1
        ):  # one less, on a node that Kubernetes does not know
            self.set_slots(self.slots - Counter([self.rng.choice(sorted(self.slots))]))
        elif what < 0.9 and len(self.claims) == 1:  # an open slot moves
            on = Counter(p.node for p in self.pods.values() if p.bound)
            still_open = sorted((self.slots - on).elements())
            left = [n for n, most in self.room.items() if most > self.slots[n] and most > on[n]]
            if still_open and left:
                gone = self.rng.choice(still_open)
                self.set_slots(self.slots - Counter([gone]) + Counter([self.rng.choice(left)]))

    @property
    def slots(self) -> Counter[str]:
        return Counter({s.node: s.count for s in self.claims[-1].slots if not s.surge})

    def set_slots(self, counts: Counter[str]) -> None:
        slots = [PinnedSlot(node=n, count=c) for n, c in sorted(counts.items()) if c]
        self.claims = [msgspec.structs.replace(self.claims[-1], slots=slots)]

    def settle(self) -> None:
        """A pod that runs beside its claim's slots takes an open one with it."""
        if len(self.claims) > 1:
            return
        on = Counter(p.node for p in self.pods.values() if p.bound)
        strays, still_open = sorted((on - self.slots).elements()), sorted((self.slots - on).elements())
        for node, gone in zip(strays, still_open, strict=False):
            self.set_slots(self.slots - Counter([gone]) + Counter([node]))

    @property
    def is_at_rest(self) -> bool:
        return len(self.claims) == 1 and sum(p.bound for p in self.pods.values()) == len(self.pods) == self.wanted

    def check_opened(self, opened: Mapping[str, str]) -> None:
        """Asserts that no slot is given twice: pods that are pinned and those that run there have one each."""
        for of in self.claims:
            total = Counter[str]()
            for slot in of.slots:
                total[slot.node] += slot.count
            new = Counter(node for uid, node in opened.items() if self.pods[uid].claim == of.claim)
            on = Counter(p.node for p in self.pods.values() if p.claim == of.claim and p.node)
            assert all(on[node] + count <= total[node] for node, count in new.items()), (on, new, total)


def _lives(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        world = World(rng)
        steps = [world.agent, world.scheduler, world.controller, world.settle]
        for _ in range(60):
            rng.choice(steps)()
            if rng.random() < 0.1:
                world.trouble()
        for _ in range(400):
            if world.is_at_rest:
                break
            for step in rng.sample(steps, len(steps)):
                step()
        assert world.is_at_rest, (seed, world.claims, world.pods, world.room)
        world.settle()
        assert Counter(p.node for p in world.pods.values()) == world.slots, (seed, world.pods, world.slots)


def test_no_pod_waits_for_ever_and_none_runs_beside_its_slot() -> None:
    _lives(range(150))


@pytest.mark.long
def test_no_pod_waits_for_ever_in_many_lives() -> None:
    _lives(range(150, 20_000))


# --- what an agent reads and writes


def kube_pod(name: str, version: str = "1", **spec: Any) -> kube_types.Pod:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}, "ports": [{"hostPort": 80}]}]
    body = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "resourceVersion": version,
            "labels": {CLAIM: "c", "pod-template-hash": "x"},
        },
        "spec": {"containers": containers, "schedulingGates": [{"name": GATE}, {"name": "other/gate"}], **spec},
        "status": {"phase": "Pending"},
    }
    return kube_types.pod(msgspec.json.encode(body))


def gates_of(*pods: kube_types.Pod, **nodes: int) -> GatedPods:
    gates = GatedPods()
    parts = {"a/numa0": {"cpu": "1"}}
    pinned = claim("c", "Deployment/web", "", **(nodes or {"a": 1}))
    pinned.slots[0].parts = parts
    gates.set_pins("app", Pins(tag="t", claims=[pinned]))
    for one in pods:
        gates.put(Key("default", one.metadata.name), one, 0.0)
    return gates


def wide(_node: str) -> Mapping[str, int]:
    return {"cpu": 8000, "pods": 100}


def test_one_patch_pins_a_pod_and_opens_its_gate() -> None:
    terms = [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}, {}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    gates = gates_of(kube_pod("p", affinity=affinity))
    assert gates.assign(wide, 0.0).opened == {"p": "a"}
    patch = msgspec.json.decode(gates.open("p", "a"))
    assert patch["metadata"]["resourceVersion"] == "1" and patch["metadata"]["uid"] == "p"
    assert msgspec.json.decode(patch["metadata"]["annotations"][PARTS]) == {
        "a": [{"count": 1, "parts": {"a/numa0": {"cpu": "1"}}}]
    }
    assert patch["spec"]["schedulingGates"] == [{"name": "other/gate"}], "gates of others stay"
    first, second = patch["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert first == terms[0] | {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    assert second == {}, "a term that matches nothing must not match anything now"
    assert pinned_node(patch["spec"]) == "a"


def test_a_request_under_way_holds_its_slot() -> None:
    gates = gates_of(kube_pod("p"), kube_pod("q"))
    gates.open("p", "a")
    assert not gates.assign(wide, 0.0).opened
    gates.put(Key("default", "p"), kube_pod("p", "2"), 0.0)  # somebody changed it, so the request fails
    assert gates.assign(wide, 0.0).opened
    gates.open("p", "a")
    opened = pinned_to({"schedulingGates": [{"name": "other/gate"}]}, "a")
    gates.put(Key("default", "p"), kube_pod("p", "3", **opened), 0.0)
    assert not gates.assign(wide, 0.0).opened and not gates.pinning
    gates.drop("p")
    assert gates.assign(wide, 0.0).opened == {"q": "a"}


def test_a_successor_reads_the_slots_from_the_pods() -> None:
    opened = pinned_to({"schedulingGates": None}, "a")
    pods = [kube_pod("p", **opened), kube_pod("q"), kube_pod("r")]
    for order in itertools.permutations(pods):
        found = gates_of(*order, a=1, b=1).assign(wide, 0.0)
        assert found.opened == {"q": "b"} and not found.misplaced


def test_host_ports_count() -> None:
    gates = gates_of(kube_pod("p"))
    taken = {"moorage.dev/host-port:80/TCP": 0}
    assert not gates.assign(lambda node: {**wide(node), **taken}, 0.0).opened


def test_finished_pods_have_no_slot_and_refusals_are_noted() -> None:
    failed = kube_pod("p", nodeName="a", schedulingGates=None)
    failed = msgspec.structs.replace(
        failed, status=msgspec.structs.replace(failed.status, phase="Failed", reason="TopologyAffinityError")
    )
    gates = gates_of(failed, kube_pod("q"))
    assert not gates.assign(wide, 1.0).opened
    assert gates.assign(wide, 6.0).opened == {"q": "a"}
