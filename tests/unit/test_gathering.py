"""Answers and what is made of them: nobody is placed where no one looked, and nobody is refused without a word."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from moorage.bus import Reply
from moorage.candidates import pack
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.fleet import Fleet, FleetWriter, normalize_node
from moorage.fleet.delta import Epoch, decode
from moorage.ledger import Ledger
from moorage.merger.core.propose import NameOrder, propose
from moorage.merger.core.responses import Replies, collect_reasons, gather, refresh
from moorage.model.candidates import Answer, AppAnswer, AppsRule, Ask, CandidateGroup
from moorage.model.claims import Decision
from moorage.model.controllers import Controller, Policy
from moorage.model.reasons import Reason
from moorage.model.shapes import ShapedApp
from moorage_testkit.fleets import fleet_of, node
from moorage_testkit.merger_harness import revision, shape

RECORD = revision("shop", ShapedApp(name="a", shapes=[shape()]))


def grown(*joined: list[str]) -> Fleet:
    """A follower's fleet, which clusters joined in these epochs."""
    writer, fleet = FleetWriter(), Fleet()
    for counter, names in enumerate(joined, 1):
        for name in names:
            made, _ = normalize_node(node("n-0", cpu=str(4 * counter)))
            writer.put(writer.fleet.size, name, [made], whole=True, labels={})
        patch = decode(writer.flush(1, counter).patch)
        fleet.apply(patch)
    return fleet


def heard(answer: Answer, epoch: str, policy: Policy = "required", outcome: str = "answered") -> Replies:
    answer.epoch = epoch
    data = msgspec.json.encode(answer)
    reply = Reply(outcome, data if outcome == "answered" else b"", 1.0)
    return Replies(["a"], [Controller(name="mine", policy=policy)], {"mine": reply}, {"mine": data})


def chosen(one: Replies, fleet: Fleet) -> list[str]:
    found = propose(RECORD, gather(one, fleet), fleet, Ledger(), NameOrder(), "d")
    return [claim.cluster for claim in found.claims] if isinstance(found, Decision) else []


def says(mode: Literal["allow", "deny"], fleet: Fleet, *names: str) -> Answer:
    sets = [CandidateGroup(mode=mode, clusters=pack(fleet.clusters.mask(names)))]
    return Answer(apps={"a": AppAnswer(groups=sets)})


def test_a_cluster_that_joined_after_an_answer_is_not_in_it() -> None:
    fleet = grown(["lab/eu-0", "lab/eu-1"], ["lab/us-0"])
    for answer in (says("deny", fleet, "lab/eu-0"), says("deny", fleet)):
        assert chosen(heard(answer, "1.2"), fleet) == ["lab/us-0"], "it has the most room"
        assert chosen(heard(answer, "1.1"), fleet)[0].startswith("lab/eu")
        assert chosen(heard(answer, "1.1", "stale-ok", "timeout"), fleet)[0].startswith("lab/eu")


def test_answers_of_another_generation() -> None:
    fleet = grown(["lab/eu-0"], ["lab/us-0"])
    fleet.epoch = Epoch(3, 1)
    late = fleet.joined_after("2.900")
    assert late is not None and late.all(), "they joined in this one, as far as is known"
    assert fleet.joined_after("4.0") is None
    assert fleet.joined_after("") is None and fleet.joined_after("x.y") is None
    with pytest.raises(ValueError, match="digits"):
        fleet.joined_after(f"3.{'9' * 5000}")


def test_what_is_loaded_whole_joined_at_the_latest_by_then() -> None:
    mine, other = grown(["lab/eu-0"]), grown(["lab/eu-0"], ["lab/us-0"])
    other.epoch = Epoch(1, 7)
    before = mine.membership
    mine.adopt(other)
    late = mine.joined_after("1.6")
    assert late is not None and mine.clusters.named(late) == ["lab/us-0"]
    assert mine.joined_after("1.7") is None
    assert mine.membership > before
    empty = Fleet()
    empty.adopt(grown(["lab/eu-0"], ["lab/us-0"]))
    assert empty.joined_after("1.0") is None, "who begins has seen nobody join"


def test_answers_are_read_again_when_the_fleet_has_grown() -> None:
    """Also where the fleet was one cluster, whose mask would do for any number."""
    small = grown(["lab/a"])
    got = gather(heard(says("allow", small, "lab/a"), "1.1"), small)
    larger = grown(["lab/a"], ["lab/b", "lab/c"])
    assert refresh(got, small) is got
    found = propose(RECORD, refresh(got, larger), larger, Ledger(), NameOrder(), "d")
    assert isinstance(found, Decision)
    assert [claim.cluster for claim in found.claims] == ["lab/a"]


def test_who_excludes_without_a_word_is_named() -> None:
    fleet = grown(["lab/a", "lab/b", "lab/c"])
    found = collect_reasons(gather(heard(says("allow", fleet, "lab/a"), "1.1"), fleet), fleet)
    assert [(r.code, r.by, r.app, r.clusters, r.samples) for r in found] == [
        ("ControllerExcludes", "mine", "a", 2, ["lab/b", "lab/c"])
    ]
    assert collect_reasons(gather(heard(says("deny", fleet), "1.1"), fleet), fleet) == []


def refused(fleet: Fleet, *apps: ShapedApp, rules: list[AppsRule] | None = None) -> list[Reason]:
    record = revision("shop", *apps)
    answer = HardwareAnswers(fleet).answer(
        Ask(group=record.group, revision=1, budget_ms=500, epoch="", tenant="", apps=record.apps)
    )
    answer.rules = rules or []
    reply = Reply("answered", msgspec.json.encode(answer), 1.0)
    one = Replies([app.name for app in apps], [Controller(name="hpa")], {"hpa": reply}, {})
    found = propose(record, gather(one, fleet), fleet, Ledger(), NameOrder(), "d")
    assert not isinstance(found, Decision)
    return found.reasons


def test_apps_that_rule_each_other_out_are_told_with_numbers() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="4")]})
    apps = [ShapedApp(name=name, shapes=[shape(3000)]) for name in "xy"]
    (conflict,) = refused(fleet, *apps)
    assert (conflict.code, conflict.app) == ("PackingFails", "x y")
    assert (
        conflict.message
        == "x (1 of 1 clusters) and y (1 of 1 clusters) do not fit together on 1 of the 1 that both may take"
    )
    small = [ShapedApp(name=name, shapes=[shape(1000)]) for name in "xy"]
    (affinity,) = refused(fleet, *small, rules=[AppsRule(app="x", mode="deny", apps=["y"])])
    assert affinity.code == "AffinityConflict"
    assert affinity.message == "x (1 of 1 clusters) and y (1 of 1 clusters) must share no cluster"
