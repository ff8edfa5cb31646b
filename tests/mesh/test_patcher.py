"""Tests the patcher with a real broker and simulated clusters, from a decision in the log to running pods and back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest_asyncio

from moorage.bus import Bus, Conflict, NoAnswer, new_id, subjects
from moorage.bus.server import Incoming
from moorage.ledger import LedgerFollower, open_ledger
from moorage.model.claims import (
    Claim,
    Commit,
    Decision,
    IntentRef,
    Reassignment,
    Release,
    Settlement,
    Shortfall,
    Slot,
    Withdrawal,
)
from moorage.model.controllers import Controller
from moorage.model.desired_state import ActionAnswer, ActionAsk, Contribution, DiffReply
from moorage.model.events import Event
from moorage.model.groups import GroupRecord, Revision, State
from moorage.model.names import group_tokens
from moorage.model.reports import Report, ReportReply
from moorage.model.shapes import ShapedApp
from moorage.model.status import ClaimsRemoved, GroupStatus
from moorage.patcher.agent_api import AgentApi
from moorage.patcher.group_queue import GroupQueue
from moorage.sim.core.fleet_documents import decode, expand
from moorage.sim.core.simulator import Simulator
from moorage.sim.runner import SimulatorRunner
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer

START = "import asyncio,sys; from moorage.bus import Settings; from moorage.patcher.worker import main; asyncio.run(main(Settings(sys.argv[1])))"
NODE = {"name": "n", "count": 3, "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "500"}}


def manifest(cpu: str = "1") -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 2, "template": template},
    }


class World:
    """Stands in for everything around the patcher: intent store, merger, inventory and clusters."""

    def __init__(self, nats: NatsServer, bus: Bus) -> None:
        self.nats, self.bus = nats, bus
        self.process: subprocess.Popen[bytes] | None = None
        self.follower: LedgerFollower
        self.sim: SimulatorRunner
        self.events: list[tuple[str, str]] = []
        self.statuses: dict[str, GroupStatus] = {}
        self.live: dict[str, dict[str, str]] = {}  # pod → claim, per cluster
        self.releasing = True

    async def start(self, clusters: int) -> None:
        bus = self.bus
        await bus.serve("moorage.reports.*.*.*", self._report, limit=10_000)
        await bus.subscribe("moorage.events.decisions.>", self._event)
        await bus.subscribe(subjects.MERGER_REMOVED, self._removed)
        await bus.bucket("moorage-status").mirror(self._status)
        self.follower = await open_ledger(bus)
        self.sim = SimulatorRunner(bus, Simulator(new_id()))
        await self.sim.start()
        document = {"clusters": [{"name": "c", "provider": "lab", "count": clusters, "nodes": [NODE]}]}
        await self.sim.apply_fleet(expand(decode(document)))
        self.spawn()

    def spawn(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", START, self.nats.url])

    def kill(self) -> None:
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    async def _report(self, incoming: Incoming) -> ReportReply:
        report = msgspec.json.decode(incoming.data, type=Report)
        cluster = "/".join(incoming.subject.split(".")[2:4])
        live = self.live.setdefault(cluster, {})
        live.update({pod.uid: pod.claim for pod in report.pods})
        for uid in report.pods_gone:
            live.pop(uid, None)
        return ReportReply(period_ms=300)

    def _event(self, subject: str, data: bytes) -> None:
        event = msgspec.json.decode(data, type=Event)
        body = msgspec.json.decode(event.data, type=dict[str, Any])
        self.events.append((body["group"], body["phase"]))
        assert subject.split(".")[3] == body["phase"].lower()

    def _status(self, _key: str, value: bytes | None, _revision: int) -> None:
        if value is not None:
            status = msgspec.json.decode(value, type=GroupStatus)
            self.statuses[status.group] = status

    def _removed(self, _subject: str, data: bytes) -> None:
        removed = msgspec.json.decode(data, type=ClaimsRemoved)
        if self.releasing:
            assert not set(removed.claims) & set(self.live[removed.cluster].values()), "confirmed while pods run"
            self.bus.spawn(self.commit(Commit(id=new_id(), entries=[Release(claims=removed.claims)])))

    async def commit(self, commit: Commit) -> None:
        log = self.bus.log("MOORAGE_LEDGER")
        while True:
            try:
                await log.append(msgspec.json.encode(commit), expected=self.follower.ledger.seq)
                return
            except (Conflict, NoAnswer):
                await asyncio.sleep(0.005)

    async def document(
        self, group: str, revision: int, state: State = "Instantiated", *objects: dict[str, Any]
    ) -> None:
        resolved = Revision(group=group, revision=revision, tenant="t", apps=[ShapedApp(name="front")])
        record = GroupRecord(
            group=group,
            revision=revision,
            state=state,
            resolved=resolved,
            manifests={"front": list(objects or [manifest()])},
        )
        data = msgspec.json.encode(record)
        await self.bus.bucket("moorage-revisions").put(f"{group_tokens(group)}.{revision}", data)
        await self.bus.bucket("moorage-groups").put(group_tokens(group), data)

    def decision(self, group: str, revision: int, clusters: list[str], template: str = "") -> Decision:
        ident = new_id()
        claims = [
            Claim(
                id=f"{group.split('/')[1]}-{cluster[4:]}{template}",
                decision=ident,
                intent=IntentRef(kind="Application", name=group, revision=revision),
                tenant="t",
                app="front",
                object="Deployment/web",
                cluster=cluster,
                slots=[Slot(node="n-1", count=2, resources={"cpu": 1000, "pods": 1})],
            )
            for cluster in clusters
        ]
        return Decision(id=ident, group=group, revision=revision, claims=claims)

    async def decide(self, group: str, revision: int, clusters: list[str], template: str = "") -> Decision:
        made = self.decision(group, revision, clusters, template)
        await self.commit(Commit(id=new_id(), entries=[made]))
        return made

    async def place(self, group: str, clusters: list[str], revision: int = 1) -> Decision:
        await self.document(group, revision)
        return await self.decide(group, revision, clusters)

    async def reach(self, group: str, phase: str, decision: Decision | None = None) -> None:
        def reached() -> bool:
            status = self.statuses.get(group)
            return status is not None and status.phase == phase and (decision is None or status.decision == decision.id)

        await until(reached, 40, f"{group} {phase}; it is {self.statuses.get(group)}")

    def pods(self, cluster: str) -> dict[str, str]:
        """Returns uid → node from the simulated cluster itself."""
        found = self.sim.core.agents[cluster].cluster.pods.values()
        return {pod.uid: pod.node.name for pod in found if pod.node is not None}


@pytest_asyncio.fixture
async def world(nats: NatsServer, bus: Bus) -> AsyncIterator[World]:
    world = World(nats, bus)
    await world.start(3)
    yield world
    world.kill()


G = "p/shop/v1/default"


async def test_a_decision_runs_and_its_claims_are_released_at_the_end(world: World) -> None:
    decision = await world.place(G, ["lab/c-0", "lab/c-2"])
    await world.reach(G, "Running", decision)
    assert set(world.pods("lab/c-0").values()) == {"n-1"}, "the claimed node is preferred"
    assert not world.pods("lab/c-1")
    await until(lambda: [phase for group, phase in world.events if group == G][-1:] == ["Running"])
    await world.document(G, 1, "Terminated")
    await world.commit(Commit(id=new_id(), entries=[Withdrawal(group=G, revision=1)]))
    await world.reach(G, "Terminated")
    assert not world.pods("lab/c-0")
    await until(lambda: not world.follower.ledger.claims, 40, "this reader of the log knows it, too")
    assert await world.bus.bucket("moorage-desired").get(group_tokens(G)) is None


async def test_a_decision_that_changes_nothing_restarts_nothing(world: World) -> None:
    await world.reach(G, "Running", await world.place(G, ["lab/c-0"]))
    before = world.pods("lab/c-0")
    again = world.decision(G, 1, ["lab/c-0"])
    again.claims[0].slots = [Slot(node="n-2", count=2, resources={"cpu": 1000, "pods": 1})]
    await world.commit(Commit(id=new_id(), entries=[again]))
    await world.reach(G, "Running", again)
    assert world.pods("lab/c-0") == before
    world.kill()
    world.spawn()
    third = await world.place(G, ["lab/c-0"], 2)
    await world.reach(G, "Running", third)
    assert world.pods("lab/c-0") == before


async def test_a_reassigned_claim_changes_no_running_pod(world: World) -> None:
    first = await world.place(G, ["lab/c-0"])
    await world.reach(G, "Running", first)
    before, version = world.pods("lab/c-0"), world.statuses[G].version
    elsewhere = [Slot(node="n-0", count=2, resources={"cpu": 1000, "pods": 1})]
    await world.commit(Commit(id=new_id(), entries=[Reassignment(claim="shop-c-0", slots=elsewhere)]))
    again = await world.place(G, ["lab/c-0"], 2)
    await world.reach(G, "Running", again)
    assert world.pods("lab/c-0") == before
    assert world.statuses[G].version > version


def on_nodes(*nodes: str) -> list[Slot]:
    return [Slot(node=node, count=2 // len(nodes), resources={"cpu": 1000, "pods": 1}) for node in nodes]


async def test_pods_that_are_confined_to_nodes_follow_only_where_these_are_lost(world: World) -> None:
    await world.document(G, 1)
    decision = world.decision(G, 1, ["lab/c-0"])
    decision.claims[0].required_nodes = {"n-1": "", "n-2": ""}
    await world.commit(Commit(id=new_id(), entries=[decision]))
    await world.reach(G, "Running", decision)
    before = world.pods("lab/c-0")
    assert set(before.values()) <= {"n-1", "n-2"}
    inside = Settlement(cluster="lab/c-0", epoch="1.1", slots={"shop-c-0": on_nodes("n-1", "n-2")})
    await world.commit(Commit(id=new_id(), entries=[inside]))
    outside = Settlement(cluster="lab/c-0", epoch="1.2", slots={"shop-c-0": on_nodes("n-0")})
    version = world.statuses[G].version
    await world.commit(Commit(id=new_id(), entries=[outside]))
    await until(lambda: world.statuses[G].version > version and set(world.pods("lab/c-0").values()) == {"n-0"}, 20)
    await world.reach(G, "Running", decision)


async def test_a_displaced_group_is_degraded_with_numbers_until_it_fits(world: World) -> None:
    decision = await world.place(G, ["lab/c-0"])
    await world.reach(G, "Running", decision)
    lack = Shortfall(resource="cpu", needed=2000, free=500)
    displaced = Settlement(cluster="lab/c-0", epoch="1.1", displaced={G: lack})
    await world.commit(Commit(id=new_id(), entries=[displaced]))
    await world.reach(G, "Degraded", decision)
    (reason,) = world.statuses[G].reasons
    assert (reason.code, reason.cluster, reason.needed, reason.free) == ("Displaced", "lab/c-0", "2", "500m")
    await world.commit(Commit(id=new_id(), entries=[Settlement(cluster="lab/c-0", epoch="1.2")]))
    await world.reach(G, "Running", decision)


async def test_the_decision_before_runs_on_when_the_one_after_it_is_taken_back(world: World) -> None:
    first = await world.place(G, ["lab/c-0"])
    await world.reach(G, "Running", first)
    before = world.pods("lab/c-0")
    assert world.sim.fault("lab/c-1", "silent", 60)
    second = await world.place(G, ["lab/c-1"], 2)
    await world.reach(G, "Deploying", second)
    taken_back = Settlement(cluster="lab/c-1", epoch="1.1", ended=[second.id], restored=[first.id])
    await world.commit(Commit(id=new_id(), entries=[taken_back]))
    await world.reach(G, "Running", first)
    assert world.pods("lab/c-0") == before
    assert world.statuses[G].revision == 1
    assert {i for i, a in world.follower.ledger.claims.items() if not a.withdrawn} == {"shop-c-0"}


async def test_an_app_without_pods_is_applied_and_removed(world: World) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}
    await world.document(G, 1, "Instantiated", settings)
    made = world.decision(G, 1, ["lab/c-0"])
    made.claims[0].object, made.claims[0].slots = "", []
    await world.commit(Commit(id=new_id(), entries=[made]))
    await world.reach(G, "Running", made)
    assert [o.object for o in world.statuses[G].apps[0].objects] == ["ConfigMap/settings"]
    await world.document(G, 1, "Terminated")
    await world.commit(Commit(id=new_id(), entries=[Withdrawal(group=G, revision=1)]))
    await world.reach(G, "Terminated")


async def test_a_move_removes_the_old_placement_and_its_claim_counts_until_then(world: World) -> None:
    await world.reach(G, "Running", await world.place(G, ["lab/c-0"]))
    moved = await world.decide(G, 1, ["lab/c-1"])
    await world.reach(G, "Running", moved)
    await until(lambda: len(world.follower.ledger.claims) == 1, 40, "the old claim is released")
    assert not world.pods("lab/c-0")
    assert len(world.pods("lab/c-1")) == 2


async def test_a_new_template_replaces_the_claim_in_place(world: World) -> None:
    await world.reach(G, "Running", await world.place(G, ["lab/c-0"]))
    before = set(world.pods("lab/c-0"))
    await world.document(G, 2, "Instantiated", manifest(cpu="2"))
    await world.reach(G, "Running", await world.decide(G, 2, ["lab/c-0"], template="-new"))
    await until(lambda: len(world.pods("lab/c-0")) == 2 and not before & set(world.pods("lab/c-0")), 40, "all are new")
    await until(lambda: set(world.follower.ledger.claims) == {"shop-c-0-new"}, 40, "the old claim is released")


async def test_lost_pods_degrade_the_group_until_they_are_back(world: World) -> None:
    await world.reach(G, "Running", await world.place(G, ["lab/c-0"]))
    world.sim.core.fault("lab/c-0", "lose-pods", 5.0, world.sim.now)  # long enough to be seen
    await world.reach(G, "Degraded")
    await world.reach(G, "Running")


async def test_a_cluster_that_refuses_degrades_the_group(world: World) -> None:
    world.sim.core.fault("lab/c-0", "refuse", None, world.sim.now)
    await world.place(G, ["lab/c-0"])
    await world.reach(G, "Degraded")
    assert world.statuses[G].apps[0].objects[0].state == "Failed"
    world.sim.core.fault("lab/c-0", "refuse", 0.1, world.sim.now)  # ends by that much later, and not before
    await world.reach(G, "Running")


async def test_claims_of_a_silent_cluster_stay(world: World) -> None:
    await world.reach(G, "Running", await world.place(G, ["lab/c-0", "lab/c-1"]))
    world.sim.core.fault("lab/c-0", "silent", None, world.sim.now)
    await world.document(G, 1, "Terminated")
    await world.commit(Commit(id=new_id(), entries=[Withdrawal(group=G, revision=1)]))
    await until(lambda: set(world.follower.ledger.claims) == {"shop-c-0"}, 40, "one is released")
    await world.reach(G, "Terminating")
    world.sim.core.fault("lab/c-0", "silent", 0.1, world.sim.now)
    await world.reach(G, "Terminated")


async def test_a_patcher_killed_at_any_moment_loses_nothing(world: World) -> None:
    groups = [f"p/g{i}/v1/default" for i in range(40)]

    async def places() -> None:
        for i, group in enumerate(groups):
            await world.place(group, [f"lab/c-{i % 3}"])

    placing = asyncio.create_task(places())
    for pause in (0.7, 1.1, 0.4):
        await asyncio.sleep(pause)
        world.kill()
        world.spawn()
    await placing
    for group in groups:
        await world.reach(group, "Running")
    assert sum(len(world.pods(f"lab/c-{i}")) for i in range(3)) == 80
    world.kill()
    for group in groups[:20]:
        await world.document(group, 1, "Terminated")
        await world.commit(Commit(id=new_id(), entries=[Withdrawal(group=group, revision=1)]))
    world.spawn()
    for group in groups[:20]:
        await world.reach(group, "Terminated")
    assert sum(len(world.pods(f"lab/c-{i}")) for i in range(3)) == 40


async def test_confirmations_that_the_broker_lost_are_requested_again(world: World) -> None:
    statuses = world.bus.bucket("moorage-status")
    other = "p/other/v1/default"
    await world.reach(G, "Running", await world.place(G, ["lab/c-0", "lab/c-1"]))
    await world.reach(other, "Running", await world.place(other, ["lab/c-0"]))

    def older(group: str) -> bytes:
        """Returns the status as it was before the last confirmations."""
        status = msgspec.structs.replace(world.statuses[group], phase="Deploying", reached=False)
        status.apps = [msgspec.structs.replace(app) for app in status.apps]
        for app in status.apps:
            app.objects = [msgspec.structs.replace(o, state="Progressing", ready=0) for o in app.objects]
        return msgspec.json.encode(status)

    world.kill()
    await statuses.delete(group_tokens(G))
    await statuses.put(group_tokens(other), older(other))
    world.statuses.clear()
    world.spawn()
    await world.reach(G, "Running")
    await world.reach(other, "Running")
    # The same for a removal: everything but the release has happened.
    world.releasing = False
    before = msgspec.json.encode(world.statuses[G])
    await world.document(G, 1, "Terminated")
    await world.commit(Commit(id=new_id(), entries=[Withdrawal(group=G, revision=1)]))
    await until(lambda: [app.removed for app in world.statuses[G].apps] == [True, True], 40, "it is confirmed")
    world.kill()
    await statuses.put(group_tokens(G), before)
    world.releasing = True
    world.spawn()
    await world.reach(G, "Terminated")
    await until(lambda: [held.group for held in world.follower.ledger.claims.values()] == [other])


async def test_repeated_confirmations_are_not_stored_again(world: World) -> None:
    groups = [f"p/g{i}/v1/default" for i in range(5)]
    for group in groups:
        await world.reach(group, "Running", await world.place(group, ["lab/c-0", "lab/c-1"]))
    confirmed: list[str] = []
    await world.bus.subscribe("moorage.desired.confirm.*.*", lambda subject, _: confirmed.append(subject))
    world.kill()
    last_written = await world.bus.bucket("moorage-status").last()
    world.spawn()
    await until(lambda: len(confirmed) == 10, 40, "each is confirmed once to the patcher that took over")
    await asyncio.sleep(1.5)
    assert len(confirmed) == 10
    assert await world.bus.bucket("moorage-status").last() == last_written


async def test_a_patcher_that_may_be_replaced_answers_no_agent(world: World) -> None:
    await world.reach(G, "Running", await world.place(G, ["lab/c-0"]))
    confirm = {"group": G, "app": "front", "version": 99, "objects": []}
    lease = SimpleNamespace(is_certain=True)
    queue = GroupQueue(world.bus.bucket("moorage-revisions"))
    agents = AgentApi(world.bus, queue, world.follower, 1, 0, lambda: lease.is_certain)
    confirmation = Incoming("moorage.desired.confirm.lab.c-0", msgspec.json.encode(confirm), "")
    request = Incoming("moorage.desired.get.lab.c-0", b"{}", "")
    lease.is_certain = False
    assert await agents.get(request) is None
    assert await agents.confirmed(confirmation) is None
    assert not queue.confirmed
    lease.is_certain = True
    assert await agents.get(request) is not None
    # Its lease ends while the confirmation is being stored.
    confirming = asyncio.create_task(agents.confirmed(confirmation))
    await until(lambda: bool(queue.stored))
    lease.is_certain = False
    queue.stored[G][0].set_result(None)
    assert await confirming is None


async def test_contributions_of_action_controllers_are_merged_and_conflicts_reported(world: World) -> None:
    async def action(incoming: Incoming) -> ActionAnswer:
        name = incoming.subject.split(".")[2]
        value = 3 if name == "one" else replicas
        return ActionAnswer(
            contributions=[
                Contribution(app="front", object="Deployment/web", path="/spec/replicas", value=value, by="nobody")
            ]
        )

    replicas = 3
    await world.bus.serve("moorage.controllers.*.actions", action)
    for name in ("one", "two"):
        controller = Controller(name=name, policy="required", placement=False, actions=True)
        await world.bus.bucket("moorage-controllers").put(name, msgspec.json.encode(controller))
    await world.reach(G, "Running", await world.place(G, ["lab/c-0"]))
    assert len(world.pods("lab/c-0")) == 3
    replicas = 5
    await world.document(G, 2)
    second = await world.decide(G, 2, ["lab/c-0"])
    await world.reach(G, "Degraded", second)
    reason = world.statuses[G].reasons[0]
    assert (reason.code, reason.by) == ("PatchConflict", "one, two")
    assert len(world.pods("lab/c-0")) == 3, "nothing changes during the conflict"
    replicas = 3
    controller = Controller(name="two", policy="required", placement=False, actions=True)
    await world.bus.bucket("moorage-controllers").put("two", msgspec.json.encode(controller))
    await world.reach(G, "Running", second)


async def test_silent_action_controllers_are_handled_by_policy(world: World) -> None:
    optional = Controller(name="gone", policy="optional", deadline_ms=100, placement=False, actions=True)
    await world.bus.bucket("moorage-controllers").put("gone", msgspec.json.encode(optional))
    await world.reach(G, "Running", await world.place(G, ["lab/c-0"]))
    assert [w.code for w in world.statuses[G].warnings] == ["ControllerTimeout"]
    required = Controller(name="gone", policy="required", deadline_ms=100, placement=False, actions=True)
    world.kill()  # a patcher that starts knows all controllers; nothing tells when one that runs does
    await world.bus.bucket("moorage-controllers").put("gone", msgspec.json.encode(required))
    world.spawn()
    other = "p/other/v1/default"
    await world.place(other, ["lab/c-1"])
    await world.reach(other, "Degraded")
    assert not world.pods("lab/c-1")
    await world.bus.serve(subjects.actions("gone"), lambda _incoming: _nothing())
    await world.reach(other, "Running")


async def test_each_action_controller_gets_its_own_budget(world: World) -> None:
    budgets: dict[str, float] = {}

    async def action(incoming: Incoming) -> ActionAnswer:
        budgets[incoming.subject.split(".")[2]] = msgspec.json.decode(incoming.data, type=ActionAsk).budget_ms
        return ActionAnswer()

    await world.bus.serve("moorage.controllers.*.actions", action)
    deadlines = {"quick": 200.0, "slow": 900.0, "also-slow": 900.0}
    for name, deadline in deadlines.items():
        controller = Controller(name=name, deadline_ms=deadline, placement=False, actions=True)
        await world.bus.bucket("moorage-controllers").put(name, msgspec.json.encode(controller))
    await world.reach(G, "Running", await world.place(G, ["lab/c-0"]))
    assert budgets == deadlines


async def _nothing() -> ActionAnswer:
    return ActionAnswer()


async def test_diff_shows_the_applied_objects(world: World) -> None:
    decision = await world.place(G, ["lab/c-0"])
    await world.reach(G, "Running", decision)
    data = await world.bus.request(subjects.PATCHER_DIFF, msgspec.json.encode({"group": G}), timeout=30)
    reply = msgspec.json.decode(data, type=DiffReply)
    assert reply.decision == decision.id
    (item,) = reply.items
    assert item.manifests == [manifest()]
    assert item.objects[0]["metadata"]["annotations"] == {"moorage.dev/decision": decision.id}
    assert item.objects[0]["spec"]["template"]["metadata"]["labels"] == {"moorage.dev/claim": "shop-c-0"}
    assert item.patch
    data = await world.bus.request(
        subjects.PATCHER_DIFF, msgspec.json.encode({"group": "p/none/v1/default"}), timeout=30
    )
    assert msgspec.json.decode(data)["problem"]["code"] == "NotFound"


async def test_unreadable_messages_are_answered(world: World) -> None:
    for body in (b"", b"{", b"[]", b'{"have": 7, "version": "x", "group": 1}', b"\xff"):
        for subject in ("moorage.desired.get.lab.c-0", "moorage.desired.confirm.lab.c-0", subjects.PATCHER_DIFF):
            assert b"problem" in await _request_when_ready(world.bus, subject, body), (subject, body)
    assert b"apps" in await world.bus.request("moorage.desired.get.lab.c-0", b"{}", timeout=30)


async def _request_when_ready(bus: Bus, subject: str, body: bytes) -> bytes:
    """Repeats the request while the patcher is still starting."""
    for _ in range(600):
        try:
            return await bus.request(subject, body, timeout=30)
        except NoAnswer:
            await asyncio.sleep(0.1)
    raise AssertionError(f"{subject} never answered")


async def test_an_agent_cannot_confirm_for_other_clusters(world: World) -> None:
    await world.reach(G, "Running", await world.place(G, ["lab/c-0"]))
    before = world.statuses[G]
    false_confirmation = {
        "group": G,
        "app": "front",
        "version": 99,
        "objects": [{"object": "Deployment/web", "state": "Failed"}],
    }
    await world.bus.request("moorage.desired.confirm.lab.c-1", msgspec.json.encode(false_confirmation), timeout=30)
    assert world.statuses[G] == before


async def test_the_standby_takes_over(world: World) -> None:
    await world.reach(G, "Running", await world.place(G, ["lab/c-0"]))
    first = world.process
    world.spawn()
    await asyncio.sleep(0.5)
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    other = "p/other/v1/default"
    await world.reach(other, "Running", await world.place(other, ["lab/c-1"]))
