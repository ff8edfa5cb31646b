"""Snippets in the README and the pages work, and their lists are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from moorage.cli import exit_codes
from moorage.intents.core import validate
from moorage.model.shapes import Intent
from moorage.sim.core import fleet_documents as fleets
from moorage.sim.core.simulator import FAULTS

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[Any]:
    found = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [document for block in found for document in yaml.safe_load_all(block)]


def test_the_application_in_the_readme_is_complete() -> None:
    (shop,) = blocks("README.md")
    assert validate.application(shop).document.metadata.name == "shop"
    assert "file" not in shop["spec"]["apps"][0]["manifests"][0]


def test_every_field_and_fault_of_the_simulator_is_documented() -> None:
    page = (ROOT / "docs" / "simulation.md").read_text()
    fleet, gpus = blocks("docs/simulation.md")
    assert list(fleets.expand(fleets.decode(fleet))) == ["lab/edge-0", "lab/edge-1"]
    assert fleets.expand(fleets.decode(gpus))["lab/gpus"].objects
    for kind in (fleets.ClusterDocument, fleets.NodeDocument, fleets.Behaviour, fleets.CpuManagerDocument):
        for field in msgspec.structs.fields(kind):
            assert f"{field.encode_name}" in page
    assert all(f"| `{fault}` |" in page for fault in FAULTS)


def test_every_exit_code_is_documented() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    codes = {value for value in vars(exit_codes).values() if type(value) is int}
    assert set(map(int, re.findall(r"^\| (\d) \|", page, re.MULTILINE))) == codes


def test_the_sdk_decodes_the_spec_of_an_intent() -> None:
    assert Intent(kind="LatencyIntent", name="n", spec=msgspec.Raw(b'{"maxMs": 5}')).read() == {"maxMs": 5}
