"""The agent of a node reports to the mesh under a user of its own, which speaks for that node only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from moorage.mesh.permissions import node_user
from moorage.node.core.node_report import NodeDescription, NodeRows
from moorage.node.mesh_reports import BadCredentials, MeshReports, read_credentials
from moorage.qos.admission import Admitted
from moorage.qos.messages import Refusal
from moorage_testkit.mesh import Mesh
from moorage_testkit.nodes import GB, SimulatedNode, pod
from moorage_testkit.polling import until

POLICY = "{kind: NodePolicy, spec: {reservedCpus: '0-1,40-41'}}"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    nodes = [{"name": name, "allocatable": {"cpu": "76", "memory": "400Gi"}} for name in ("n", "other")]
    fleet = tmp_path_factory.mktemp("fleet") / "fleet.json"
    fleet.write_text(json.dumps({"kind": "Fleet", "clusters": [{"provider": "lab", "name": "one", "nodes": nodes}]}))
    with Mesh("--fleet", str(fleet)) as found:
        yield found


def join(mesh: Mesh, place: str, file: Path) -> None:
    done = mesh.run("node", "join", place, "--credentials", str(file))
    assert done.returncode == 0, done.stderr.decode()
    assert file.stat().st_mode & 0o777 == 0o600


class Agent:
    def __init__(self, credentials: Path) -> None:
        self.node = SimulatedNode(POLICY, name="n")
        self.refused: dict[str, Refusal] = {}
        self.description = NodeDescription("n", self.node.machine)
        self.reports = MeshReports(read_credentials(credentials), self.rows)
        self.task = asyncio.ensure_future(self.reports.run())

    def rows(self) -> NodeRows:
        cpu = self.node.cpu
        return self.description.rows(
            self.node.node.policy,
            self.node.records,
            self.refused,
            enabled=True,
            exclusive_free=cpu.capacity(cpu.free()),
            offered={"cpu": 3, "memory": 3},
        )

    def admit(self, name: str, role: str, cpu: int) -> None:
        outcome = self.node.admit(pod(name, role, cpu, GB))
        if not isinstance(outcome, Admitted):
            self.refused[f"uid-{name}"] = outcome.refusals[0]
        self.reports.changed.set()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_the_mesh_sees_what_zones_have_left_and_who_was_refused(mesh: Mesh, tmp_path: Path) -> None:
    def seen() -> dict[str, Any]:
        found: dict[str, Any] = mesh.http("/v1/nodes/lab/one/n")
        return found

    def used(zone: int) -> str:
        items = mesh.http("/v1/parts?cluster=lab/one")["items"]
        return next((item["used"].get("cpu", "0") for item in items if item["id"] == f"n/numa-{zone}"), "")

    join(mesh, "lab/one/n", tmp_path / "n.json")
    agent = Agent(tmp_path / "n.json")
    try:
        await until(lambda: len(seen().get("zones", [])) == 2, 60, "zones are reported")
        assert seen()["qos"]["gate"] is True
        assert "storage-service" in seen()["qos"]["roles"]
        agent.admit("a", "storage-service", 20)
        await until(lambda: used(0) == "20", 40, "the admission is seen")
        await until(lambda: [zone.get("roles", []) for zone in seen()["zones"]] == [["storage-service"], []], 40)
        agent.admit("b", "reranker", 39)
        await until(lambda: bool(seen().get("admissions")), 40, "the refusal is seen")
        [refusal] = seen()["admissions"]
        assert (refusal["pod"], refusal["outcome"], refusal["code"]) == ("uid-b", "refused", "TopologyAffinityError")
        subject = "moorage.events.fleet.refused.lab.one"
        await until(lambda: _pods(mesh, subject) == ["uid-b"], 40, "the event is there")
        agent.node.remove("uid-a")
        agent.reports.changed.set()
        await until(lambda: used(0) == "0", 40, "what is given back is seen")
    finally:
        await agent.stop()


async def test_a_nodes_user_says_nothing_about_other_nodes(mesh: Mesh, tmp_path: Path) -> None:
    join(mesh, "lab/one/n", tmp_path / "n.json")
    found = read_credentials(tmp_path / "n.json")
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    inbox = f"_INBOX.{node_user('lab/one/n')}".encode()
    client = await nats.connect(found.nats, nkeys_seed_str=found.seed, inbox_prefix=inbox, error_cb=note)
    try:
        report = json.dumps(
            {"session": "x", "seq": 1, "kind": "full", "nodes": [{"name": "other", "zones": [{"id": 0}]}]}
        )
        subjects = [
            "moorage.reports.lab.one.node-other",
            "moorage.reports.lab.one.cluster",
            "moorage.reports.lab.two.node-n",
            "moorage.intents.apply",
            "$JS.API.STREAM.NAMES",
        ]
        for number, subject in enumerate(subjects, 1):
            await client.publish(subject, report.encode())
            await client.flush()
            await until(lambda number=number: len(refused) == number, 40, f"{subject} is refused")  # type: ignore[misc]
        # On its own subject, it cannot name another node either.
        answer = await client.request("moorage.reports.lab.one.node-n", report.encode(), timeout=10)
        assert json.loads(answer.data) is not None
        assert "zones" not in mesh.http("/v1/nodes/lab/one/other")
    finally:
        await client.close()
    assert mesh.run("node", "leave", "lab/one/n").returncode == 0
    with pytest.raises(BadCredentials):
        read_credentials(tmp_path / "missing.json")


def _pods(mesh: Mesh, subject: str) -> list[str]:
    return [event["data"]["pod"] for event in mesh.http(f"/v1/events?subject={subject}&follow=false")["items"]]
