"""All simulated clusters of a process: one heap of timers, no task and no timer of the event loop per cluster."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from .agent_protocol import Send, SimulatedAgent
from .cluster_spec import ClusterSpec

FAULTS = ("silent", "slow", "refuse", "lose-pods", "replay")
#: So many clusters introduce themselves at once; each answer lets the next one in.
WINDOW = 64
#: Changes wait this long for company.
GATHER = 0.02
SLOW = 2.0
#: How long lost pods stay lost if nobody says.
LOST = 1.0


class Changed(NamedTuple):
    added: list[str]
    changed: list[str]
    removed: list[str]


class Simulator:
    """`out` is what to send now. `wall` is added to `now` for the times in messages."""

    def __init__(self, session: str, succeeds: str = "", wall: float = 0.0, rng: random.Random | None = None) -> None:
        self.session = session
        self.succeeds = succeeds
        self.wall = wall
        self.rng = rng or random.Random(session)
        self.agents: dict[str, SimulatedAgent] = {}
        self.by_index: dict[int, SimulatedAgent] = {}
        self.out: list[Send] = []
        self.unsettled: set[str] = set()  # clusters whose newest specification nobody has acknowledged
        self._heap: list[tuple[float, int, int, str, Any]] = []
        self._waiting: deque[str] = deque()
        self._introducing: set[str] = set()
        self._count = 0
        self._indexes = 0
        self._joined: dict[str, int] = {}

    # --- timers

    def _at(self, when: float, agent: SimulatedAgent, what: str, argument: Any = None) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, agent.index, what, argument))

    def due(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def tick(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            _, _, index, what, argument = heapq.heappop(self._heap)
            if what == "send":
                self.out.append(argument)
                continue
            agent = self.by_index.get(index)
            if agent is not None:
                self._timer(agent, what, argument, now)

    def _timer(self, agent: SimulatedAgent, what: str, argument: Any, now: float) -> None:
        wall = now + self.wall
        if what == "beat":
            agent.beat(now, wall)
            period = agent.period if agent.state == "known" else min(agent.period, 1.0)
            self._at(now + (5 * agent.period if agent.state == "refused" else period), agent, "beat")
        elif what == "flush":
            agent.flushing = False
            if agent.state == "known":
                agent.report(now, wall)
                agent.tell(now, wall)
        elif what == "apply":
            agent.take(argument, now)
        elif what == "ready":
            agent.cluster.ready(argument, now)
        elif what == "settle":
            agent.cluster.settle(now)
        elif what == "well" and argument == agent.fault_until:
            self._well(agent, now)
        self._after(agent, now)

    def _after(self, agent: SimulatedAgent, now: float) -> None:
        """What an event at a cluster left behind: timers, versions to apply, changes to tell."""
        cluster = agent.cluster
        for when, what, argument in cluster.timers:
            self._at(when, agent, what, argument)
        cluster.timers.clear()
        while agent.received:
            app = agent.received.popleft()
            self._at(now + cluster.spec.apply_delay, agent, "apply", app)
        changed = cluster.dirty_nodes or cluster.dirty_pods or cluster.gone_pods or cluster.dirty_apps or agent.confirms
        if changed and not agent.flushing and agent.state == "known":
            agent.flushing = True
            self._at(now + GATHER, agent, "flush")
        if agent.fault == "slow" and self.out:
            # What it says leaves now and arrives late.
            mine = [send for send in self.out if send.cluster == agent.id]
            self.out[:] = [send for send in self.out if send.cluster != agent.id]
            for send in mine:
                self._at(now + SLOW, agent, "send", send)

    # --- the fleet

    def apply(self, wanted: Mapping[str, ClusterSpec], now: float) -> Changed:
        """Make the fleet equal to this. All faults end."""
        for agent in list(self.agents.values()):
            if agent.fault:
                self._well(agent, now)
        removed = [ident for ident, agent in self.agents.items() if ident not in wanted and agent.state != "leaving"]
        added, changed = [], []
        for ident, spec in wanted.items():
            known = self.agents.get(ident)
            if known is None or known.state in ("leaving", "gone"):
                added.append(ident)
                self._join(spec)
            elif known.cluster.spec != spec:
                changed.append(ident)
                known.cluster.respec(spec, now)
                known.rejoin("")
                self.unsettled.add(ident)
                known.report(now, now + self.wall)
                self._after(known, now)
        for ident in removed:
            self._leave(self.agents[ident], now)
        self._introduce(now)
        return Changed(added, changed, removed)

    def _join(self, spec: ClusterSpec) -> None:
        old = self.agents.get(spec.id)
        if old is not None:  # it was about to leave: begin anew in its place
            self.by_index.pop(old.index, None)
        # A session never begins twice: inventory remembers how far it was.
        joins = self._joined[spec.id] = self._joined.get(spec.id, 0) + 1
        session = self.session if joins == 1 else f"{self.session}.{joins}"
        self._indexes += 1
        agent = SimulatedAgent(
            spec, self._indexes, session, old.session if old is not None else self.succeeds, self.out
        )
        self.agents[spec.id] = agent
        self.by_index[agent.index] = agent
        self.unsettled.add(spec.id)
        self._waiting.append(spec.id)

    def _leave(self, agent: SimulatedAgent, now: float) -> None:
        """Nothing to leave where nobody knew it."""
        if agent.state in ("new", "refused"):
            agent.state = "gone"
            self._settled(agent, now)
            return
        agent.state = "leaving"
        agent.parts.clear()
        agent.reporting.payload = None
        self.unsettled.add(agent.id)
        agent.report(now, now + self.wall)

    def _introduce(self, now: float) -> None:
        while self._waiting and len(self._introducing) < WINDOW:
            agent = self.agents.get(self._waiting.popleft())
            if agent is None or agent.state != "new":
                continue
            agent.state = "introducing"
            self._introducing.add(agent.id)
            agent.report(now, now + self.wall)
            # The first beat is anywhere within a period, so that a fleet never breathes as one.
            self._at(now + self.rng.uniform(0.5, 2.5), agent, "beat")

    def _settled(self, agent: SimulatedAgent, now: float) -> None:
        self.unsettled.discard(agent.id)
        self._introducing.discard(agent.id)
        if agent.state == "gone":
            self.by_index.pop(agent.index, None)
            if self.agents.get(agent.id) is agent:
                del self.agents[agent.id]
        self._introduce(now)

    # --- from outside

    def heard(self, token: str, nonce: str, data: bytes, now: float) -> None:
        """An answer, with the token that went out with the message."""
        if not token[1:].isdigit() or not nonce.isdigit():
            return
        agent = self.by_index.get(int(token[1:]))
        if agent is None:
            return
        if agent.heard(token[0], int(nonce), data, now, now + self.wall):
            self._settled(agent, now)
        self._after(agent, now)

    def hinted(self, cluster: str, now: float) -> None:
        agent = self.agents.get(cluster)
        if agent is not None and agent.state == "known" and agent.fault != "silent":
            agent.ask(now)
            self._after(agent, now)

    def fault(self, cluster: str, fault: str, seconds: float | None, now: float) -> bool:
        """Misbehave, for so long or until the fleet is applied again. False: no such cluster here."""
        agent = self.agents.get(cluster)
        if agent is None:
            return False
        if fault not in FAULTS:
            raise ValueError(f"{fault!r} is no fault; there are {', '.join(FAULTS)}")
        if fault == "lose-pods":
            agent.cluster.lose(LOST if seconds is None else seconds, now)
        else:
            if agent.fault:
                self._well(agent, now)
            agent.fault = fault
            agent.fault_until = float("inf") if seconds is None else now + seconds
            if seconds is not None:
                self._at(agent.fault_until, agent, "well", agent.fault_until)
        self._after(agent, now)
        return True

    def _well(self, agent: SimulatedAgent, now: float) -> None:
        fault, agent.fault, agent.fault_until = agent.fault, "", float("inf")
        if fault == "silent":
            agent.beat(now, now + self.wall)
        elif agent.state == "known":
            agent.ask(now)

    def list(self, limit: int, after: str = "") -> list[dict[str, Any]]:
        names = sorted(name for name in self.agents if name > after)[:limit]
        found = []
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
            found.append(row)
        return found
