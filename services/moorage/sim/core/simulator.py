"""Simulates all clusters of a process with one heap of timers, so that a cluster costs neither a task nor a timer of the
event loop."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from .agent_protocol import Send, SimulatedAgent
from .cluster_spec import ClusterSpec

FAULTS = ("silent", "slow", "refuse", "lose-pods", "replay")
#: At most this many clusters introduce themselves at once; each reply lets the next one begin.
MAX_INTRODUCING = 64
#: Changes are collected for this long before they are reported.
FLUSH_DELAY = 0.02
#: Messages of a slow cluster leave this much later.
SLOW_DELAY = 2.0
#: Lost pods are not created again for this long, unless the fault names another time.
LOST_SECONDS = 1.0


class FleetDifference(NamedTuple):
    """The clusters that a new fleet document adds, changes and removes."""

    added: list[str]
    changed: list[str]
    removed: list[str]


class Simulator:
    """All clusters by id. `out` collects the messages to send now; `wall` plus `now` is the time in messages."""

    def __init__(self, session: str, succeeds: str = "", wall: float = 0.0, rng: random.Random | None = None) -> None:
        self.session = session
        self.succeeds = succeeds
        self.wall = wall
        self.rng = rng or random.Random(session)
        self.agents: dict[str, SimulatedAgent] = {}
        self.by_index: dict[int, SimulatedAgent] = {}
        self.out: list[Send] = []
        self.unacknowledged: set[str] = set()  # clusters whose newest specification the inventory has not acknowledged
        self._heap: list[tuple[float, int, int, str, Any]] = []
        self._waiting: deque[str] = deque()
        self._introducing: set[str] = set()
        self._count = 0
        self._indexes = 0
        self._joined: dict[str, int] = {}

    # --- timers

    def _schedule(self, when: float, agent: SimulatedAgent, action: str, argument: Any = None) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, agent.index, action, argument))

    def next_timer(self) -> float | None:
        """Returns when the next timer is due."""
        return self._heap[0][0] if self._heap else None

    def tick(self, now: float) -> None:
        """Runs all timers that are due."""
        while self._heap and self._heap[0][0] <= now:
            _, _, index, action, argument = heapq.heappop(self._heap)
            if action == "send":
                self.out.append(argument)
                continue
            agent = self.by_index.get(index)
            if agent is not None:
                self._timer(agent, action, argument, now)

    def _timer(self, agent: SimulatedAgent, action: str, argument: Any, now: float) -> None:
        wall = now + self.wall
        if action == "beat":
            agent.beat(now, wall)
            period = agent.period if agent.state == "known" else min(agent.period, 1.0)
            self._schedule(now + (5 * agent.period if agent.state == "refused" else period), agent, "beat")
        elif action == "flush":
            agent.flushing = False
            if agent.state == "known":
                agent.report(now, wall)
                agent.send_confirmation(now, wall)
        elif action == "apply":
            agent.apply_version(argument, now)
        elif action == "ready":
            agent.cluster.ready(argument, now)
        elif action == "reconcile":
            agent.cluster.reconcile(now)
        elif action == "gates":
            agent.cluster.try_gates(now)
        elif action == "reject":
            agent.cluster.reject(argument, now)
        elif action == "replace":
            agent.cluster.replace(argument, now)
        elif action == "deadline":
            agent.cluster.end(argument, now)
        elif action == "retry":
            agent.cluster.retry(argument, now)
        elif action == "evict":
            agent.cluster.evict(now)
        elif action == "machines":
            agent.cluster.run_machines(now)
        elif action == "zones":
            agent.cluster.report_zones(*argument)
        elif action == "end-fault" and argument == agent.fault_until:
            self._end_fault(agent, now)
        self._collect(agent, now)

    def _collect(self, agent: SimulatedAgent, now: float) -> None:
        """Takes over the effects of an event at a cluster: messages, timers, versions to apply, changes to report."""
        cluster = agent.cluster
        for when, action, argument in cluster.timers:
            self._schedule(when, agent, action, argument)
        cluster.timers.clear()
        for late in cluster.late_zones:
            self._schedule(now + cluster.spec.topology_delay, agent, "zones", late)
        cluster.late_zones.clear()
        while agent.received:
            app = agent.received.popleft()
            self._schedule(now + cluster.spec.apply_delay, agent, "apply", app)
        changed = cluster.dirty_nodes or cluster.dirty_pods or cluster.gone_pods or cluster.dirty_apps or agent.confirms
        if cluster.machines is not None:
            agent.sync_machines(now)
        if changed and not agent.flushing and agent.state == "known":
            agent.flushing = True
            self._schedule(now + FLUSH_DELAY, agent, "flush")
        if agent.fault == "slow":
            for send in agent.out:
                self._schedule(now + SLOW_DELAY, agent, "send", send)
        else:
            self.out += agent.out
        agent.out.clear()

    # --- the fleet

    def apply(self, wanted: Mapping[str, ClusterSpec], now: float) -> FleetDifference:
        """Makes the fleet equal to `wanted`, and ends all faults."""
        for agent in list(self.agents.values()):
            if agent.fault:
                self._end_fault(agent, now)
        removed = [ident for ident, agent in self.agents.items() if ident not in wanted and agent.state != "leaving"]
        added, changed = [], []
        for ident, spec in wanted.items():
            known = self.agents.get(ident)
            if known is None or known.state in ("leaving", "gone"):
                added.append(ident)
                self._join(spec)
            elif known.cluster.spec != spec:
                changed.append(ident)
                known.cluster.change_spec(spec, now)
                known.rejoin("")
                self.unacknowledged.add(ident)
                known.report(now, now + self.wall)
                self._collect(known, now)
        for ident in removed:
            self._leave(self.agents[ident], now)
        self._introduce(now)
        return FleetDifference(added, changed, removed)

    def _join(self, spec: ClusterSpec) -> None:
        old = self.agents.get(spec.id)
        if old is not None:  # it was about to leave; the new agent takes its place
            self.by_index.pop(old.index, None)
        # Each join has a session of its own, because the inventory remembers the sequence numbers of earlier ones.
        joins = self._joined[spec.id] = self._joined.get(spec.id, 0) + 1
        session = self.session if joins == 1 else f"{self.session}.{joins}"
        self._indexes += 1
        succeeds = old.session if old is not None else self.succeeds
        agent = SimulatedAgent(spec, self._indexes, session, succeeds, self.wall)
        self.agents[spec.id] = agent
        self.by_index[agent.index] = agent
        self.unacknowledged.add(spec.id)
        self._waiting.append(spec.id)

    def _leave(self, agent: SimulatedAgent, now: float) -> None:
        """Removes a cluster. One that the inventory does not know disappears at once."""
        if agent.state in ("new", "refused"):
            agent.state = "gone"
            self._acknowledged(agent, now)
            return
        agent.state = "leaving"
        agent.parts.clear()
        agent.reporting.payload = None
        self.unacknowledged.add(agent.id)
        agent.report(now, now + self.wall)
        self._collect(agent, now)

    def _introduce(self, now: float) -> None:
        """Lets waiting clusters send their first report, as many as may do so at once."""
        while self._waiting and len(self._introducing) < MAX_INTRODUCING:
            agent = self.agents.get(self._waiting.popleft())
            if agent is None or agent.state != "new":
                continue
            agent.state = "introducing"
            self._introducing.add(agent.id)
            agent.report(now, now + self.wall)
            self._collect(agent, now)
            # The first beat is at a random time within a period, so that the beats of a fleet are spread out.
            self._schedule(now + self.rng.uniform(0.5, 2.5), agent, "beat")

    def _acknowledged(self, agent: SimulatedAgent, now: float) -> None:
        """Notes that the inventory accepted, refused or removed a cluster, and lets the next one begin."""
        self.unacknowledged.discard(agent.id)
        self._introducing.discard(agent.id)
        if agent.state == "gone":
            self.by_index.pop(agent.index, None)
            if self.agents.get(agent.id) is agent:
                del self.agents[agent.id]
        self._introduce(now)

    # --- from outside

    def on_reply(self, token: str, nonce: str, data: bytes, now: float) -> None:
        """Handles a reply, with the token that was sent with the message."""
        if not token[1:].isdigit() or not nonce.isdigit():
            return
        agent = self.by_index.get(int(token[1:]))
        if agent is None:
            return
        if agent.on_reply(token[0], int(nonce), data, now, now + self.wall):
            self._acknowledged(agent, now)
        self._collect(agent, now)

    def on_hint(self, cluster: str, now: float) -> None:
        """Handles a hint that the desired state of a cluster changed."""
        agent = self.agents.get(cluster)
        if agent is not None and agent.state == "known" and agent.fault != "silent":
            agent.ask(now)
            self._collect(agent, now)

    def on_slots_hint(self, cluster: str, now: float) -> None:
        """Handles a hint that slots of a cluster changed."""
        agent = self.agents.get(cluster)
        if agent is not None and agent.fault != "silent":
            agent.cluster.begin_machines()
            agent.sync_machines(now, again=True)
            self._collect(agent, now)

    def fault(self, cluster: str, fault: str, seconds: float | None, now: float) -> bool:
        """Makes a cluster misbehave for some seconds or until the fleet is applied again. False: it is not simulated here."""
        agent = self.agents.get(cluster)
        if agent is None:
            return False
        if fault not in FAULTS:
            raise ValueError(f"{fault!r} is not a fault; use one of {', '.join(FAULTS)}")
        if fault == "lose-pods":
            agent.cluster.lose_pods(LOST_SECONDS if seconds is None else seconds, now)
        else:
            if agent.fault:
                self._end_fault(agent, now)
            agent.fault = fault
            agent.fault_until = float("inf") if seconds is None else now + seconds
            if seconds is not None:
                self._schedule(agent.fault_until, agent, "end-fault", agent.fault_until)
        self._collect(agent, now)
        return True

    def _end_fault(self, agent: SimulatedAgent, now: float) -> None:
        """Ends a fault and catches up on what was missed."""
        fault, agent.fault, agent.fault_until = agent.fault, "", float("inf")
        if fault == "silent":
            agent.beat(now, now + self.wall)
        elif agent.state == "known":
            agent.ask(now)
        self._collect(agent, now)

    def rows(self, limit: int, after: str = "") -> list[dict[str, Any]]:
        """Lists clusters by name, from the first one after `after`."""
        names = sorted(name for name in self.agents if name > after)[:limit]
        rows = []
        for name in names:
            agent = self.agents[name]
            row: dict[str, Any] = {
                "cluster": name,
                "state": agent.state,
                "nodes": agent.cluster.spec.size,
                "pods": len(agent.cluster.pods),
            }
            if agent.fault:
                row["fault"] = agent.fault
            if agent.reason:
                row["reason"] = agent.reason
            rows.append(row)
        return rows
