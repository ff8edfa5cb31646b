"""Nodes whose kubelet aligns pods with zones: what is decided is admitted, and what a kubelet refuses runs elsewhere."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import until

#: The kubelet's words.
WORDS = "TopologyAffinityError: Resources cannot be allocated with Topology locality"
FPGA = {"FPGA": 1}


def amounts(cores: int) -> dict[str, Any]:
    return {"resources": {key: {"cpu": str(cores), "memory": "64Mi"} for key in ("requests", "limits")}}


def aligned(name: str, **more: Any) -> dict[str, Any]:
    """A node with two zones of four cores, whose kubelet gives each pod one of them."""
    return {
        "name": name,
        "allocatable": {"cpu": "8", "memory": "8Gi"},
        "cpuManager": {"policy": "static", "exclusive": 8},
        "topologyManager": {"policy": "single-numa-node"},
        "zones": [{"id": i, "resources": {"cpu": 4, "memory": "4Gi"}} for i in range(2)],
        **more,
    }


def strangers(node: str, *cores: int) -> list[dict[str, Any]]:
    """Pods that are no app's, one after the other."""
    return [
        {
            "metadata": {"name": f"{node}-stranger-{i}"},
            "spec": {"nodeName": node, "containers": [{"name": "c", **amounts(number)}]},
        }
        for i, number in enumerate(cores)
    ]


def seed(*used: int) -> dict[str, Any]:
    """The host of the specification of nested placement: a card in the first zone, two in the second. `used`: cores of zones."""
    host = aligned("host", topologyManager={"policy": "none"})
    for zone, cores in zip(host["zones"], used, strict=False):
        zone["used"] = {"cpu": cores}
    cards = [("fpga0_0", 0), ("fpga1_0", 1), ("fpga1_1", 1)]
    return {**host, "providers": [{"name": name, "zone": zone, "inventories": FPGA} for name, zone in cards]}


def fleet(**changed: Any) -> bytes:
    clusters: dict[str, dict[str, Any]] = {
        # One core of each zone is free on the first node, two and four on the second.
        "tight": {
            "nodes": [aligned("frag"), aligned("half")],
            "pods": [*strangers("frag", 3, 3), *strangers("half", 2)],
            "behaviour": {"topologyDelayMs": 700},
        },
        # What strangers take is reported after the tests.
        "late": {
            "nodes": [aligned("first"), aligned("second", unschedulable=True)],
            "pods": strangers("first", 3, 3),
            "behaviour": {"topologyDelayMs": 3_600_000},
        },
        # The same, with another node that is usable and that no preference leads to.
        "open": {
            "nodes": [aligned("a"), aligned("b")],
            "pods": strangers("a", 3, 3),
            "behaviour": {"topologyDelayMs": 3_600_000},
        },
        "wide": {"nodes": [aligned("w", count=3)]},
        "seed": {"nodes": [seed(0, 2)]},
    }
    for name, fields in changed.items():
        clusters[name] = {**clusters[name], **fields}
    found = [{"name": name, "provider": "lab", **fields} for name, fields in clusters.items()]
    return json.dumps({"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1", "clusters": found}).encode()


def application(
    name: str, cluster: str, cores: int, replicas: int = 1, kind: str = "Deployment", **consumer: Any
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "i", **({} if consumer else amounts(cores))}]},
        },
    }
    if kind == "StatefulSet":
        spec["serviceName"] = name
    manifest = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    app: dict[str, Any] = {
        "name": "web",
        "manifests": [manifest],
        "placement": {"allOf": [{"cluster": f"lab/{cluster}"}]},
    }
    if consumer:
        target = {"apiVersion": "apps/v1", "kind": kind, "name": name}
        app["consumers"] = [{"object": target, "container": "c", **consumer}]
    head = {"apiVersion": "moorage.dev/v1alpha1", "kind": "Application", "metadata": {"name": name}}
    return {**head, "spec": {"apps": [app]}}


def pair(name: str) -> dict[str, Any]:
    """Two cores and a card of one zone."""
    needs = [
        {"resource": "cpu", "requests": 2, "limits": 2, "group": "_C"},
        {"resource": "FPGA", "requests": 1, "group": "_A"},
    ]
    return application(name, "seed", 2, needs=needs, topology={"sameSubtree": [["_C", "_A"]]})


class Site:
    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def apply(self, document: dict[str, Any]) -> None:
        done = self.mesh.run("apply", "-f", "-", data=json.dumps(document).encode())
        assert done.returncode == 0, done.stderr.decode()

    def apply_fleet(self, data: bytes) -> None:
        done = self.mesh.run("fleet", "apply", "-", "--yes", data=data)
        assert done.returncode == 0, done.stderr.decode()

    def why(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.mesh.http(f"/v1/groups/default/{name}/v1/default/why")
        return found

    def nodes(self, name: str) -> list[str]:
        claims = self.why(name)["apps"]["web"].get("claims", [])
        return sorted(slot["node"] for claim in claims for slot in claim["slots"] for _ in range(slot.get("count", 1)))

    def refused(self) -> float:
        """Returns how many pods of claims their nodes refused."""
        total = 0.0
        for url in self.mesh.endpoint["metrics"]["inventory"]:
            with urllib.request.urlopen(url, timeout=10) as answer:
                for family in text_string_to_metric_families(answer.read().decode()):
                    total += sum(s.value for s in family.samples if s.name == "moorage_refused_pods_total")
        return total

    def times(self, subject: str) -> list[datetime]:
        """Returns when such events were."""
        events = self.mesh.http(f"/v1/events?subject=moorage.events.{subject}&follow=false")["items"]
        return [datetime.fromisoformat(event["time"]) for event in events]

    def parts(self, cluster: str) -> dict[str, dict[str, Any]]:
        return {item["id"]: item for item in self.mesh.http(f"/v1/parts?cluster=lab/{cluster}")["items"]}

    async def phase(self, name: str, wanted: str) -> None:
        await until(lambda: self.why(name)["phase"] == wanted, 60, f"{name} is {wanted}")

    def reasons(self, name: str, *codes: str) -> list[dict[str, Any]]:
        return [reason for reason in self.why(name).get("reasons", []) if reason["code"] in codes]

    async def waits(self, name: str, *codes: str) -> dict[str, Any]:
        """Waits until the group waits for one of these reasons, and returns it."""
        found: list[dict[str, Any]] = []

        def told() -> bool:
            found[:] = self.reasons(name, *codes)
            return bool(found)

        await until(told, 60, f"{name} waits because of {codes}")
        await self.phase(name, "Pending")
        return found[0]

    async def end(self, *names: str) -> None:
        for name in names:
            assert self.mesh.run("terminate", f"default/{name}/v1/default").returncode == 0
        for name in names:
            await self.phase(name, "Terminated")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    file = tmp_path_factory.mktemp("fleet") / "fleet.json"
    file.write_bytes(fleet())
    with Mesh("--fleet", str(file)) as mesh:
        yield Site(mesh)


async def test_kubelets_refuse_nothing_of_what_is_placed_while_reports_are_late(site: Site) -> None:
    def cores(part: str) -> str:
        found: str = site.parts("tight")[part]["used"].get("cpu", "0")
        return found

    await until(lambda: [cores(f"frag/numa-{i}") for i in (0, 1)] == ["3", "3"], 30, "strangers are reported")
    await until(lambda: cores("half/numa-0") == "2", 30, "strangers are reported")
    for name, number in (("four", 4), ("two", 2)):
        site.apply(application(name, "tight", number))
    await site.phase("four", "Running")
    await site.phase("two", "Running")
    # Two cores are free on the first node, but one of each zone.
    site.apply(application("more", "tight", 2))
    assert site.nodes("four") == site.nodes("two") == ["half"]
    await site.waits("more", "PartShort", "ZoneShort")
    site.apply(application("small", "tight", 1, replicas=2, kind="StatefulSet"))
    await site.phase("small", "Running")
    assert site.nodes("small") == ["frag", "frag"]
    assert site.refused() == 0
    await until(lambda: [cores(f"frag/numa-{i}") for i in (0, 1)] == ["4", "4"], 30, "all of the zones is reported")
    await site.end("four", "two", "small", "more")


async def test_what_a_kubelet_refuses_runs_elsewhere(site: Site) -> None:
    """The zones are taken, but the mesh does not know it yet."""
    assert site.parts("late")["first/numa-0"]["used"]["cpu"] == "0"
    site.apply(application("unlucky", "late", 2))
    seen: dict[str, float] = {}

    def decided_again() -> bool:
        if "refused" not in seen and site.refused():
            seen["refused"] = time.monotonic()
        return any(WORDS in reason["message"] for reason in site.reasons("unlucky", "NodeRefused"))

    await until(decided_again, 60, "the refusal is told")
    again = time.monotonic() - seen.get("refused", time.monotonic())
    sys.stdout.write(f"decided again {again:.2f} s after the refusal\n")
    await site.phase("unlucky", "Pending")
    await until(lambda: site.refused() >= 1, 30, "the refusal is counted")
    await until(lambda: bool(site.times("fleet.refused.lab.late")), 30, "it is an event")
    site.apply_fleet(fleet(late={"nodes": [aligned("first"), aligned("second")]}))
    await site.phase("unlucky", "Running")
    assert site.nodes("unlucky") == ["second"]
    await site.end("unlucky")


@pytest.mark.parametrize(
    ("kind", "steering"),
    [("Deployment", None), ("Deployment", "pinned"), ("StatefulSet", None), ("StatefulSet", "pinned")],
)
async def test_what_a_kubelet_refuses_moves_to_a_usable_node_at_once(
    site: Site, kind: str, steering: str | None
) -> None:
    """Nobody does anything for it."""
    name = f"moves-{kind.lower()}-{steering or 'default'}"
    before = site.refused()
    document = application(name, "open", 2, kind=kind)
    if steering:
        document["spec"]["apps"][0]["steering"] = steering
    site.apply(document)
    await until(lambda: site.nodes(name) == ["b"], 60, "it is decided again")
    await site.phase(name, "Running")
    assert site.nodes(name) == ["b"]
    await until(lambda: site.refused() > before, 30, "the refusal is counted")
    refused, subject = site.refused() - before, f"decisions.*.default.{name}.v1.default"
    await until(lambda: bool(site.times(subject)), 30, "it is an event")
    placed = site.times(subject)
    sys.stdout.write(f"{kind} {steering}: {refused:g} refused, running {placed[-1] - placed[0]} after it was placed\n")
    # A controller makes the next pod without a pause. A pinned one waits until it has another slot.
    assert refused == 1 or (not steering and refused > 1)
    await site.end(name)


async def test_pods_with_parts_on_several_nodes_are_pinned(site: Site) -> None:
    """Two pods fit on a node by its zones, three by its sums. Another template restarts them one by one."""

    def document(image: str, replicas: int, **app: Any) -> dict[str, Any]:
        made = application("spread", "wide", 3, replicas=replicas)
        made["spec"]["apps"][0] |= app
        (container,) = made["spec"]["apps"][0]["manifests"][0]["spec"]["template"]["spec"]["containers"]
        container["image"] = image
        return made

    def template() -> dict[str, Any]:
        """Returns the applied pod template; empty while the patcher works on a new decision."""
        items = site.mesh.http("/v1/groups/default/spread/v1/default/diff")["items"]
        found: dict[str, Any] = items[0]["objects"][0]["spec"]["template"] if items else {}
        return found

    def in_order() -> bool:
        """Returns whether the nodes run just what is claimed."""
        used = {n["name"]: n["used"].get("cpu", "0") for n in site.mesh.http("/v1/nodes?cluster=lab/wide")["items"]}
        claimed = {node: str(3 * site.nodes("spread").count(node)) for node in used}
        return used == claimed

    before = site.refused()
    site.apply(document("i:1", 4))
    await site.phase("spread", "Running")
    assert sorted(map(site.nodes("spread").count, set(site.nodes("spread")))) == [2, 2]
    pinned = template()
    assert pinned["spec"]["schedulingGates"] == [{"name": "moorage.dev/claim"}] and "affinity" not in pinned["spec"]
    runs = json.loads(pinned["metadata"]["annotations"]["moorage.dev/parts"])
    assert sum(run["count"] for of_node in runs.values() for run in of_node) == 4
    assert all(run["parts"] for of_node in runs.values() for run in of_node)
    await until(in_order, 40, "pods run in their slots")
    # One more pod restarts none: the template stays.
    site.apply(document("i:1", 5))
    await until(lambda: len(site.nodes("spread")) == 5, 40, "it is decided")
    await site.phase("spread", "Running")
    await until(lambda: template() == pinned, 40, "the template stays")
    await until(in_order, 40, "pods run in their slots")
    site.apply(document("i:2", 4))
    await until(lambda: site.why("spread")["revision"] == 3 and len(site.nodes("spread")) == 4, 40, "it is decided")
    await site.phase("spread", "Running")
    await until(in_order, 60, "pods run in their slots")
    site.mesh.run("fleet", "fault", "lab/wide", "lose-pods")
    await until(lambda: site.why("spread")["phase"] == "Running" and in_order(), 60, "pods come back to their slots")
    # Who does not want to be pinned says so.
    site.apply(document("i:2", 4, steering="required"))
    await until(
        lambda: "schedulingGates" not in template().get("spec", {"schedulingGates": []}), 40, "it is not pinned"
    )
    await site.phase("spread", "Running")
    site.apply(document("i:2", 4, steering="pinned"))
    await until(lambda: "schedulingGates" in template().get("spec", {}), 40, "it is pinned")
    await site.phase("spread", "Running")
    await until(in_order, 60, "pods run in their slots")
    assert site.refused() == before
    await site.end("spread")


async def test_the_fourth_pod_waits_and_says_why(site: Site) -> None:
    for name in ("one", "two"):
        site.apply(pair(name))
        await site.phase(name, "Running")
    # Two cores are left in the first zone, a card in the second.
    site.apply(pair("three"))
    assert (await site.waits("three", "RelationFails"))["relation"] == "sameSubtree _A,_C"
    site.apply_fleet(fleet(seed={"nodes": [seed()]}))
    await site.phase("three", "Running")
    took: list[float] = []

    def placed_after() -> bool:
        placed = site.times("decisions.placed.default.three.v1.default")
        changed = [at for at in site.times("fleet.changed.lab.seed") if placed and at < placed[0]]
        took[:] = [(placed[0] - max(changed)).total_seconds()] if changed else []
        return bool(took)

    await until(placed_after, 30, "both are events")
    sys.stdout.write(f"placed {took[0]:.3f} s after the cores were free\n")
    site.apply(pair("four"))
    short = await site.waits("four", "PartShort")
    assert (short["group"], short["needed"], short["free"]) == ("_A", "1", "0")
    await site.end("one")
    await site.phase("four", "Running")
    await site.end("two", "three", "four")
