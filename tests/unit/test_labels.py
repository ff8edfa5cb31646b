"""Generic placement: filters, sets with counts, and the reasons."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorage.candidates.decode import decode_answer
from moorage.controllers.cluster_selection.core.selection import decide
from moorage.fleet import Fleet
from moorage.model.candidates import Answer, Ask
from moorage.model.shapes import Intent, ShapedApp
from moorage_testkit.fleets import fleet_of

FLEET = {"lab/a": {"region": "eu"}, "lab/b": {"region": "us"}, "far/c": {"region": "eu", "tier": "edge"}, "far/d": {}}


@pytest.fixture
def fleet() -> Fleet:
    return fleet_of({name: [] for name in FLEET}, labels=FLEET)


def ask(*specs: dict[str, Any], apps: tuple[str, ...] = ("x",), **fields: Any) -> Ask:
    intents = [
        Intent(
            kind="PlacementIntent", name=str(i), spec=msgspec.Raw(msgspec.json.encode({"group": "g", "app": "x", **s}))
        )
        for i, s in enumerate(specs)
    ]
    intents.append(Intent(kind="SomethingElse", name="other", spec=msgspec.Raw(b'{"what": "ever"}')))
    shaped = [ShapedApp(name=name) for name in apps]
    return Ask(group="g", revision=1, budget_ms=500, epoch="", tenant="t", apps=shaped, intents=intents, **fields)


def allowed(answer: Answer, fleet: Fleet, app: str = "x") -> list[str]:
    names = list(answer.apps)
    found = decode_answer(answer, names, fleet.ids, fleet.size).apps[names.index(app)].allowed
    return fleet.clusters.named(fleet.known if found is None else fleet.known & found)


def test_without_intents_there_is_no_objection(fleet: Fleet) -> None:
    answer = decide(ask(), fleet)
    assert allowed(answer, fleet) == list(FLEET)
    assert answer.apps["x"].groups[0].mode == "deny"


def test_filters_narrow_each_other_and_only_their_app(fleet: Fleet) -> None:
    eu = {"allOf": [{"label": {"region": "eu"}}]}
    some = {"anyOf": [{"cluster": "lab/b"}, {"provider": "far"}]}
    answer = decide(ask(eu, some, apps=("x", "y")), fleet)
    assert allowed(answer, fleet) == ["far/c"]
    assert allowed(answer, fleet, "y") == list(FLEET)
    nested = {"allOf": [{"label": {"region": "eu"}}, {"anyOf": [{"cluster": "lab/a"}, {"cluster": "far/d"}]}]}
    assert allowed(decide(ask(nested), fleet), fleet) == ["lab/a"]


def test_sets_keep_their_counts(fleet: Fleet) -> None:
    sets = {
        "sets": [{"count": 0, "allOf": [{"label": {"region": "eu"}}]}, {"count": 1, "anyOf": [{"provider": "lab"}]}]
    }
    answer = decide(ask(sets, {"allOf": [{"anyOf": [{"provider": "lab"}, {"provider": "far"}]}]}), fleet)
    opinion = decode_answer(answer, ["x"], fleet.ids, fleet.size).apps[0]
    assert [(g.wanted, fleet.clusters.named(g.mask)) for g in opinion.groups] == [
        (0, ["lab/a", "far/c"]),
        (1, ["lab/a", "lab/b"]),
    ]
    assert not answer.apps["x"].reasons


def test_a_set_that_selects_too_few_says_so(fleet: Fleet) -> None:
    answer = decide(ask({"sets": [{"count": 3, "allOf": [{"label": {"region": "eu"}}]}]}), fleet)
    (reason,) = answer.apps["x"].reasons
    assert (reason.code, reason.needed, reason.free, reason.by) == ("NotEnoughClusters", "3", "2", "labels")


def test_reasons_about_sets_name_the_filters_around_them(fleet: Fleet) -> None:
    cloud = {"allOf": [{"anyOf": [{"cluster": "lab/b"}]}]}
    answer = decide(ask({"sets": [{"allOf": [{"cluster": "lab/a"}]}]}, cloud), fleet)
    assert [reason.message for reason in answer.apps["x"].reasons] == [
        "the placement lab/a within (lab/b) selects 0 clusters",
        "not selected by the placement lab/a within (lab/b)",
    ]


def test_reasons_name_the_terms(fleet: Fleet) -> None:
    answer = decide(
        ask({"allOf": [{"label": {"region": "mars"}}], "anyOf": [{"cluster": "lab/a"}, {"provider": "far"}]}), fleet
    )
    (reason,) = answer.apps["x"].reasons
    assert (reason.code, reason.clusters, reason.samples) == ("PlacementExcludes", 4, list(FLEET))
    assert "region=mars and (lab/a or provider far)" in reason.message
    assert not decide(ask({"allOf": [{"provider": "lab"}]}), fleet).apps["x"].reasons
    (asked,) = decide(ask({"allOf": [{"provider": "lab"}]}, explain=True), fleet).apps["x"].reasons
    assert asked.clusters == 2


def test_a_spec_that_cannot_be_read_is_an_error_not_an_answer(fleet: Fleet) -> None:
    with pytest.raises(msgspec.ValidationError):
        decide(ask({"allOff": []}), fleet)


def test_every_one_of_them_does_not_ask_again_for_those_that_are_taken_anyway(fleet: Fleet) -> None:
    eu: dict[str, Any] = {"count": 0, "allOf": [{"label": {"region": "eu"}}]}
    edge: dict[str, Any] = {"count": 0, "allOf": [{"label": {"tier": "edge"}}]}
    named: dict[str, Any] = {"count": 1, "allOf": [{"cluster": "lab/a"}]}
    for sets, groups in (
        ([named, eu], [["lab/a"], ["far/c"]]),
        ([eu, named], [["far/c"], ["lab/a"]]),
        ([eu, edge], [["far/c", "lab/a"]]),
        ([edge, eu], [["far/c"], ["lab/a"]]),
    ):
        answer = decide(ask({"sets": sets}), fleet)
        found = decode_answer(answer, ["x"], fleet.ids, fleet.size).apps[0].groups
        assert [sorted(fleet.clusters.named(g.mask)) for g in found] == groups


def test_a_part_of_one_set_never_takes_what_another_set_takes_whole(fleet: Fleet) -> None:
    part: dict[str, Any] = {"count": 0, "partial": True, "anyOf": [{"label": {"region": "eu"}}, {"cluster": "lab/b"}]}
    eu: dict[str, Any] = {"count": 0, "allOf": [{"label": {"region": "eu"}}]}
    for sets in ([part, eu], [eu, part]):
        answer = decide(ask({"sets": sets}), fleet)
        found = decode_answer(answer, ["x"], fleet.ids, fleet.size).apps[0].groups
        by_kind = {g.partial: sorted(fleet.clusters.named(g.mask)) for g in found}
        assert by_kind == {False: ["far/c", "lab/a"], True: ["lab/b"]}
