"""A node's agent does not admit a pod that the scheduler bound to its node: within two seconds its claim is elsewhere, and why says so
in the agent's words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from moorage.bus import Bus, subjects
from moorage.model.reports import PodReport, Report, ReportReply
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import eventually

CLUSTER = "lab/site"
FLEET = {
    "clusters": [
        {
            "name": "site",
            "provider": "lab",
            "nodes": [{"name": "n", "count": 2, "allocatable": {"cpu": "8"}}],
            "behaviour": {"readyDelayMs": 3_600_000},  # the kubelet waits for its runtime, which asks the agent
        }
    ]
}
MANIFEST = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}}]},
        },
    },
}
WORDS = "ClaimUnmet: numa-0 has 1 core"


class Pods:
    """The pods with a claim that are reported."""

    def __init__(self) -> None:
        self.there: dict[str, PodReport] = {}

    def heard(self, _subject: str, data: bytes) -> None:
        report = msgspec.json.decode(data, type=Report)
        self.there.update((pod.uid, pod) for pod in report.pods)
        for uid in report.pods_gone:
            self.there.pop(uid, None)

    def bound(self) -> PodReport | None:
        return next((pod for pod in self.there.values() if pod.claim and pod.node and not pod.deleting), None)


def slots(mesh: Mesh) -> tuple[list[str], dict[str, Any]]:
    why = mesh.http("/v1/groups/default/web/v1/default/why")
    claims = why["apps"].get("web", {}).get("claims", [])
    return [slot["node"] for claim in claims for slot in claim["slots"]], why


@pytest.mark.timeout(200)
async def test_what_a_node_s_agent_refuses_runs_elsewhere(tmp_path: Any) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(FLEET))
    with Mesh("--fleet", str(file)) as mesh:
        bus, pods = await Bus.connect(mesh.settings, worker="admin"), Pods()
        await bus.subscribe("moorage.reports.lab.site.*", pods.heard, max_bytes=1 << 20)
        app = {"name": "web", "manifests": [MANIFEST]}
        head = {"apiVersion": "moorage.dev/v1alpha1", "kind": "Application", "metadata": {"name": "web"}}
        assert mesh.http("/v1/apply", {**head, "spec": {"apps": [app]}})["accepted"]

        async def is_bound() -> bool:
            return pods.bound() is not None

        await eventually(is_bound, 60, "a pod is bound")
        pod = pods.bound()
        assert pod is not None
        refused = {"pod": pod.uid, "outcome": "refused", "code": "ClaimUnmet", "message": "numa-0 has 1 core"}
        report = {
            "id": "1",
            "session": "s",
            "seq": 0,
            "kind": "full",
            "nodes": [{"name": pod.node}],
            "admissions": [refused],
        }
        answer = await bus.request(
            subjects.reports(CLUSTER, f"node-{pod.node}"), msgspec.json.encode(report), timeout=30
        )
        assert not msgspec.json.decode(answer, type=ReportReply).refused

        async def moved() -> bool:
            nodes, _ = await asyncio.to_thread(slots, mesh)
            return bool(nodes) and pod.node not in nodes

        await eventually(moved, 60, "the claim is elsewhere")

        async def warned() -> bool:
            _, why = await asyncio.to_thread(slots, mesh)
            found = [one["message"] for one in why.get("warnings", ()) if one["code"] == "NodeRefused"]
            return bool(found) and WORDS in found[0] and pod.node in found[0]

        await eventually(warned, 60, "a warning says why")

        async def replaced() -> bool:
            other = pods.bound()
            return pod.uid not in pods.there and other is not None and other.node != pod.node

        await eventually(replaced, 60, "its pod is there, too")
        await bus.close()
