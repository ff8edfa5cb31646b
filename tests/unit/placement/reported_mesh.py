"""The operations of the Placement interface over a fleet of clusters, and what tests of them ask."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec
import pytest

from moorage.fleet import FleetWriter, normalize_node
from moorage.ledger import Capacity, Ledger
from moorage.ledger.entries import Batch, handler_of
from moorage.model.claims import Allocation, Claim, Commit, Decision, Entry, IntentRef
from moorage.model.part_reports import CounterSetReport, DeviceReport
from moorage.model.reports import NodeReport
from moorage.model.slots import Slot
from moorage.parts.layout import provider_uuid
from moorage.placement.core.call import Answer, Call
from moorage.placement.core.errors import Refused
from moorage.placement.core.routes import ROUTES
from moorage.placement.core.state import State
from moorage_testkit.fleets import node, provider, two_zones, writer_of

from .service import finished

ONE = "lab/one"


class Mesh:
    """The operations over a fleet and a ledger. What they change is folded as the log would fold it."""

    def __init__(self, **clusters: list[NodeReport]) -> None:
        self.writer: FleetWriter = writer_of({f"lab/{name}": nodes for name, nodes in clusters.items()})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)
        self.state = State()
        self.state.reported.follow(self.writer.fleet, self.ledger)
        self.consumers = 0

    def call(self, method: str, path: str, body: Any = None, version: int = 40) -> Any:
        """Returns the body of the answer. Raises Refused."""
        answer = self.ask(method, path, body, version)
        if answer.change is not None:
            change = answer.change
            if change.consumers or change.exchanges:
                entry = Allocation(id=str(uuid.uuid4()), generation=1, writes=list(change.consumers))
                self.capacity.hold_allocation(entry)
                assert handler_of(entry).check(entry, Batch(self.ledger, self.capacity)) is None
                self.fold(entry)
            self.state.apply(change)
        return None if answer.body is None else msgspec.json.decode(msgspec.json.encode(answer.body))

    def ask(self, method: str, path: str, body: Any = None, version: int = 40) -> Answer:
        self.state.sync()
        path, _, query = path.partition("?")
        for route, methods in ROUTES.items():
            names, parts = route.split("/"), path.split("/")
            if method in methods and len(names) == len(parts):
                found = {n[1:-1]: p for n, p in zip(names, parts, strict=True) if n.startswith("{")}
                if all(n == p for n, p in zip(names, parts, strict=True) if not n.startswith("{")):
                    break
        else:
            raise AssertionError(path)
        operation = next(r.operation for r in methods[method] if r.since <= version <= r.until)
        pairs = parse_qsl(query, keep_blank_values=True)
        result = operation(Call(self.state, version, found, pairs, msgspec.json.encode(body), now=1.0))
        return result if isinstance(result, Answer) else finished(result)

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(uuid.uuid4()), entries=list(entries))
        changes = self.ledger.fold(self.ledger.seq + 1, commit)
        self.capacity.folded(changes, commit.entries_of(Decision), [a.id for a in commit.entries_of(Allocation)])
        self.state.reported.folded(changes)

    def report(self, cluster: str, *nodes: NodeReport, gone: tuple[str, ...] = ()) -> None:
        rows = [normalize_node(one)[0] for one in nodes]
        self.writer.put(self.writer.fleet.ids[cluster], cluster, rows, gone=gone)

    def put(self, allocations: dict[str, dict[str, int]], consumer: str = "", generation: int | None = None) -> str:
        consumer = consumer or str(uuid.uuid4())
        self.call("PUT", f"/allocations/{consumer}", self.body(allocations, generation))
        return consumer

    @staticmethod
    def body(allocations: dict[str, dict[str, int]], generation: int | None = None) -> dict[str, Any]:
        return {
            "allocations": {p: {"resources": amounts} for p, amounts in allocations.items()},
            "project_id": "p",
            "user_id": "u",
            "consumer_type": "TEST",
            "consumer_generation": generation,
        }

    def candidates(self, query: str) -> list[dict[str, dict[str, int]]]:
        found = self.call("GET", f"/allocation_candidates?{query}")
        return [{p: a["resources"] for p, a in one["allocations"].items()} for one in found["allocation_requests"]]

    def usages(self, provider: str) -> dict[str, int]:
        found: dict[str, int] = self.call("GET", f"/resource_providers/{provider}/usages")["usages"]
        return found

    def show(self, provider: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/resource_providers/{provider}")
        return found

    def traits(self, provider: str) -> list[str]:
        found: list[str] = self.call("GET", f"/resource_providers/{provider}/traits")["traits"]
        return found

    def free(self, name: str, node: str = "n-0") -> int:
        row = self.writer.fleet.row_of(0, node)
        column = self.writer.fleet.free(name)
        assert row is not None and column is not None
        return int(column[row])


def part(ident: str, cluster: str = ONE) -> str:
    return provider_uuid(cluster, ident)


def zoned(name: str = "", **fields: Any) -> NodeReport:
    cards = [provider(f"fpga-{z}", f"numa-{z}", FPGA="1", traits=["FPGA_A"]) for z in (0, 1)]
    return node(name, cpu="8", memory="16Gi", zones=two_zones("4"), providers=cards, **fields)


def decided(ident: str, *slots: Slot, tenant: str = "shop") -> Decision:
    intent = IntentRef(kind="Application", name="g", revision=1)
    claim = Claim(
        id=ident,
        decision="d",
        intent=intent,
        tenant=tenant,
        slots=list(slots),
        app="a",
        object=f"StatefulSet/{ident}",
        cluster=ONE,
    )
    return Decision(id=ident, group=f"g-{ident}", revision=1, claims=[claim])


def refused(mesh: Mesh, method: str, path: str, body: Any = None) -> str:
    with pytest.raises(Refused) as error:
        mesh.call(method, path, body)
    assert error.value.status == 409, error.value.detail
    return error.value.detail


def device(name: str, pool: str = "n", **more: Any) -> DeviceReport:
    return DeviceReport(id=f"d.io/{pool}/{name}", driver="d.io", pool=pool, name=name, **more)


class Rack(NamedTuple):
    """Devices that nodes reach in common: by name the nodes, and what each takes of the rack's only counter."""

    reach: dict[str, frozenset[str]] = {}
    takes: dict[str, int] = {}
    counter: int = 3

    @classmethod
    def some(cls, rng: Random) -> Rack:
        names = [f"x-{i}" for i in range(rng.choice((0, 2, 3, 4)))]
        reach = {name: frozenset(rng.sample(["n-0", "n-1", "n-2"], rng.randint(1, 3))) for name in names}
        return cls(reach, {name: rng.choice((0, 1, 2)) for name in names})

    def seen_by(self, node: str) -> tuple[list[DeviceReport], list[CounterSetReport]]:
        counted = any(self.takes[name] for name, nodes in self.reach.items() if node in nodes)
        devices = [
            DeviceReport(
                id=f"d.io/rack/{name}",
                driver="d.io",
                pool="rack",
                name=name,
                shared=True,
                elsewhere=node not in nodes,
                consumes={"c": {"m": f"{self.takes[name]}"}} if self.takes[name] else {},
            )
            for name, nodes in self.reach.items()
            if node in nodes or (counted and self.takes[name])
        ]
        sets = [CounterSetReport(driver="d.io", pool="rack", name="c", counters={"m": f"{self.counter}"})]
        return devices, sets if counted else []
