"""Tests what is proposed for changed objects on nearly full clusters, and where their pods may go."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.model.shapes import OptionalNeed, Requirement, Shape
from moorage_testkit.fleets import node
from moorage_testkit.merger_harness import group

from .site import DAEMON, DB, WEB, Site, on, one_node, web


def test_one_more_pod_needs_no_room_for_those_that_stay() -> None:
    site = one_node()
    first = site.decide(1, web(1, 4, surge=1))
    site.run(first)
    second = site.decide(2, web(2, 4, surge=1))
    assert [c.id for c in second.claims] == [c.id for c in first.claims], "the same claim"
    assert on(second) == {"n-0": 2} and site.free() == 0
    site.refused(3, web(3, 4, surge=1))
    third = site.decide(3, web(1, 4, surge=1))
    assert on(third) == {"n-0": 1}
    site.pods[third.claims[0].id, "n-0"] = 1
    site.report()
    assert site.free() == 4


@pytest.mark.parametrize("obj", [DB, DAEMON, "Job/x", "Pod/x"])
@pytest.mark.parametrize("running", [False, True])
def test_another_image_is_applied_on_a_full_node(obj: str, running: bool) -> None:
    site = one_node()
    more: dict[str, Any] = {"per_node": True} if obj == DAEMON else {}
    first = site.decide(1, web(2 if obj == DB else 1, 4, object_=obj, **more))
    if running:
        site.run(first)
    free = site.free()
    second = site.decide(2, web(2 if obj == DB else 1, 4, template="u", object_=obj, **more))
    (old,), (new,) = first.claims, second.claims
    assert new.id != old.id and new.replaces == old.id and new.slots == old.slots
    assert site.free() == free, "max(old, new)"
    third = site.decide(3, web(2 if obj == DB else 1, 4, template="v", object_=obj, **more))
    assert site.free() == free and third.claims[0].replaces == new.id
    back = site.decide(4, web(2 if obj == DB else 1, 4, object_=obj, **more))
    assert back.claims[0].id == old.id and site.free() == free, "a rollback follows the same rule"
    site.run(back)
    site.release()
    assert set(site.ledger.claims) == {old.id}


def test_what_does_not_change_stays_as_it_is() -> None:
    site = Site({"lab/one": [node(cpu="4"), node(cpu="4")], "lab/two": [node(cpu="64")]})
    shapes = [web(2, 3), web(1, 1, object_=DB)]
    first = site.decide(1, *shapes)
    site.run(first)
    site.strangers["lab/one", "n-0"] += 9000
    site.report()
    second = site.decide(2, web(2, 3), web(1, 1, template="u", object_=DB))
    kept = next(c for c in second.claims if c.object == WEB)
    assert kept.slots == next(c.slots for c in first.claims if c.object == WEB)


def test_a_changed_app_stays_on_its_cluster_if_it_fits_there() -> None:
    site = Site({"lab/a": [node(cpu="8")], "lab/b": [node(cpu="8")]})
    decision = site.decide(1, web(2, 3, object_=DB))
    home = decision.claims[0].cluster
    for number, image in enumerate("uvwx", 2):
        site.run(decision)
        decision = site.decide(number, web(2, 3, template=image, object_=DB))
        assert decision.claims[0].cluster == home
        if number % 2:
            site.release()
    moved = site.decide(9, web(2, 4, template="y", object_=DB))
    assert moved.claims[0].cluster == home and site.free(cluster=home) == 0, "also with larger pods"
    site.refused(10, web(2, 5, template="z", object_=DB))


def test_a_surge_counts_until_the_older_pods_are_gone() -> None:
    site = one_node(8)
    first = site.decide(1, web(2, 2, surge=1))
    assert site.free() == 4 and not any(s.surge for s in first.claims[0].slots), "nothing older"
    site.run(first)
    second = site.decide(2, web(2, 2, template="u", surge=1))
    assert sum(s.count for s in second.claims[0].slots if s.surge) == 1 and on(second) == {"n-0": 2}
    assert site.free() == 2
    site.run(second)
    assert site.free() == 2, "the older claim is not released yet"
    site.release()
    assert site.free() == 4 and on(site.ledger.standing[group("g")]) == {"n-0": 2}


@pytest.mark.parametrize(("cpu", "regular"), [(8, {"n-0": 2}), (5, {"n-0": 1, "n-1": 1})])
def test_a_surge_goes_where_the_object_is_if_there_is_room(cpu: int, regular: dict[str, int]) -> None:
    """Else the first new pod starts on another node, and stays there: the slot that ends with the rollout is one of the older."""
    site = Site({"lab/one": [node(cpu=str(cpu)), node(cpu="4")]})
    site.strangers["lab/one", "n-1"] = 4000
    site.report()
    site.run(site.decide(1, web(2, 2, surge=1)))
    site.strangers["lab/one", "n-1"] = 1000  # packing prefers this node, which has less left
    site.report()
    second = site.decide(2, web(2, 2, template="u", surge=1))
    assert on(second) == regular
    assert [slot.node for slot in second.claims[0].slots if slot.surge] == ["n-0"]


def test_pods_stay_beside_each_other_where_each_has_a_node() -> None:
    site = Site({"lab/one": [node(cpu="4"), node(cpu="4")]})
    first = site.decide(1, web(2, 3, surge=1))
    assert on(first) == {"n-0": 1, "n-1": 1}
    site.run(first)
    second = site.decide(2, web(2, 1, template="u", surge=1))
    assert on(second) == {"n-0": 1, "n-1": 1}, "the slot that two have on one node is that of the surge"


def test_without_room_for_its_surge_an_update_goes_without_if_pods_may_be_missing() -> None:
    site = one_node(8)
    site.run(site.decide(1, web(4, 2, surge=1, unavailable=1)))
    second = site.decide(2, web(4, 2, template="u", surge=1, unavailable=1))
    assert [w.code for w in second.warnings] == ["SurgeLeftOut"] and not any(s.surge for s in second.claims[0].slots)
    assert site.free() == 0


def test_without_room_for_its_surge_an_update_is_refused_if_no_pod_may_be_missing() -> None:
    site = one_node(8)
    site.run(site.decide(1, web(1, 5, surge=1)))
    site.refused(2, web(1, 5, template="u", surge=1))
    (reason,) = (r for r in site.reasons if r.code == "SurgeShort")
    assert (reason.needed, reason.free, reason.samples) == ("1", "0", ["lab/one"]) and "maxSurge 1" in reason.message


def test_without_room_for_its_surge_an_update_goes_where_it_fits() -> None:
    site = Site({"lab/a": [node(cpu="8")], "lab/b": [node(cpu="8")]})
    first = site.decide(1, web(1, 5, surge=1))
    site.run(first)
    second = site.decide(2, web(1, 5, template="u", surge=1))
    assert {first.claims[0].cluster, second.claims[0].cluster} == {"lab/a", "lab/b"}


def test_a_daemon_set_surges_on_every_node() -> None:
    site = Site({"lab/one": [node(cpu="8"), node(cpu="5")]})
    site.run(site.decide(1, web(1, 3, object_=DAEMON, per_node=True, surge=1)))
    site.refused(2, web(1, 3, template="u", object_=DAEMON, per_node=True, surge=1))
    assert any(r.code == "SurgeShort" for r in site.reasons)
    site.decide(3, web(1, 2, object_=DAEMON, per_node=True, surge=1))
    assert (site.free("n-0"), site.free("n-1")) == (3, 0)


def test_optional_needs_are_kept_where_the_update_runs() -> None:
    gpu = "nvidia.com/gpu"
    wish = [OptionalNeed(consumer="c", name=gpu, weight=3, resources={gpu: 1})]
    site = Site({"lab/one": [node(cpu="4", resources={gpu: "1"})]})
    first = site.decide(1, web(1, 3, optional=wish))
    assert first.claims[0].optional[0].granted
    site.run(first)
    second = site.decide(2, web(1, 3, template="u", optional=wish))
    assert second.claims[0].optional[0].granted and second.claims[0].slots == first.claims[0].slots
    assert second.scores == {"a": 1.0}


def test_an_update_leaves_nodes_that_it_may_not_use_any_more() -> None:
    site = Site({"lab/one": [node(cpu="4", labels={"zone": "a"}), node(cpu="4", labels={"zone": "b"})]})
    first = site.decide(1, web(1, 3))
    (where,) = on(first)
    site.run(first)
    other = "n-1" if where == "n-0" else "n-0"
    zone = Requirement(key="zone", operator="In", values=("b" if other == "n-1" else "a",))
    second = site.decide(2, web(1, 3, template="u", terms=[[zone]]))
    assert on(second) == {other: 1} and site.free(where) == 1, "the old pod stays until the new one runs"


def test_a_refused_update_tells_what_is_free_with_its_own_room() -> None:
    site = one_node(8)
    site.run(site.decide(1, web(1, 3)))
    site.strangers["lab/one", "n-0"] = 4000
    site.report()
    site.refused(2, web(1, 5, template="u"))
    (reason,) = (reason for reason in site.reasons if reason.code == "ResourceShort")
    assert (reason.needed, reason.free) == ("5", "4")


def test_a_refused_update_says_that_it_would_do_in_two_steps() -> None:
    """The room that one object gives back is not there for another one of the same update: its pods still run."""
    site = one_node(8)
    site.run(site.decide(1, web(4), web(4, object_=DB)))

    def told(*shapes: Shape) -> list[str]:
        return [r.message for r in site.refused(2, *shapes).reasons if r.code == "UpdateHoldsRoom"]

    (message,) = told(web(1), web(7, object_=DB))
    assert message.startswith(f"{WEB} of a will need less, and hold")
    assert message.endswith("make the update in two steps, first what gets smaller or goes, then the rest")
    (gone,) = told(web(7, object_=DB))
    assert f"{WEB} of a" in gone
    assert told(web(1), web(8, object_=DB)) == [], "two steps would not do either"
    assert told(web(4), web(7, object_=DB)) == []
    site.run(site.decide(2, web(1), web(4, object_=DB)))
    site.run(site.decide(3, web(1), web(7, object_=DB)))
    assert site.free("n-0") == 0


def test_smaller_pods_fit_beside_a_larger_older_one_that_runs_elsewhere_than_its_slot() -> None:
    """They take its place one by one, so the second one starts only beside it."""
    site = Site({"lab/one": [node(cpu="4"), node(cpu="4")]})
    first = site.decide(1, web(1, 3))
    (there,) = on(first)
    other = next(name for name in ("n-0", "n-1") if name != there)
    site.pods[first.claims[0].id, other] += 1
    site.report()
    site.refused(2, web(3, 2, template="u"))
    assert on(site.decide(3, web(2, 2, template="u"))) == {"n-0": 1, "n-1": 1}
