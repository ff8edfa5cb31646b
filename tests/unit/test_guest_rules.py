"""Guests with required pod affinity and anti-affinity: kinds tell the same as selectors and labels, whoever comes and goes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from moorage.machine_groups.guest_rules import GuestKinds, PlacedGuests
from moorage.model.machine_slots import GrantedSlot, reservation_claim
from moorage.model.machines import GuestReport, GuestRule, NearGuests
from moorage.slots.core.grants import GrantPlan, SlotUse, plan_grants

HOST, ZONE = "kubernetes.io/hostname", "zone"
DOMAINS = {f"n{i}": {HOST: f"n{i}", **({ZONE: f"z{i % 2}"} if i < 4 else {})} for i in range(5)}
Pod = dict[str, Any]


def term(key: str, namespaces: list[str] | None = None, **labels: str) -> dict[str, Any]:
    found: dict[str, Any] = {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
    return found | ({"namespaces": namespaces} if namespaces else {})


def domain_of(node: str, key: str) -> str | None:
    return DOMAINS[node].get(key)


# --- what Kubernetes says, without kinds


def selects(found: dict[str, Any], own: Pod, other: Pod) -> bool:
    if other["namespace"] not in (found.get("namespaces") or [own["namespace"]]):
        return False
    selector = found["labelSelector"]
    if any(other["labels"].get(k) != v for k, v in selector.get("matchLabels", {}).items()):
        return False
    return all(
        (other["labels"].get(e["key"]) in e["values"]) == (e["operator"] == "In")
        for e in selector.get("matchExpressions", ())
    )


def shares(found: dict[str, Any], node: str, other: str) -> bool:
    value = domain_of(node, found["topologyKey"])
    return value is not None and value == domain_of(other, found["topologyKey"])


def reference(pod: Pod, node: str, placed: list[tuple[Pod, str]]) -> bool:
    for other, there in placed:
        if any(selects(t, pod, other) and shares(t, node, there) for t in pod["apart"]):
            return False
        if any(selects(t, other, pod) and shares(t, node, there) for t in other["apart"]):
            return False
    for found in pod["near"]:
        others = [there for other, there in placed if selects(found, pod, other)]
        if others and not any(shares(found, node, there) for there in others):
            return False
    return True


def random_term(rng: Random) -> dict[str, Any]:
    found = term(rng.choice((HOST, ZONE)), rng.choice((None, None, ["a", "b"])), app=rng.choice("xy"))
    if rng.random() < 0.3:
        requirement = {"key": "tier", "operator": rng.choice(("In", "NotIn")), "values": ["1", "2"]}
        found["labelSelector"]["matchExpressions"] = [requirement]
    return found


@pytest.mark.parametrize("seed", range(60))
def test_kinds_tell_the_same_as_selectors(seed: int) -> None:
    rng = Random(seed)
    kinds = GuestKinds()
    pods: dict[str, Pod] = {}
    on: dict[str, str] = {}
    ruled = rng.choice((0.1, 0.5))
    for number in range(40):
        if pods and rng.random() < 0.3:
            gone = rng.choice(list(pods))
            del pods[gone]
            on.pop(gone, None)
            kinds.drop(gone)
        uid = f"u{number}"
        labels = {"app": rng.choice("xyz"), "tier": rng.choice("123"), "name": uid}
        near = [random_term(rng)] if rng.random() < ruled / 2 else []
        apart = [random_term(rng) for _ in range(rng.randint(1, 2))] if rng.random() < ruled else []
        pods[uid] = {"namespace": rng.choice("ab"), "labels": labels, "near": near, "apart": apart}
        kinds.put(uid, pods[uid]["namespace"], labels, near, apart)
        placed = PlacedGuests(kinds.rules(), kinds.kind_of, domain_of)
        for other, node in on.items():
            placed.put(other, node)
        allowed = [n for n in DOMAINS if reference(pods[uid], n, [(pods[o], there) for o, there in on.items()])]
        assert [n for n in DOMAINS if placed.allows(uid, n)] == allowed
        if allowed:
            on[uid] = rng.choice(allowed)


def test_guests_without_rules_are_of_no_kind() -> None:
    kinds = GuestKinds()
    kinds.put("a", "t", {"app": "x"}, [], [])
    assert kinds.kind_of("a") == "" and not kinds.rules() and not kinds.changed
    kinds.put("b", "t", {"app": "y"}, [], [term(HOST, app="x")])
    assert kinds.kind_of("a") and kinds.kind_of("a") != kinds.kind_of("b") and kinds.changed
    rules = kinds.rules()
    assert rules[kinds.kind_of("a")].apart == {HOST: [kinds.kind_of("b")]}
    # Labels that no rule asks for do not make kinds: thousands of Pods of a StatefulSet are of one.
    kinds.changed = False
    kinds.put("c", "t", {"app": "x", "pod": "c"}, [], [])
    assert kinds.kind_of("c") == kinds.kind_of("a") and not kinds.changed
    kinds.drop("b")
    assert kinds.kind_of("a") == "" and not kinds.rules()


# --- who gives out slots

APART = {"k": GuestRule(kind="k", apart={HOST: ["k"]})}
USE = SlotUse("g/a", "lab/one", 6, {"n0": 3, "n1": 3}, usable=frozenset(("n0", "n1")))


def planned(rules: dict[str, GuestRule], held: dict[str, str], guests: list[GuestReport]) -> GrantPlan:
    kinds = {guest.uid: guest.kind for guest in guests}
    placed = PlacedGuests(rules, lambda uid: kinds[uid], domain_of)
    own = reservation_claim("g/a", "lab/one")
    slots = {u: GrantedSlot(uid=u, machine="g/a", cluster="lab/one", node=n, claim=own, at=1.0) for u, n in held.items()}  # fmt: skip
    for uid, node in held.items():
        placed.put(uid, node)
    return plan_grants(USE, guests, slots, lambda node, _: 3 - list(held.values()).count(node.name), 100.0, placed)


def guest(uid: str, **fields: Any) -> GuestReport:
    return GuestReport(
        uid=uid, namespace="t", name=uid, machine="g/a", created_at="2026-01-01T00:00:00Z", kind="k", **fields
    )


def test_slots_go_to_guests_that_keep_apart_on_different_nodes() -> None:
    found = planned(APART, {}, [guest("a"), guest("b"), guest("c")])
    assert [(s.uid, s.node) for s in found.granted] == [("a", "n0"), ("b", "n1")]
    assert [(r.uid, r.code) for r in found.waiting] == [("c", "SlotShort")]
    assert "rules about other guests keep it off 2 nodes" in found.waiting[0].message


def test_a_place_that_is_free_again_is_given_to_the_next() -> None:
    found = planned(APART, {"a": "n1"}, [guest("a", state="used", node="n1"), guest("b"), guest("c")])
    assert [(s.uid, s.node) for s in found.granted] == [("b", "n0")]
    assert [(s.uid, s.node) for s in planned(APART, {}, [guest("c")]).granted] == [("c", "n0")]


def test_guests_that_want_to_be_near_others_go_where_these_are() -> None:
    rules = {"k": GuestRule(kind="k", near=[NearGuests(topology_key=HOST, kinds=["k"])])}
    found = planned(rules, {"a": "n1"}, [guest("a", state="used", node="n1"), *(guest(uid) for uid in "bcd")])
    assert [(s.uid, s.node) for s in found.granted] == [("b", "n1"), ("c", "n1")]
    # The first one may go anywhere.
    assert [s.node for s in planned(rules, {}, [guest("b"), guest("c")]).granted] == ["n0", "n0"]


def test_places_of_children_follow_the_rules_too() -> None:
    placed = PlacedGuests(APART, lambda _uid: "k", domain_of)
    use = SlotUse("g/a", "lab/one", 4, {"n0": 2, "n1": 2}, usable=frozenset(("n0", "n1")), parent="g/p")
    found = plan_grants(use, [guest("a"), guest("b"), guest("c")], {}, lambda _node, _resource: 2, 100.0, placed)
    assert sorted(s.node for s in found.granted) == ["n0", "n1"] and [r.uid for r in found.waiting] == ["c"]
