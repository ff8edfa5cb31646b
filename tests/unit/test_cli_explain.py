"""`moorage explain`: every field of every document has a description, and what it says is what the decoder does."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from moorage.cli.commands.explain import Described, described, kinds, paths_below, type_name
from moorage.cli.document_fields import DESCRIPTIONS, VALUES
from moorage.cli.main import run
from moorage.cli.schema_fields import SchemaField
from moorage.model import documents as model
from moorage.model import resource_classes as classes
from moorage.model.base import Model
from moorage.sim.core import device_documents as devices
from moorage.sim.core import fleet_documents as fleets
from moorage.sim.core import inside_documents as inside
from moorage.sim.core import machine_documents as machines


def every_field(
    found: Described | SchemaField, path: str, above: tuple[object, ...] = ()
) -> list[tuple[str, Described | SchemaField]]:
    model = found.nested_in
    fields = [(f"{path}.{one.name}", one) for one in found.fields()] if model is None or model not in above else []
    deeper = [item for at, one in fields for item in every_field(one, at, (*above, model))]
    return [*fields, *deeper]


ALL = [item for kind in kinds() for item in every_field(described(kind), kind)]


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["explain", *arguments]) == 0
    return capsys.readouterr().out


def test_every_field_of_every_document_is_described() -> None:
    assert len(ALL) > 150
    assert not [path for path, field in ALL if not field.description.endswith(".")]


def test_nothing_is_described_that_does_not_exist() -> None:
    structs = {
        one.__name__: {field.encode_name for field in msgspec.structs.fields(one)}
        for module in (model, classes, fleets, inside, devices, machines)
        for one in vars(module).values()
        if isinstance(one, type)
        and one.__module__ == module.__name__
        and one is not model.Strict
        and issubclass(one, msgspec.Struct)
        and not issubclass(one, Model)
    }
    assert DESCRIPTIONS.keys() == structs.keys()
    for name, fields in DESCRIPTIONS.items():
        assert fields.keys() == structs[name], name
    assert all(VALUES[name].keys() <= structs[name] for name in VALUES)


@pytest.mark.parametrize("path", [path for path, _ in ALL if path.count(".") < 4])
def test_every_path_can_be_explained(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, path)
    assert text.startswith(f"KIND:   {path.partition('.')[0]}\nFIELD:  {path.partition('.')[2]}  <")


def test_a_field_with_type_default_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, "fleet.clusters[0].nodes[].taints")
    assert "FIELD:  clusters.nodes.taints  <[]TaintDocument>" in text
    assert "  key  <string>  required" in text and "One of NoSchedule, PreferNoSchedule, NoExecute." in text
    text = explained(capsys, "app.spec.affinity")
    assert "  mandatory  <boolean>  default: true" in text
    assert "partial  <boolean>  default: false" in explained(capsys, "placementintents.spec.sets")


def test_values_are_what_documents_accept() -> None:
    for effect in VALUES["TaintDocument"]["effect"]:
        taint = {"key": "k", "effect": effect}
        fleets.decode({"clusters": [{"name": "c", "nodes": [{"name": "n", "allocatable": {}, "taints": [taint]}]}]})
    for policy in VALUES["CpuManagerDocument"]["policy"]:
        node = {"name": "n", "allocatable": {}, "cpuManager": {"policy": policy}}
        fleets.decode({"clusters": [{"name": "c", "nodes": [node]}]})


def test_kinds_of_custom_resources_are_explained_by_their_schema(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, "machines.spec.nodePool")
    assert "FIELD:  spec.nodePool  <[]object>  required" in text
    assert "  mode  <string>  required" in text and "One of ready, maintenance." in text
    assert "  taint  <boolean>  default: false" in text
    assert "  hostLimit  <any>" in explained(capsys, "machine.spec.machineTypes.spec")
    assert "  labels  <map[string]string>  required" in explained(capsys, "machine.metadata")
    assert explained(capsys, "machinenodepool.status", "-o", "name").split() == ["conditions", "nodePool"]
    found = json.loads(explained(capsys, "machine.spec.machineTypes", "-o", "json"))
    assert [f["name"] for f in found["fields"]] == ["name", "spec", "available", "offlineSlots", "windows"]
    assert "      availableRatio  <any>  required" in explained(capsys, "machine", "--recursive")


def test_the_same_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(explained(capsys, "application.spec.apps", "-o", "json"))
    assert (found["type"], found["required"]) == ("[]App", True)
    assert {"name", "replicas", "manifests", "placement", "consumers", "steering"} == {
        field["name"] for field in found["fields"]
    }
    assert explained(capsys, "hpaintent.spec", "-o", "name").split() == ["group", "app", "consumers"]


def test_all_depths_at_once_end(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, "application", "--recursive")
    assert "        anyOf  <[]Term>" in text and len(text.splitlines()) < 100


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("app.spec.apps.replica", "Application.spec.apps has no field 'replica'; did you mean 'replicas'?"),
        ("app.spec.zzzzz", "known are apps, affinity"),
        ("app.kind.x", "Application.kind has no field 'x'; it has no fields"),
        ("aplication", "did you mean 'Application'?"),
        ("", "known are Application"),
    ],
)
def test_what_does_not_exist_is_wrong_usage(
    path: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    assert run(["explain", path, "--state", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_completion_goes_field_by_field() -> None:
    assert "application" in paths_below("") and "application." in paths_below("ap")
    assert paths_below("app.sp") == paths_below("app.") == ["app.kind", "app.metadata", "app.spec", "app.apiVersion"]
    assert "app.spec.apps.consumers" in paths_below("app.spec.apps.c") and paths_below("nothing.x") == []


def test_types_are_written_as_kubectl_does() -> None:
    assert type_name(list[model.Consumer]) == "[]Consumer" and type_name(dict[str, str]) == "map[string]string"
    assert (
        type_name(int | None) == "integer" and type_name(list[dict[str, Any]] | dict[str, Any]) == "[]object or object"
    )
