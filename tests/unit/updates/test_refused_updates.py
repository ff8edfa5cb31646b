"""Tests updates on nodes that refused pods, or where no pod can start."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.model.claims import Decision, claim_id
from moorage.model.shapes import OptionalNeed, Requirement, Shape, ShapedApp
from moorage_testkit.fleets import node
from moorage_testkit.merger_harness import group, revision

from .site import DAEMON, DB, WEB, Site, on, one_node, web


def test_an_object_with_more_pods_than_slots_on_a_node_leaves_it_to_others() -> None:
    """Its new slots fit in the places of these pods, but then another object fits nowhere."""
    site = Site({"lab/one": [node(cpu="3"), node(cpu="6", labels={"zone": "b"})]})
    zone = Requirement(key="zone", operator="In", values=("b",))
    site.run(site.decide(1, web(1, 1, terms=[[zone]])))
    second = site.decide(2, web(2, 1, template="u"))
    assert on(second) == {"n-0": 1, "n-1": 1}
    site.pods[second.claims[0].id, "n-1"] += 1  # beside the older one
    site.report()
    third = site.decide(3, web(2, 3, template="v"), web(1, 3, object_=DB))
    assert on(third) == {"n-0": 1, "n-1": 1} and on(third, DB) == {"n-1": 1}


@pytest.mark.parametrize("others", [0, 40])
def test_an_update_of_several_objects_is_found_where_only_one_of_many_ways_fits(others: int) -> None:
    """One object fits only beside its older slot, and only if none of three others takes over its own. In a large cluster full
    nodes are not searched."""
    full = [node(cpu="1") for _ in range(others)]
    site = Site({"lab/one": [node(cpu="8", memory="100", labels={"zone": "a"}), *full, node(cpu="10", memory="50")]})
    objects = [f"StatefulSet/{name}" for name in "abcde"]
    zone = Requirement(key="zone", operator="In", values=("a",))
    site.run(site.decide(1, *(web(1, 1, object_=obj, terms=[[zone]]) for obj in objects)))
    sizes = dict.fromkeys(objects, (2, 1)) | {"StatefulSet/d": (4, 60), "StatefulSet/e": (4, 1)}
    second = site.decide(
        2, *(web(1, cpu, template="u", object_=obj, resources={"memory": m}) for obj, (cpu, m) in sizes.items())
    )
    assert {obj: on(second, obj) for obj in objects} == {
        obj: {"n-0": 1} if obj == "StatefulSet/d" else {f"n-{others + 1}": 1} for obj in objects
    }


def test_an_update_gets_its_optional_needs_only_where_all_objects_fit() -> None:
    wish = [OptionalNeed(consumer="c", name="more", weight=3, resources={"cpu": 2000})]
    site = one_node(8)
    site.run(site.decide(1, web(1, 2), web(1, 2, object_=DB)))
    second = site.decide(2, web(1, 2, template="u", optional=wish), web(1, 6, template="u", object_=DB))
    assert {claim.object: [g.granted for g in claim.optional] for claim in second.claims} == {WEB: [False], DB: []}
    assert on(second) == on(second, DB) == {"n-0": 1}


@pytest.mark.parametrize("updated", [False, True], ids=["unchanged", "updated"])
@pytest.mark.parametrize("fault", ["unready", "refused"])
def test_open_slots_are_not_kept_where_no_pod_can_start(fault: str, updated: bool) -> None:
    """Otherwise the next settlement takes them back, and the next decision gives them there again, for ever."""
    site = Site({"lab/one": [node(cpu="4") for _ in range(3)]})
    if updated:
        site.run(site.decide(1, web(1, 3, template="s")))
    decision = site.decide(2, web(2, 3))
    where = next(n for n in on(decision) if not any(node == n for _, node in site.pods))
    if fault == "unready":
        site.nodes["lab/one"][where].ready = False
        site.report()
    else:
        site.writer.put(site.fleet.ids["lab/one"], "lab/one", [], refused={decision.claims[0].id: [where]})
    again = site.decide(3, web(2, 3))
    assert again.claims[0].id == decision.claims[0].id
    assert where not in on(again) and sum(on(again).values()) == 2


def test_a_node_that_refused_pods_of_an_object_gets_none_of_its_next_decision() -> None:
    site = Site({"lab/one": [node(cpu="4"), node(cpu="4")]})
    claim = claim_id(group("g"), "a", WEB, "lab/one", web(1, 3).template)
    site.writer.put(site.fleet.ids["lab/one"], "lab/one", [], refused={claim: ["n-0"]})
    assert on(site.decide(1, web(1, 3))) == {"n-1": 1}
    site.refused(2, web(2, 3))


def refuse(site: Site, where: str, *shapes: Shape) -> None:
    """Reports that the node refused a pod of each of these objects."""
    claims = [claim_id(group("g"), "a", one.object, "lab/one", one.template) for one in shapes]
    site.writer.put(site.fleet.ids["lab/one"], "lab/one", [], refused={claim: [where] for claim in claims})


@pytest.mark.parametrize("obj", [WEB, DAEMON])
def test_an_update_takes_over_no_older_slot_on_a_node_that_refused_its_pods(obj: str) -> None:
    site = Site({"lab/one": [node(cpu="4"), node(cpu="8")]})
    daemon: dict[str, Any] = {"object_": obj, "per_node": obj == DAEMON}
    site.run(site.decide(1, web(1, 3, **daemon)))
    refuse(site, "n-0", web(1, 3, "u", **daemon))
    assert on(site.decide(2, web(1, 3, "u", **daemon)), obj) == {"n-1": 1}


@pytest.mark.parametrize("running", [True, False])
def test_an_update_leaves_the_node_that_refused_it_while_older_pods_run_there(running: bool) -> None:
    """It is decided a second time, with its own claim beside the older one."""
    site = Site({"lab/one": [node(cpu="4"), node(cpu="8")]})
    site.strangers["lab/one", "n-1"] = 5000
    site.report()
    first = site.decide(1, web(1, 3), web(1, 3, object_=DB))
    if running:
        site.run(first)
    changed = [web(1, 3, "u"), web(1, 3, "u", object_=DB)]
    second = site.decide(2, *changed)
    (there,) = (one for one in changed if on(second, one.object) == {"n-0": 1})
    site.strangers.clear()
    site.report()
    refuse(site, "n-0", there)
    third = site.decide(3, *changed)
    assert on(third) == on(third, DB) == {"n-1": 1}


def test_an_update_that_its_only_node_refused_is_refused() -> None:
    site = one_node(8)
    site.run(site.decide(1, web(1, 2)))
    refuse(site, "n-0", web(1, 2, "u"))
    codes = {reason.code for reason in site.refused(2, web(1, 2, "u")).reasons}
    assert codes == {"NotEnoughClusters", "NodeRefused"}


@pytest.mark.parametrize("unavailable", [0, 1])
def test_pods_of_a_surge_have_a_place_among_the_required_nodes(unavailable: int) -> None:
    site = Site({"lab/one": [node(cpu="4") for _ in range(3)]})

    def app(template: str) -> ShapedApp:
        return ShapedApp(
            name="a", steering="required", shapes=[web(2, 3, template=template, surge=1, unavailable=unavailable)]
        )

    for number, template in enumerate("tuv", 1):
        found = site.propose(revision("g", app(template), number=number))
        assert isinstance(found, Decision)
        (claim,) = found.claims
        assert claim.required_nodes.keys() == {slot.node for slot in claim.slots}
        assert sum(slot.count for slot in claim.slots if slot.surge) == (number > 1)
        site.capacity.hold(found)
        site.commit(found)
        # The scheduler starts the surplus pod first, on the only node with room; then each next one where an older one was.
        started = sorted(claim.required_nodes, key=lambda n: site.used("lab/one", n))[:2]
        site.pods.clear()
        site.pods.update({(claim.id, n): 1 for n in started})
        site.report()
        site.release()
