"""Runs several committers on one decision log, each with its own connection, ledger and fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from moorage.bus import Bus
from moorage.fleet import Fleet
from moorage.ledger import Committed, Committer, Dropped, keep_capacity, open_ledger
from moorage.model.claims import Claim, Decision, IntentRef, Slot

from .fleets import fleet_of
from .merger_harness import Clusters, group
from .servers import NatsServer


def pod_on(
    name: str, cluster: str = "lab/c-0", at: str = "n-0", *, cpu: int = 1000, number: int = 1, ident: str = ""
) -> Decision:
    """Returns the decision of a group with one pod on one node."""
    intent = IntentRef(kind="Application", name=name, revision=number)
    slot = Slot(node=at, resources={"cpu": cpu, "pods": 1})
    claim = Claim(
        id=f"claim-{name}", decision=name, intent=intent, tenant="p", slots=[slot], cluster=cluster, app="a", object="o"
    )
    return Decision(id=ident or name, group=group(name), revision=number, claims=[claim])


class CommitterHarness:
    """A committer with its connection, ledger and fleet."""

    def __init__(self, nats: NatsServer, clusters: Callable[[], Clusters]) -> None:
        self.nats = nats
        self.fleet: Fleet = fleet_of(clusters())

    async def open(self) -> CommitterHarness:
        self.bus = await Bus.connect(self.nats.settings(), worker="merger")
        self.follower = await open_ledger(self.bus)
        self.capacity = keep_capacity(self.follower, self.fleet)
        self.committer = Committer(self.bus, self.follower, self.capacity)
        return self

    async def commit(self, decision: Decision) -> Committed | Dropped:
        self.capacity.hold(decision)
        return await self.committer.commit(decision)

    @property
    def free(self) -> dict[tuple[str, str], int]:
        """Free CPU by cluster and node."""
        return dict(self._free())

    def _free(self) -> Iterator[tuple[tuple[str, str], int]]:
        column = self.fleet.free("cpu")
        assert column is not None
        for cluster, cid in self.fleet.ids.items():
            for row in map(int, self.fleet.rows_of(cid)):
                yield (cluster, self.fleet.node_name(row)), int(column[row])


@asynccontextmanager
async def at_the_log(
    nats: NatsServer, clusters: Callable[[], Clusters], count: int
) -> AsyncIterator[list[CommitterHarness]]:
    parties: list[CommitterHarness] = []
    try:
        for _ in range(count):
            parties.append(await CommitterHarness(nats, clusters).open())  # noqa: PERF401 - each is closed even if the next fails to open
        yield parties
    finally:
        for party in parties:
            await party.bus.close()
