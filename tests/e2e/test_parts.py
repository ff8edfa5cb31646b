"""The inside of nodes of a simulated fleet, as REST and the command line show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import until, wait_until

FPGA = {"FPGA": 1}
#: The tree with two zones of the specification of nested placement.
HOST: dict[str, Any] = {
    "name": "host",
    "allocatable": {"cpu": "8", "memory": "4Gi"},
    "zones": [
        {"id": "numa0", "resources": {"cpu": 4, "memory": "2Gi"}, "used": {"cpu": 2}},
        {"id": "numa1", "resources": {"cpu": 4, "memory": "2Gi"}},
    ],
    "providers": [
        {"name": "fpga0_0", "zone": "numa0", "inventories": FPGA},
        {"name": "fpga1_0", "zone": "numa1", "inventories": FPGA, "traits": ["CUSTOM_FAST"]},
        {"name": "fpga1_1", "zone": "numa1", "inventories": FPGA, "used": FPGA},
    ],
    "topologyManager": {"policy": "single-numa-node"},
}


def cli(mesh: Mesh, *arguments: str) -> str:
    done = mesh.run(*arguments)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def fleet(file: Path, host: dict[str, Any]) -> str:
    plain = {"name": "plain", "allocatable": {"cpu": "4"}}
    clusters = [
        {"name": "a", "provider": "lab", "nodes": [host, plain]},
        {"name": "b", "provider": "lab", "nodes": [plain]},
    ]
    file.write_text(json.dumps({"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1", "clusters": clusters}))
    return str(file)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with Mesh("--fleet", fleet(tmp_path_factory.mktemp("fleet") / "fleet.json", HOST)) as found:
        yield found


def test_parts_are_listed_with_what_is_in_use(mesh: Mesh) -> None:
    wait_until(lambda: len(mesh.http("/v1/parts")["items"]) == 6, "the nodes are known")
    items = mesh.http("/v1/parts")["items"]
    assert [item["id"] for item in items] == [
        "host/any",
        "host/numa0",
        "host/numa0/fpga0_0",
        "host/numa1",
        "host/numa1/fpga1_0",
        "host/numa1/fpga1_1",
    ]
    numa0, fast = items[1], items[4]
    assert numa0["inventories"]["cpu"]["total"] == "4" and numa0["used"] == {"cpu": "2", "memory": "0"}
    assert (numa0["cluster"], numa0["node"], numa0["parent"], numa0["kind"]) == ("lab/a", "host", "host", "zone")
    assert numa0["traits"] == ["HW_NUMA_ROOT"] and numa0["health"] == "Healthy" and numa0["holders"] == []
    assert (fast["parent"], fast["traits"], fast["inventories"]) == ("host/numa1", ["FAST"], {"FPGA": {"total": "1"}})
    assert items[5]["used"] == {"FPGA": "1"}
    page = mesh.http("/v1/parts?limit=4")
    assert [*page["items"], *mesh.http(f"/v1/parts?limit=4&continue={page['continue']}")["items"]] == items
    assert mesh.http("/v1/parts?cluster=lab/b")["items"] == []
    assert mesh.http("/v1/parts?cluster=lab/a&node=host")["items"] == items
    assert mesh.http("/v1/parts/lab/a/host%2Fnuma0%2Ffpga0_0") == items[2]


def test_a_node_shows_what_it_reports_of_its_inside(mesh: Mesh) -> None:
    node = mesh.http("/v1/nodes/lab/a/host")
    assert [zone["id"] for zone in node["zones"]] == ["numa0", "numa1"] and node["used"]["cpu"] == "2"
    assert node["topologyManager"] == {"policy": "single-numa-node"}
    assert not {"zones", "providers", "topologyManager"} & mesh.http("/v1/nodes/lab/a/plain").keys()


def test_the_command_line_lists_parts_and_draws_the_tree(mesh: Mesh) -> None:
    listed = cli(mesh, "get", "parts", "--cluster", "lab/a", "--node", "host")
    assert "host/numa1/fpga1_1" in listed and "FPGA 1/1" in listed and "cpu 2/4, memory 0/2Gi" in listed
    assert cli(mesh, "get", "parts", "--node", "plain").strip() in ("", "No parts found.")
    assert cli(mesh, "get", "part", "lab/a/host/numa0", "-o", "name").strip() == "part/lab/a/host/numa0"
    tree = ["├─ any", "├─ numa0", "│  └─ fpga0_0", "└─ numa1", "   ├─ fpga1_0", "   └─ fpga1_1"]
    drawn = [line for line in cli(mesh, "describe", "node", "lab/a/host").splitlines() if "─" in line]
    assert [line[: len(start)] for line, start in zip(drawn, tree, strict=True)] == tree


def pair(name: str) -> dict[str, Any]:
    """A pod that needs two cores and an FPGA of one zone."""
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    }
    consumer = {
        "object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "container": "c",
        "needs": [
            {"resource": "cpu", "requests": 2, "limits": 2, "group": "_C"},
            {"resource": "FPGA", "requests": 1, "group": "_A"},
        ],
        "topology": {"sameSubtree": [["_C", "_A"]]},
    }
    app = {"name": "web", "manifests": [deployment], "consumers": [consumer]}
    head = {"apiVersion": "moorage.dev/v1alpha1", "kind": "Application", "metadata": {"name": name}}
    return {**head, "spec": {"apps": [app]}}


async def test_pods_are_placed_in_zones_that_have_all_and_the_next_waits(mesh: Mesh, tmp_path: Path) -> None:
    def phase(name: str) -> str:
        found: str = json.loads(cli(mesh, "why", name, "-o", "json"))["phase"]
        return found

    def parts_of(name: str) -> dict[str, Any]:
        (claim,) = json.loads(cli(mesh, "why", name, "-o", "json"))["apps"]["web"]["claims"]
        (slot,) = claim["slots"]
        assert slot["node"] == "host"
        found: dict[str, Any] = slot["parts"]
        return found

    for name in ("first", "second", "third"):
        (tmp_path / name).write_text(json.dumps(pair(name)))
        cli(mesh, "apply", "-f", str(tmp_path / name))
        wanted = "Pending" if name == "third" else "Running"
        await until(lambda name=name, wanted=wanted: phase(name) == wanted, 60, f"{name} {wanted}")  # type: ignore[misc]
    given = [parts_of(name) for name in ("first", "second")]
    assert sorted(given, key=str) == [
        {f"host/numa{zone}": {"cpu": "2"}, f"host/numa{zone}/fpga{zone}_0": {"FPGA": "1"}} for zone in (0, 1)
    ]
    # The node has cores for the third one, but no card.
    await until(lambda: '"PartShort"' in cli(mesh, "why", "third", "-o", "json"), 60, "it is told what it lacks")
    cli(mesh, "terminate", "default/first/v1/default")
    await until(lambda: phase("third") == "Running", 60, "the third one takes what the first one left")
    assert parts_of("third") == given[0]
    for name in ("second", "third"):
        cli(mesh, "terminate", f"default/{name}/v1/default")
    await until(lambda: {phase("second"), phase("third")} == {"Terminated"}, 60, "nothing is left")


async def test_a_change_of_the_inside_is_an_event(mesh: Mesh, tmp_path: Path) -> None:
    changed = {**HOST, "providers": [*HOST["providers"][:2], {"name": "vf", "inventories": {"VF": 4}}]}
    cli(mesh, "fleet", "apply", fleet(tmp_path / "changed.json", changed))

    def told() -> list[dict[str, Any]]:
        events = mesh.http("/v1/events?subject=moorage.events.fleet.parts.lab.a&follow=false")["items"]
        return [event["data"] for event in events if "vf" in str(event["data"])]

    await until(lambda: bool(told()), 30, "the event of the changed parts")
    assert told()[0]["added"] == ["host/vf"] and told()[0]["removed"] == ["host/numa1/fpga1_1"]
    await until(lambda: "host/vf" in {item["id"] for item in mesh.http("/v1/parts")["items"]}, 30, "the new part")
