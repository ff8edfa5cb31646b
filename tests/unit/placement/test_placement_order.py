"""Candidates come in an order that follows from what is stored and reported, not from when this worker heard of it."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import pytest

from moorage.fleet import Fleet
from moorage.ledger import Ledger
from moorage.model.allocations import InventoryRecord
from moorage.model.reports import NodeReport
from moorage.placement.core.call import Call
from moorage.placement.core.records import Change, Provider
from moorage.placement.core.routes import ROUTES
from moorage.placement.core.state import State
from moorage_testkit.fleets import node, provider, two_zones, writer_of
from moorage_testkit.seeds import seeds

from .service import finished

SHARES = "MISC_SHARES_VIA_AGGREGATE"
AGGREGATE = str(uuid.UUID(int=7))
QUERIES = (
    "resources=VCPU:1",
    "resources=VCPU:1,DISK_GB:1",
    "resources_A=VCPU:1&resources_B=VCPU:1",
    "resources_A=VCPU:1&resources_B=DISK_GB:1&isolate=_A",
    "resources_A=VCPU:1&resources_B=VCPU:1&same_subtree=_A,_B&limit=20",
    "resources_A=DISK_GB:1&resources_B=DISK_GB:1&same_subtree=_A,!_B&limit=20",
)


def candidates(state: State, query: str) -> Any:
    state.sync()
    call = Call(state, 40, {}, parse_qsl(query), now=1.0)
    body = finished(ROUTES["/allocation_candidates"]["GET"][-1].operation(call)).body  # type: ignore[arg-type]
    return msgspec.json.decode(body)["allocation_requests"]


class World:
    """Providers that are made, moved, changed and deleted one by one."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.state = State()
        self.now = 1e9

    def step(self) -> None:
        rng, known = self.rng, list(self.state.providers.values())
        what = rng.choice(["make", "make", "make", "change", "rename", "move", "delete"])
        self.now += rng.choice([1.0, 1.0, 1.0, 0.0, -5.0])  # another worker's clock may be behind
        if what == "make" or not known:
            ident = str(uuid.UUID(int=rng.getrandbits(128), version=4))
            parent = rng.choice(known).uuid if known and rng.random() < 0.7 else None
            made = self._offering(Provider(uuid=ident, name=ident, parent=parent, created=self.now))
            self._write(ident, made)
            return
        one = rng.choice(known)
        if what == "change":
            self._write(one.uuid, self._offering(one))
        elif what == "rename":
            self._write(one.uuid, msgspec.structs.replace(one, name=f"{one.uuid} {self.now}"))
        elif what == "move":
            below = set(self.state.subtree(one.uuid))
            others = [p.uuid for p in known if p.uuid not in below]
            self._write(one.uuid, msgspec.structs.replace(one, parent=rng.choice([None, *others])))
        elif not self.state.children(one.uuid):
            self._write(one.uuid, None)

    def _offering(self, one: Provider) -> Provider:
        rng = self.rng
        return msgspec.structs.replace(
            one,
            inventories={
                c: InventoryRecord(total=rng.randint(1, 3)) for c in ("VCPU", "DISK_GB") if rng.random() < 0.6
            },
            traits=(SHARES,) if rng.random() < 0.2 else (),
            aggregates=(AGGREGATE,) if rng.random() < 0.4 else (),
        )

    def _write(self, ident: str, new: Provider | None) -> None:
        self.state.apply(Change({ident: new}))

    def loaded(self) -> State:
        """Returns the state of a worker that reads the records."""
        records = list(self.state.providers.items())
        self.rng.shuffle(records)
        found = State()
        found.apply(Change(dict(records)))
        return found


@pytest.mark.parametrize("seed", seeds(8, 25))
def test_another_worker_gives_made_trees_in_the_same_order(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(60):
        world.step()
    other = world.loaded()
    found = [candidates(world.state, query) for query in QUERIES]
    assert [candidates(other, query) for query in QUERIES] == found and any(found)


def test_trees_come_as_their_roots_were_made() -> None:
    state = State()
    names = [str(uuid.UUID(int=number << 80, version=4)) for number in (5, 3, 9, 1)]
    for number, name in enumerate(names):
        offered = {"VCPU": InventoryRecord(total=4)}
        state.apply(Change({name: Provider(uuid=name, name=name, inventories=offered, created=number)}))
    first = state.providers[names[0]]
    state.apply(Change({first.uuid: msgspec.structs.replace(first, traits=("HW_NUMA_ROOT",))}))
    assert [next(iter(c["allocations"])) for c in candidates(state, "resources=VCPU:1")] == names


def reported(clusters: dict[str, list[NodeReport]]) -> State:
    state = State()
    fleet: Fleet = writer_of(clusters).fleet
    state.reported.follow(fleet, Ledger())
    return state


def test_another_worker_gives_nodes_in_the_same_order() -> None:
    """Clusters and nodes are heard of in another order, and some come back after others."""
    cards = [provider(f"card-{z}", f"numa-{z}", VGPU="1") for z in (0, 1)]
    clusters = {
        f"lab/{name}": [
            msgspec.structs.replace(node(cpu="8", zones=two_zones("4"), providers=cards), name=f"n-{number}")
            for number in range(count)
        ]
        for name, count in (("one", 3), ("two", 12), ("three", 1))
    }
    queries = (
        "resources=VCPU:1",
        "resources_A=VCPU:1&resources_B=VGPU:1&same_subtree=_A,_B",
        "resources=VGPU:1&limit=4",
    )
    expected = [candidates(reported(clusters), query) for query in queries]
    assert [len(found) for found in expected][2] == 4
    for seed in range(3):
        rng = Random(seed)
        shuffled = {name: rng.sample(nodes, len(nodes)) for name, nodes in rng.sample(list(clusters.items()), 3)}
        assert [candidates(reported(shuffled), query) for query in queries] == expected
