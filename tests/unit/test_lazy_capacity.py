"""Tests that free amounts are the same whether claims are counted at once or when they are read."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from moorage.fleet import FleetWriter, normalize_node
from moorage.ledger import Capacity, Family, Ledger, capacity
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Release, Settlement, Withdrawal
from moorage.model.slots import Slot
from moorage_testkit.fleets import node, writer_of

CLUSTERS = ("lab/one", "lab/two")
NODES = ("n-0", "n-1", "n-2")


class Pods(NamedTuple):
    """A report of the pods of a claim by node."""

    cluster: str
    claim: str
    live: dict[str, int]
    ending: dict[str, int]


class Site:
    def __init__(self, *, lazy: bool) -> None:
        self.writer: FleetWriter = writer_of({name: [node(cpu="64") for _ in NODES] for name in CLUSTERS})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger, lazy=lazy)

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit))

    @property
    def free(self) -> list[int]:
        self.capacity.refresh()
        column = self.writer.fleet.free("cpu")
        assert column is not None
        return [int(amount) for amount in column]


def slots(rng: random.Random) -> list[Slot]:
    chosen = [Slot(node=rng.choice(NODES), count=rng.randint(1, 2), resources={"cpu": 100 * rng.randint(1, 3)})]
    if rng.random() < 0.3:
        chosen.append(Slot(node=rng.choice(NODES), resources=chosen[0].resources, surge=True))
    return chosen


def decision(rng: random.Random, group: str, number: int) -> Decision:
    claim = Claim(
        id=f"{group}-{number % 3}",
        decision=f"d{number}",
        intent=IntentRef(kind="Application", name=group, revision=number),
        tenant="t",
        app="a",
        object="Deployment/web",
        cluster=rng.choice(CLUSTERS) if rng.random() < 0.2 else CLUSTERS[len(group) % 2],
        slots=slots(rng),
    )
    return Decision(id=claim.decision, group=group, revision=number, claims=[claim])


def step(rng: random.Random, number: int, ledger: Ledger) -> tuple[str, object]:
    known = sorted(ledger.claims)
    kind = rng.choice(["decide", "decide", "pods", "pods", "pods", "settle", "withdraw", "release", "nodes", "reload"])
    if kind == "decide":
        return "fold", decision(rng, rng.choice(["g", "gg", "ggg"]), number)
    if kind == "pods" and known:
        ident = rng.choice(known)
        pods = {name: rng.randint(0, 2) for name in NODES}
        ending = {name: 1 for name, count in pods.items() if count and rng.random() < 0.2}
        return "pods", Pods(ledger.claims[ident].claim.cluster, ident, pods, ending)
    if kind == "settle" and known:
        ident = rng.choice(known)
        return "fold", Settlement(cluster=ledger.claims[ident].claim.cluster, epoch="", slots={ident: slots(rng)})
    if kind == "withdraw" and ledger.standing:
        group = rng.choice(sorted(ledger.standing))
        return "fold", Withdrawal(group=group, revision=ledger.standing[group].revision)
    if kind == "release" and known:
        return "fold", Release(claims=rng.sample(known, rng.randint(1, len(known))))
    return ("nodes", rng.choice(CLUSTERS)) if kind == "nodes" else ("reload", None)


def take(site: Site, kind: str, what: object) -> None:
    if kind == "fold":
        site.fold(what)  # type: ignore[arg-type]
    elif kind == "pods":
        assert isinstance(what, Pods)
        cluster, ident, pods, ending = what
        site.writer.put(CLUSTERS.index(cluster), cluster, claims={ident: pods}, ending={ident: ending})
    elif kind == "nodes":
        name = str(what)
        rows = [normalize_node(node("n-1", cpu="32", requested={"cpu": "1"}))[0]]
        site.writer.put(CLUSTERS.index(name), name, rows, gone=["n-2"] if site.ledger.seq % 2 else [])
    else:
        site.ledger = Ledger.decode(site.ledger.encode())
        site.capacity.reload(site.ledger)


@pytest.mark.parametrize("bound", [0, 2, 2048])
@pytest.mark.parametrize("seed", range(12))
def test_a_lazy_capacity_counts_the_same(seed: int, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "MOST_OUTDATED", bound)
    rng = random.Random(seed)
    eager, lazy = Site(lazy=False), Site(lazy=True)
    for number in range(1, 120):
        kind, what = step(rng, number, eager.ledger)
        for site in (eager, lazy):
            take(site, kind, what)
        if rng.random() < 0.2:
            assert lazy.free == eager.free, (number, kind, what)
    assert lazy.free == eager.free


def test_what_changes_several_times_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(lazy=True)
    counted: list[Family] = []
    recount = Capacity._recount

    def count(self: Capacity, family: Family) -> None:
        counted.append(family)
        recount(self, family)

    monkeypatch.setattr(Capacity, "_recount", count)
    rng = random.Random(1)
    for number in range(1, 10):
        site.fold(decision(rng, "g", number))
        for pods in (0, 1, 2):
            for ident in list(site.ledger.claims):
                cluster = site.ledger.claims[ident].claim.cluster
                site.writer.put(CLUSTERS.index(cluster), cluster, claims={ident: {"n-0": pods}})
    assert counted == []
    before = site.free
    assert 1 <= len(counted) <= 2, "the group's object, on each cluster"
    assert site.free == before and len(counted) <= 2
