"""Nodes with a node agent: pods with roles go only where their node will take them, and run in the zone that was decided."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import until

ZONES = [
    {"id": 0, "cpus": "0-39", "memory": 200e9, "reserved": {"cpus": "0-1", "memory": "500Mi"}},
    {"id": 1, "cpus": "40-79", "memory": 200e9, "reserved": {"cpus": "40-41", "memory": "500Mi"}},
]


def node(name: str, **policy: Any) -> dict[str, Any]:
    """The usage example's machine with a node agent."""
    return {
        "name": name,
        "allocatable": {"cpu": "76", "memory": "390Gi", "pods": "110"},
        "zones": [{**zone, "memory": int(zone["memory"])} for zone in ZONES],  # type: ignore[call-overload]
        "nodePolicy": {"nics": [{"name": f"eth{i}", "numa": i, "mbps": 25000} for i in (0, 1)], **policy},
    }


def fleet() -> bytes:
    batch = {"roles": {"ETL": {"pool": "offline", "namespaces": ["batch"]}}}
    own = {
        "roles": {
            "trader": {"exclusive": True, "numa": "bind"},
            "cache": {"numa": "bind", "sharesNumaWith": ["cache"]},
            "solver": {"exclusive": True},
        }
    }
    plain = {"name": "plain", "allocatable": {"cpu": "76", "memory": "390Gi"}}
    clusters = [
        {"name": "one", "nodes": [node("n")]},
        {"name": "batch", "nodes": [node("n", **batch)]},
        {"name": "plain", "nodes": [plain]},
        {
            "name": "card",
            "nodes": [{**node("n"), "providers": [{"name": "fpga", "zone": 1, "inventories": {"FPGA": 1}}]}],
        },
        {"name": "many", "nodes": [{**node("m", **own), "count": 6}]},
    ]
    found = [{"provider": "lab", **cluster} for cluster in clusters]
    return json.dumps({"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1", "clusters": found}).encode()


def application(
    name: str, cluster: str, role: str, cores: int, replicas: int = 1, namespace: str = "default"
) -> dict[str, Any]:
    amounts = {"cpu": str(cores), "memory": "1Gi"}
    template = {
        "metadata": {"labels": {"app": name}, "annotations": {"kubernetes.io/pod-role": role} if role else {}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
    app = {"name": "web", "manifests": [manifest], "placement": {"allOf": [{"cluster": f"lab/{cluster}"}]}}
    head = {"apiVersion": "moorage.dev/v1alpha1", "kind": "Application", "metadata": {"name": name}}
    return {**head, "spec": {"apps": [app]}}


class Site:
    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def apply(self, document: dict[str, Any]) -> None:
        done = self.mesh.run("apply", "-f", "-", data=json.dumps(document).encode())
        assert done.returncode == 0, done.stderr.decode()

    def why(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.mesh.http(f"/v1/groups/default/{name}/v1/default/why")
        return found

    def parts(self, name: str) -> list[str]:
        claims = self.why(name)["apps"]["web"].get("claims", [])
        return sorted(part for claim in claims for slot in claim["slots"] for part in slot.get("parts", {}))

    async def phase(self, name: str, wanted: str) -> None:
        try:
            await until(lambda: self.why(name)["phase"] == wanted, 60, f"{name} is {wanted}")
        except AssertionError:
            raise AssertionError(f"{name} is not {wanted}: {self.why(name)}") from None

    async def told(self, name: str, code: str) -> None:
        def codes() -> list[str]:
            return [reason["code"] for reason in self.why(name).get("reasons", [])]

        try:
            await until(lambda: code in codes(), 60, f"{name} waits because of {code}")
        except AssertionError:
            raise AssertionError(f"{name} waits because of {code}: {self.why(name)}") from None

    def used(self, cluster: str) -> dict[str, dict[str, str]]:
        items = self.mesh.http(f"/v1/parts?cluster=lab/{cluster}")["items"]
        return {item["id"]: item["used"] for item in items if item.get("used")}

    def refused(self) -> float:
        total = 0.0
        for url in self.mesh.endpoint["metrics"]["inventory"]:
            with urllib.request.urlopen(url, timeout=10) as answer:
                for family in text_string_to_metric_families(answer.read().decode()):
                    total += sum(s.value for s in family.samples if s.name == "moorage_refused_pods_total")
        return total

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


async def test_roles_that_do_not_share_are_decided_into_different_zones(site: Site) -> None:
    # Both are decided before any report tells of the first.
    site.apply(application("store", "one", "storage-service", 20))
    site.apply(application("rank", "one", "reranker", 10))
    await site.phase("store", "Running")
    await site.phase("rank", "Running")
    assert {*site.parts("store"), *site.parts("rank")} == {"n/numa-0", "n/numa-1"}
    # Each zone is held; 18 and 28 CPUs of them are free.
    site.apply(application("third", "one", "storage-service", 5))
    await site.phase("third", "Pending")
    await site.told("third", "ZoneShort")
    await site.end("rank")
    await site.phase("third", "Running")
    assert site.refused() == 0
    await site.end("store", "third")


async def test_pods_of_a_role_that_shares_come_together(site: Site) -> None:
    site.apply(application("near", "one", "numa-enhancement", 10, replicas=6))
    await site.phase("near", "Running")
    assert site.refused() == 0

    def used() -> int:
        found = site.used("one")
        return sum(int(found.get(f"n/numa-{zone}", {}).get("cpu", "0")) for zone in (0, 1))

    await until(lambda: used() == 60, 60, "the CPUs are in use")
    await site.end("near")


async def test_nodes_that_do_not_know_a_role_are_no_candidates(site: Site) -> None:
    site.apply(application("lost", "plain", "storage-service", 5))
    site.apply(application("strange", "one", "no-such-role", 5))
    site.apply(application("etl", "batch", "ETL", 5))
    site.apply(application("etl-batch", "batch", "ETL", 5, namespace="batch"))
    await site.phase("etl-batch", "Running")
    for name, code in (("lost", "RoleUnknown"), ("strange", "RoleUnknown"), ("etl", "RoleForbidden")):
        await site.phase(name, "Pending")
        await site.told(name, code)
    assert site.refused() == 0
    await site.end("lost", "strange", "etl", "etl-batch")


async def test_roles_that_only_a_node_knows_are_decided_by_what_they_take(site: Site) -> None:
    # Each of the six nodes has two zones with 38 CPUs: room for twelve, not for one more.
    site.apply(application("traders", "many", "trader", 20, replicas=12))
    await site.phase("traders", "Running")
    assert len(site.parts("traders")) == 12
    site.apply(application("late", "many", "trader", 1))
    await site.phase("late", "Pending")
    await site.told("late", "ZoneShort")
    # CPUs of one's own without a role: 18 are left of each zone.
    site.apply(application("large", "many", "", 19))
    await site.told("large", "ZoneShort")
    site.apply(application("small", "many", "", 18))
    await site.phase("small", "Running")
    assert len(site.parts("small")) == 1
    await site.end("traders")
    for name in ("late", "large"):
        await site.phase(name, "Running")
    assert site.refused() == 0
    await site.end("late", "large", "small")


async def test_exclusive_cpus_lie_in_the_zone_of_the_device(site: Site) -> None:
    document = application("pair", "card", "", 4)
    app = document["spec"]["apps"][0]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "pair"}
    needs = [
        {"resource": "cpu", "requests": 4, "limits": 4, "group": "_C"},
        {"resource": "FPGA", "requests": 1, "group": "_A"},
    ]
    topology = {"sameSubtree": [["_C", "_A"]]}
    app["consumers"] = [{"object": target, "container": "c", "needs": needs, "topology": topology}]
    site.apply(document)
    await site.phase("pair", "Running")
    assert site.parts("pair") == ["n/numa-1", "n/numa-1/fpga"]
    # What the node's agent gave, once the claim is covered by its pod.
    await until(lambda: site.used("card").get("n/numa-1", {}).get("cpu") == "4", 30, "the CPUs are in use")
    assert site.used("card")["n/numa-0"]["cpu"] == "0"
    assert site.refused() == 0
    await site.end("pair")


async def test_pods_with_roles_come_and_go_and_no_node_refuses_any(site: Site) -> None:
    chosen = random.Random(7)
    roles = {
        "storage-service": (4, 30),
        "reranker": (2, 12),
        "numa-enhancement": (2, 8),
        "online-micro_service": (1, 6),
        "trader": (2, 20),
        "solver": (2, 20),
        "": (1, 20),
    }
    there: list[str] = []
    for number in range(40):
        role = chosen.choice(list(roles))
        name = f"app-{number}"
        site.apply(application(name, "many", role, chosen.randint(*roles[role]), chosen.randint(1, 3)))
        there.append(name)
        while len(there) > 8:
            await site.end(there.pop(chosen.randrange(len(there))))
    assert site.refused() == 0
    await until(lambda: all(site.why(n)["phase"] in ("Running", "Pending") for n in there), 60, "all have settled")
    assert site.refused() == 0
    await site.end(*there)
