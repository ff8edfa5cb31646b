"""Names, durations, kinds and exit codes as people and scripts use them."""

from __future__ import annotations

import json

import pytest

from moorage.cli.commands.agent import cluster_name
from moorage.cli.durations import seconds
from moorage.cli.event_summaries import summary
from moorage.cli.exit_codes import Failure, of_status
from moorage.cli.gateway_client import problem_text
from moorage.cli.main import run
from moorage.cli.names import cluster_parts, full_name
from moorage.cli.output import amounts
from moorage.cli.quantities import readable
from moorage.cli.resource_types import resolve
from moorage.cli.table import table


@pytest.mark.parametrize(
    ("text", "expected"), [("300ms", 0.3), ("10s", 10), ("1.5m", 90), ("2h", 7200), ("7", 7), (" 1s ", 1)]
)
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "1 s", "1e3s", "٣s", "1s\n2"])
def test_what_is_no_duration_is_wrong_usage(text: str) -> None:
    with pytest.raises(Failure) as wrong:
        seconds(text)
    assert wrong.value.code == 2


def test_short_and_full_names() -> None:
    assert full_name("shop") == "default/shop/v1/default"
    assert full_name("shop", "p") == "p/shop/v1/default"
    assert full_name("a/b/v2/g", "p") == "a/b/v2/g"
    assert full_name("application/shop", "p") == "p/shop/v1/default"
    assert full_name("group/a/b/v2/g") == "a/b/v2/g"
    for text in ("", "a/b", "a//v/g", "a/b/c/d/e"):
        with pytest.raises(Failure) as wrong:
            full_name(text)
        assert wrong.value.code == 2
    assert cluster_parts("lab/edge-1") == ("lab", "edge-1")
    for text in ("lab", "lab/", "/x", "a/b/c"):
        with pytest.raises(Failure):
            cluster_parts(text)


@pytest.mark.parametrize(
    ("status", "code"),
    [(200, 0), (204, 0), (400, 1), (413, 1), (401, 5), (403, 5), (404, 3), (409, 4), (500, 1), (503, 6), (504, 6)],
)
def test_exit_codes_of_answers(status: int, code: int) -> None:
    assert of_status(status) == code


def test_amounts_are_for_reading() -> None:
    free = {"pods": "110", "memory": "68519476736", "cpu": "7500m", "ephemeral-storage": "900Gi", "x": "68519476736"}
    assert amounts(free) == "cpu 7.5, memory 63.8Gi, ephemeral-storage 900Gi, x 68519476736"
    assert amounts({"memory": "2097152Ki"}) == "memory 2Gi" and amounts({"memory": "1500"}) == "memory 1.46Ki"
    assert amounts({"memory": "500Mi"}) == "memory 500Mi" and amounts({"memory": "68519476"}) == "memory 65.3Mi"


@pytest.mark.parametrize(
    ("resource", "quantity", "text"),
    [
        ("cpu", "2", "2"), ("cpu", "500m", "500m"), ("cpu", "1500m", "1.5"), ("cpu", "0", "0"), ("cpu", "2500u", "2m"),
        ("memory", "716800Mi", "700Gi"), ("memory", "523776Mi", "511.5Gi"), ("memory", "0", "0"), ("memory", "1e3", "1000"),
        ("hugepages-1Gi", "34359738368", "32Gi"), ("nvidia.com/gpu", "4", "4"), ("memory", "many", "many"),
        ("ephemeral-storage", "1500G", "1.36Ti"), ("memory", "1023", "1023"),
    ],
)  # fmt: skip
def test_quantities_are_in_units_for_people(resource: str, quantity: str, text: str) -> None:
    assert readable(resource, quantity) == text


def test_clusters_are_named_the_same_everywhere() -> None:
    assert cluster_name("lab/edge-1", "", None, None) == cluster_name("edge-1", "lab", None, None) == "lab/edge-1"
    assert cluster_name("edge-1", "", None, None) == "kube/edge-1"
    for name, provider in (("lab/edge-1", "far"), ("a/b/c", ""), ("lab/", "")):
        with pytest.raises(Failure):
            cluster_name(name, provider, None, None)


@pytest.mark.parametrize("text", ["app", "Apps", "application", "applications"])
def test_kinds_have_kubectls_names(text: str) -> None:
    assert resolve(text).name == "applications"


def test_kinds_of_intents_are_kinds_too() -> None:
    assert resolve("hpaintents").intent_kind == "HpaIntent"
    assert resolve("LatencyIntent").intent_kind == "LatencyIntent"
    with pytest.raises(Failure, match="unknown resource type 'foo'"):
        resolve("foo")


@pytest.mark.parametrize(
    "argv",
    [
        ["bogus"],
        ["wait", "x"],
        ["describe"],
        ["get", "apps", "-o", "xml"],
        ["fleet", "fault", "a/b", "sulk"],
        ["up", "--htp"],
    ],
)
def test_wrong_usage_is_2_and_says_what_is_wrong(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("moorage: ") and "Traceback" not in said.err


def test_get_alone_lists_the_types(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["get", "-o", "json"]) == 0
    types = {row["name"]: row["shortNames"] for row in json.loads(capsys.readouterr().out)["items"]}
    assert "cl" in types["clusters"] and all(resolve(name).name == name for name in types)


def test_nothing_that_runs_is_6(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["get", "groups", "--state", str(tmp_path)]) == 6
    assert "moorage up" in capsys.readouterr().err


def test_every_violation_is_a_line_with_its_path() -> None:
    errors = [{"path": "spec.apps[0].name", "message": "is required"}, {"path": "kind", "message": "is unknown"}]
    text = problem_text({"title": "Not valid", "detail": "two things", "errors": errors}, "shop.yaml")
    assert text.splitlines() == ["shop.yaml: Not valid:", "  spec.apps[0].name: is required", "  kind: is unknown"]


def test_tables_have_no_colour_and_mark_what_is_empty() -> None:
    text = table(["NAME", "PHASE"], [["a", "Running"], ["longer", ""]])
    assert text.splitlines() == ["NAME     PHASE", "a        Running", "longer   -"]


@pytest.mark.parametrize(
    ("subject", "data", "words"),
    [
        ("placement.provider.created.U", {"provider": "U", "name": "host"}, "host"),
        (
            "placement.provider.changed.U",
            {"provider": "U", "name": "host", "generation": 3, "changed": ["inventories", "traits"]},
            "host: inventories, traits",
        ),
        (
            "placement.allocation.changed.C",
            {
                "consumer": "C",
                "project": "p",
                "type": "VM",
                "allocations": {"a": {"VCPU": 2}, "b": {"VCPU": 1, "X": 1}},
            },
            "VM of p: VCPU 3, X 1 of 2 providers",
        ),
        ("placement.allocation.deleted.C", {"consumer": "C", "project": "p"}, "consumer of p: nothing"),
        ("placement.trait.created.CUSTOM_A", {"kind": "trait", "name": "CUSTOM_A"}, "trait CUSTOM_A"),
        (
            "fleet.parts.lab.one",
            {"added": ["n/a", "n/b", "n/c"], "addedCount": 3, "moved": ["n/d"], "movedCount": 1},
            "3 added: n/a, n/b, …; 1 moved: n/d",
        ),
        (
            "fleet.devices.lab.one",
            {"kind": "gpu", "massFailure": "began", "failed": 3, "of": 4},
            "mass failure of gpu began: 3 of 4",
        ),
        ("fleet.changed.lab.one", {"nodes": 1}, "1 node"),
        (
            "decisions.placed.p.a",
            {"revision": 2, "apps": {"web": {"clusters": ["lab/one"]}}},
            "revision 2; web on lab/one",
        ),
        ("x.y", {"kind": 3, "nodes": "n", "guests": None, "machine": "m"}, "m"),
        ("x.y", ["no fields"], ""),
    ],
)
def test_events_are_summarized_by_what_changed(subject: str, data: object, words: str) -> None:
    assert summary({"subject": f"moorage.events.{subject}", "data": data}) == words
