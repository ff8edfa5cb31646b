"""The SDK: names from before keep working for one release, and its examples do what the page says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from moorage.model.candidates import Ask
from moorage.model.part_reports import ProviderReport
from moorage.model.part_requests import PartGroup
from moorage.model.reasons import Reason
from moorage.model.reports import NodeReport
from moorage.model.shapes import ShapedApp
from moorage.sdk import Declared, allow, alongside, answer, background, controller, declared, deny
from moorage.sdk.decorators import take_background
from moorage_testkit.brute_force import shape
from moorage_testkit.fleets import fleet_of, node, provider

ROOT = Path(__file__).parents[2]


async def watch() -> None:
    pass


def test_static_was_called_steady() -> None:
    with pytest.warns(DeprecationWarning, match="steady is called static now") as warned:
        controller("old", steady=True)(lambda ask, fleet: {})
    controller("new", static=True)(lambda ask, fleet: {})
    assert {one.name: one.static for one in declared()} == {"old": True, "new": True}
    assert warned[0].filename == __file__


def test_a_declared_controller_was_called_steady() -> None:
    with pytest.warns(DeprecationWarning, match="steady is called static now") as warned:
        old = Declared("x", steady=True)
    assert old == Declared("x", static=True)
    assert warned[0].filename == __file__


def test_background_was_called_alongside() -> None:
    with pytest.warns(DeprecationWarning, match="alongside is called background now") as warned:
        assert alongside(watch) is watch
    assert background(watch) is watch
    assert take_background() == [watch, watch]
    assert take_background() == []
    assert warned[0].filename == __file__


def test_one_name_has_one_function_of_each_form() -> None:
    controller("twice")(lambda ask, fleet: {})
    with pytest.raises(ValueError, match="two functions answer candidates for controller 'twice'"):
        controller("twice")(lambda ask, fleet: {})
    declared()


def test_what_is_denied_has_reasons_and_preferences_as_what_is_allowed() -> None:
    fleet = fleet_of({"lab/a": [node()], "lab/b": [node()]})
    ask = Ask(group="g", revision=1, budget_ms=1, epoch="0", tenant="p", apps=[ShapedApp(name="web", shapes=[])])
    more: dict[str, Any] = {"excluded": [["lab/a"]], "preferred": [["lab/b"]], "order": [["lab/b"]]}
    allowed, denied = (
        answer({"web": found}, ask, fleet, "mine").apps["web"]
        for found in (
            allow(["lab/b"], reasons=[Reason(code="ControllerExcludes")], **more),
            deny(["lab/a"], reasons=[Reason(code="ControllerExcludes")], **more),
        )
    )
    assert denied.groups[0].mode == "deny" and denied.reasons[0].by == "mine"
    assert (denied.excluded, denied.preferred, denied.order) == (allowed.excluded, allowed.preferred, allowed.order)
    assert denied.excluded == {0: ["lab/a"]}


def test_the_example_about_capacity() -> None:
    file = ROOT / "tests/contract/examples/roomy.py"
    assert file.read_text() in (ROOT / "docs/controllers.md").read_text()
    runpy.run_path(str(file))
    (roomy,) = declared()
    assert roomy.capacity and roomy.candidates is not None
    fleet = fleet_of({"lab/large": [node(cpu="8", memory="8Gi")], "lab/small": [node(cpu="1", memory="8Gi")]})
    app = ShapedApp(name="web", shapes=[shape("Deployment/web", resources={"cpu": 4000})])
    ask = Ask(group="p/a/v1/g", revision=1, budget_ms=500, epoch="1.1", tenant="p", apps=[app])
    result = roomy.candidates(ask, fleet)
    assert isinstance(result, dict)
    assert fleet.clusters.named(result["web"].clusters) == ["lab/large"]


def test_the_example_about_parts() -> None:
    file = ROOT / "tests/contract/examples/spare_cards.py"
    assert file.read_text() in (ROOT / "docs/controllers.md").read_text()
    runpy.run_path(str(file))
    (spare_cards,) = declared()
    assert spare_cards.capacity and spare_cards.candidates is not None

    def card(*traits: str, used: str = "0") -> NodeReport:
        return node(cpu="8", providers=[provider("card", traits=traits, FPGA="1")], in_use={"card": {"FPGA": used}})

    nodes = {
        "lab/fast": card("FAST"),
        "lab/full": card("FAST", used="1"),
        "lab/none": node(cpu="8"),
        "lab/slow": card(),
    }
    app = ShapedApp(name="web", shapes=[shape("Deployment/web", resources={"cpu": 4000})])
    ask = Ask(group="p/a/v1/g", revision=1, budget_ms=500, epoch="1.1", tenant="p", apps=[app])
    for fleet, wanted in (
        (fleet_of({name: [one] for name, one in nodes.items()}), ["lab/fast"]),
        (fleet_of({"lab/none": [node(cpu="8")]}), []),
    ):
        result = spare_cards.candidates(ask, fleet)
        assert isinstance(result, dict)
        assert fleet.clusters.named(result["web"].clusters) == wanted


def test_the_example_about_what_pods_ask_of_parts() -> None:
    file = ROOT / "tests/contract/examples/favoured_parts.py"
    assert file.read_text() in (ROOT / "docs/controllers.md").read_text()
    runpy.run_path(str(file))
    (favoured_parts,) = declared()
    assert favoured_parts.candidates is not None

    def card(generation: int, used: str = "0") -> NodeReport:
        one = ProviderReport(id="card", inventories={"FPGA": "1"}, properties={"generation": generation})
        return node(cpu="8", providers=[one], in_use={"card": {"FPGA": used}})

    fleet = fleet_of(
        {"lab/new": [card(3)], "lab/old": [card(2)], "lab/full": [card(3, "1")], "lab/none": [node(cpu="8")]}
    )
    group = PartGroup(suffix="_A", resources={"FPGA": 1})
    plain, asking = shape("Deployment/web"), shape("Deployment/web", groups=[group])
    for one, wanted in ((asking, ["lab/new"]), (plain, ["lab/full", "lab/new", "lab/none", "lab/old"])):
        app = ShapedApp(name="web", shapes=[one])
        ask = Ask(group="p/a/v1/g", revision=1, budget_ms=500, epoch="1.1", tenant="p", apps=[app])
        result = favoured_parts.candidates(ask, fleet)
        assert isinstance(result, dict)
        ((score, clusters),) = result["web"].levels
        assert (score, sorted(fleet.clusters.named(clusters))) == (1.0, wanted)
