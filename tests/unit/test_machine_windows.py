"""Windows of machine types against exhaustive references: whoever is let in beside them, their slots are there when they begin."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from itertools import product
from math import inf
from random import Random

import msgspec
import pytest

from moorage.ledger.families import add
from moorage.ledger.machine_room import occupied
from moorage.ledger.shared_room import taken_with
from moorage.machine_groups.windows import AHEAD, MARGIN, Holder, Span, may_enter
from moorage.model.machine_slots import GrantedSlot, ReservedSlots, slot_resource
from moorage.model.machines import GuestReport, Window
from moorage.slots.core.grants import SlotUse, plan_grants
from moorage.slots.core.layout import NodeCounts, NodeKey
from moorage.slots.core.window_slots import by_window, slots_before, times_of

CLUSTER, MACHINE = "lab/one", "g/a"
#: Seconds of one step of time: longer than guests are let in ahead of their window.
STEP = AHEAD + 1
STEPS = 12


def at(step: int) -> float:
    return step * STEP


def window(name: str, slots: int, begin: int, end: int) -> Span:
    texts = [datetime.fromtimestamp(at(step), UTC).isoformat() for step in (begin, end)]
    return Span(Window(name=name, slots=slots, from_=texts[0], until=texts[1]), at(begin), at(end), slots)


def random_windows(rng: Random, total: int) -> list[Span]:
    """Returns windows that never have more slots together than there are."""
    spans: list[Span] = []
    for number in range(rng.randint(1, 4)):
        begin = rng.randint(1, STEPS - 2)
        found = window(f"w{number}", rng.randint(1, total), begin, rng.randint(begin + 1, STEPS - 1))
        if all(kept_at([*spans, found], step) <= total for step in range(STEPS)):
            spans.append(found)
    return spans


def kept_at(spans: list[Span], step: int) -> int:
    return sum(span.slots for span in spans if span.begin <= at(step) < span.end)


@pytest.mark.parametrize("seed", range(150))
def test_whoever_is_let_in_the_slots_of_a_window_are_there_when_it_begins(seed: int) -> None:
    rng = Random(seed)
    total = rng.randint(1, 4)
    spans = random_windows(rng, total)
    inside: list[Holder] = []
    for step in range(STEPS):
        now = at(step)
        inside = [holder for holder in inside if holder.end is None or holder.end > now]
        for span in spans:
            if span.begin == now:  # all its guests come at once
                for _ in range(span.slots):
                    holder = Holder(span.window.name, span.end)
                    assert may_enter(total, spans, inside, holder, now), (span, inside)
                    inside.append(holder)
                assert not may_enter(total, spans, inside, Holder(span.window.name, span.end), now)
        for _ in range(rng.randint(0, 3)):
            holder = Holder("", None if rng.random() < 0.4 else at(step + rng.randint(1, STEPS)))
            fits = len(inside) < total and all(
                1 + kept_at(spans, later) + sum(alive(other, spans, later) for other in inside) <= total
                for later in range(step, STEPS)
                if holder.end is None or at(later) < holder.end
            )
            assert may_enter(total, spans, inside, holder, now) == fits, (step, holder, spans, inside)
            if fits:
                inside.append(holder)
        assert len(inside) <= total


def alive(holder: Holder, spans: list[Span], step: int) -> bool:
    """Returns whether somebody has a slot then that no window keeps for him."""
    covered = any(s.window.name == holder.window and s.begin <= at(step) < s.end for s in spans)
    return (holder.end is None or holder.end > at(step)) and not covered


@pytest.mark.parametrize("seed", range(60))
def test_windows_that_overlap_have_different_slots_of_the_fewest_that_do(seed: int) -> None:
    rng = Random(seed)
    nodes = {NodeKey("lab/one", f"n-{number}"): rng.randint(0, 2) for number in range(3)}
    total = sum(nodes.values())
    spans = random_windows(rng, total) if total else []
    kept, windows = by_window(spans, nodes, {})
    assert sum(kept.values()) == max((kept_at(spans, step) for step in range(STEPS)), default=0)
    for step in range(STEPS):
        used: Counter[NodeKey] = Counter()
        for span in spans:
            if span.begin <= at(step) < span.end:
                used.update(windows[span.window.name])
        assert all(used[node] <= kept.get(node, 0) <= nodes[node] for node in nodes)
    for span, node in product(spans, nodes):
        assert windows[span.window.name].get(node, 0) <= nodes[node]
    assert all(sum(windows[span.window.name].values()) == span.slots for span in spans)


def names(nodes: NodeCounts) -> dict[str, int]:
    return {node.name: count for node, count in nodes.items()}


class Cluster:
    """One machine type on three nodes, given out step by step as `slots` does, with what the ledger offers."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.slots = {NodeKey(CLUSTER, f"n-{number}"): rng.randint(0, 2) for number in range(3)}
        self.total = sum(self.slots.values())
        self.spans = random_windows(rng, self.total) if self.total else []
        self.held: dict[str, GrantedSlot] = {}
        self.guests: dict[str, GuestReport] = {}
        self.windows: dict[str, NodeCounts] = {}
        self.claims: dict[str, tuple[str, int]] = {}  # of applications: the node, and by when their pods are gone
        self.now = 0.0
        self.made = 0

    def free_until(self, node: NodeKey, end: int) -> int:
        """Returns the slots that nobody has, and no window, at any moment until then."""
        ends = [
            s.until or inf
            for s in self.held.values()
            if s.node == node.name and not s.pool and s.claim not in self.claims
        ]
        ends += [time for where, time in self.claims.values() if where == node.name]
        moments = [self.now, *(span.begin for span in self.spans if self.now < span.begin < end)]
        return self.slots[node] - max(
            sum(e > m for e in ends)
            + sum(self.windows[s.window.name].get(node, 0) for s in self.spans if s.begin <= m < s.end)
            for m in moments
        )

    def decide(self, seconds: int, *, exact: bool) -> None:
        """Places an application where a slot is free until it ends, if there is one."""
        time = next((time for time in sorted(self.reserved.before) if time >= self.now + seconds + MARGIN), 0)
        resource = slot_resource(MACHINE, before=time)
        free = [node for node in self.slots if self.offered(node, resource) > 0]
        if time and exact:
            assert all(self.offered(node, resource) == self.free_until(node, time) for node in self.slots)
        if free and time:
            self.made += 1
            self.claims[f"claim-{self.made}"] = free[0].name, time

    def start(self, claim: str, seconds: int) -> None:
        """The pod of an application comes, maybe late."""
        self.guest(seconds=seconds)
        uid, guest = self.guests.popitem()
        self.guests[uid] = msgspec.structs.replace(guest, claim=claim)

    def delete(self, claim: str) -> None:
        del self.claims[claim]
        for uid in [uid for uid, guest in self.guests.items() if guest.claim == claim]:
            del self.guests[uid]
            self.held.pop(uid, None)

    def guest(self, window: str = "", seconds: int = 0) -> None:
        self.made += 1
        uid = f"{window or 'plain'}-{self.made}"
        created = datetime.fromtimestamp(self.made, UTC).isoformat()
        self.guests[uid] = GuestReport(uid=uid, namespace="n", name=uid, machine=MACHINE, window=window, seconds=seconds, grace=0, created_at=created)  # fmt: skip

    def add_window(self, step: int) -> None:
        """Adds a window that begins later, if its slots can be had beside those who are there already and have their slots."""
        name, begin = f"later-{step}", self.rng.randint(step + 1, STEPS)
        new = window(name, self.rng.randint(1, max(1, self.total)), begin, self.rng.randint(begin + 1, STEPS + 2))
        spans = [*self.spans, new]
        holders = [Holder(slot.window, slot.until or None) for slot in self.held.values()]
        holders += [Holder(end=time) for _, time in self.claims.values()]
        if all(
            kept_at(spans, later) + sum(alive(holder, spans, later) for holder in holders) <= self.total
            for later in range(step, STEPS + 2)
        ):
            self.spans = spans

    def offered(self, node: NodeKey, resource: str) -> int:
        totals: dict[str, int] = {}
        add(totals, self.reserved.offered(node.name), -1)
        for slot in self.held.values():
            add(totals, slot.takes if slot.node == node.name else {})
        for where, time in self.claims.values():
            add(totals, {slot_resource(MACHINE, before=time): 1} if where == node.name else {})
        return -taken_with(totals, (occupied(self.reserved, node.name, totals),)).get(resource, 0)

    def step(self, now: float) -> None:
        self.now = now
        for uid in [uid for uid, slot in self.held.items() if slot.until and slot.until <= now]:
            del self.held[uid], self.guests[uid]
        ends, lent = dict[NodeKey, list[float]](), dict[int, NodeCounts]()
        for slot in self.held.values():
            node = NodeKey(CLUSTER, slot.node)
            if not slot.pool and slot.claim not in self.claims:
                ends.setdefault(node, []).append(slot.until or inf)
            if slot.before and slot.takes:
                lent.setdefault(slot.before, {}).setdefault(node, 0)
                lent[slot.before][node] += 1
        for where, time in self.claims.values():
            node = NodeKey(CLUSTER, where)
            ends.setdefault(node, []).append(time)
            lent.setdefault(time, {}).setdefault(node, 0)
            lent[time][node] += 1
        future = [span for span in self.spans if span.end > now]
        kept, self.windows = by_window(future, self.slots, self.windows, ends)
        before = slots_before(times_of(future, now), self.slots, future, self.windows, lent, now)
        self.reserved = ReservedSlots(machine=MACHINE, cluster=CLUSTER, slots=names(self.slots), kept=names(kept), windows={w: names(n) for w, n in self.windows.items()}, before={time: names(n) for time, n in before.items()})  # fmt: skip
        times = sorted(time for time in before if time > now)
        use = SlotUse(MACHINE, CLUSTER, self.total, self.reserved.slots, spans=self.spans, usable=frozenset(self.reserved.slots), windows=self.reserved.windows, times=times, claims={c: {where: 1} for c, (where, _) in self.claims.items()}, lent={c: time for c, (_, time) in self.claims.items()}, promised={time: Counter(w for w, t in self.claims.values() if t == time) for time in lent})  # fmt: skip
        found = plan_grants(use, self.guests.values(), self.held, self.offered, now)
        assert not found.withdrawn and not found.observed
        for slot in found.granted:
            self.held[slot.uid] = slot
            self.guests[slot.uid] = msgspec.structs.replace(self.guests[slot.uid], state="used", node=slot.node)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_slots_are_lent_only_until_the_next_window_of_their_node(seed: int, later: bool) -> None:
    """`later`: windows are added while guests are there."""
    cluster = Cluster(Random(seed))
    if later:
        cluster.spans = []
    for step in range(STEPS):
        now = at(step)
        for span in cluster.spans:
            if span.begin == now:
                for _ in range(span.slots):
                    cluster.guest(span.window.name)
        for _ in range(cluster.rng.randint(0, 3)):
            cluster.guest("", 0 if cluster.rng.random() < 0.3 else int(STEP * cluster.rng.randint(1, STEPS)))
        cluster.step(now)
        if step:
            for claim in [c for c in cluster.claims if cluster.rng.random() < 0.1]:
                cluster.delete(claim)
            due = [c for c in cluster.claims if all(g.claim != c for g in cluster.guests.values())]
            for claim in [c for c in due if cluster.rng.random() < 0.7]:
                cluster.start(claim, int(STEP * cluster.rng.randint(1, 3)))
        for _ in range(cluster.rng.randint(0, 2)):
            cluster.decide(int(STEP * cluster.rng.randint(1, STEPS)), exact=not later)
        if later and cluster.rng.random() < 0.3:
            cluster.add_window(step)
            cluster.step(now)
        waiting = [uid for uid, guest in cluster.guests.items() if guest.window and uid not in cluster.held]
        assert not waiting, "the slots of a window are there when it begins"
        there = Counter(slot.node for slot in cluster.held.values())
        assert all(there[node.name] <= count for node, count in cluster.slots.items()), (step, there, cluster.slots)
