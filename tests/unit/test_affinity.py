"""Affinity answers rules over pairs of apps and objects to no cluster."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.candidates.decode import DecodedRule, decode_answer
from moorage.controllers.affinity.core.rules import decide
from moorage.model.candidates import Ask
from moorage.model.shapes import Intent, ShapedApp
from moorage_testkit.fleets import fleet_of


def rules(*specs: list[dict[str, Any]]) -> list[DecodedRule]:
    intents = [
        Intent(kind="AffinityIntent", name=str(i), spec=msgspec.Raw(msgspec.json.encode({"group": "g", "rules": spec})))
        for i, spec in enumerate(specs)
    ]
    apps = [ShapedApp(name=name) for name in "abc"]
    fleet = fleet_of({"lab/a": []})
    asked = Ask(group="g", revision=1, budget_ms=1, epoch="", tenant="t", apps=apps, intents=intents)
    answer = decide(asked, fleet)
    again = decide(asked, fleet)
    assert again.rules == answer.rules, "an answer must not grow with the asks before it"
    opinion = decode_answer(answer, ["a", "b", "c"], fleet.ids, fleet.size)
    assert all(app.allowed is None for app in opinion.apps.values())
    assert len(opinion.apps) == 3
    return opinion.rules


def test_without_rules_nothing_is_said() -> None:
    assert rules() == []


def test_every_pair_is_a_rule() -> None:
    assert sorted(rules([{"together": ["a", "b", "c"]}])) == [
        DecodedRule((0, 1), False, True),
        DecodedRule((0, 2), False, True),
        DecodedRule((1, 2), False, True),
    ]
    assert rules([{"apart": ["c", "a"], "mandatory": False}]) == [DecodedRule((0, 2), True, False)]


def test_rules_of_all_intents_count() -> None:
    found = rules([{"together": ["a", "b"]}], [{"apart": ["b", "c"]}])
    assert found == [DecodedRule((0, 1), False, True), DecodedRule((1, 2), True, True)]
