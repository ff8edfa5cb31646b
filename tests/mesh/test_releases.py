"""A claim whose group has ended counts until its own cluster confirmed the removal and a later report shows no pod of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from moorage.bus import Bus, subjects
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.merger.worker import start
from moorage.model.claims import Claim
from moorage.model.groups import Withdraw
from moorage.model.shapes import ShapedApp
from moorage.model.status import ClaimsRemoved
from moorage_testkit.fleets import node
from moorage_testkit.merger_harness import Clusters, MergerHarness, group, revision, shape
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer

CLUSTERS = ("lab/c-0", "lab/c-1", "lab/c-2")


def clusters() -> Clusters:
    return {name: [node(cpu="4")] for name in CLUSTERS}


class Ended:
    """A group that ran on three clusters and has ended; none of its claims is released yet."""

    def __init__(self, site: MergerHarness) -> None:
        self.site = site
        self.claims: dict[str, Claim] = {}
        self._last = 100.0

    async def begin(self) -> None:
        s = self.site
        record = revision("shop", ShapedApp(name="a", replicas=3, shapes=[shape(4000)]))
        await s.decide(record)
        await s.attempt("shop", "Placed")
        await until(lambda: s.mergers[0].wait_loop is not None, what="somebody looks after what ends")
        self.claims = {c.cluster: c for c in s.ledger.standing[group("shop")].claims}
        await s.store(record, "Terminated")
        await s.bus.publish(subjects.GROUPS_WITHDRAW, Withdraw(group=group("shop"), revision=1))
        await until(lambda: group("shop") not in s.ledger.standing)

    async def confirmed(self, claim: Claim, by: str, as_of: float, gone: bool = False) -> None:
        removed = ClaimsRemoved(claims=[claim.id], cluster=by, as_of=as_of, gone=gone)
        await self.site.bus.publish(subjects.MERGER_REMOVED, removed)

    def reported(self, cluster: str, as_of: float, pods: dict[str, dict[str, int]]) -> None:
        self.site.report(cluster, lambda w, cid: w.put(cid, cluster, claims=pods))
        self.site.report(cluster, lambda w, cid: w.refresh(cid, as_of))

    def counts(self, claim: Claim) -> bool:
        return claim.id in self.site.ledger.claims

    async def released(self, claim: Claim) -> None:
        await until(lambda: not self.counts(claim), what=f"{claim.cluster} is released")

    async def looked_at(self, claim: Claim) -> None:
        """Waits until all earlier messages are handled: another claim that can be released is released by then."""
        other = next(c for c in self.claims.values() if c is not claim and self.counts(c))
        await self.confirmed(other, other.cluster, 5.0)
        self.reported(other.cluster, 6.0, {})
        await self.released(other)


@pytest_asyncio.fixture
async def ended(nats: NatsServer, bus: Bus) -> AsyncIterator[Ended]:
    site = MergerHarness(nats, bus, clusters, start, lambda fleet: HardwareAnswers(fleet).answer)
    try:
        await site.open(1)
        await site.hpa()
        found = Ended(site)
        await found.begin()
        yield found
        await site.check()
    finally:
        await site.close()


async def test_a_claim_counts_while_a_later_report_shows_a_pod(ended: Ended) -> None:
    claim = ended.claims["lab/c-1"]
    ended.reported("lab/c-1", 4.0, {claim.id: {"n-0": 1}})
    await ended.confirmed(claim, "lab/c-1", 5.0)
    ended.reported("lab/c-1", 6.0, {claim.id: {"n-0": 1}})
    await ended.looked_at(claim)
    assert ended.counts(claim)
    ended.reported("lab/c-1", 7.0, {claim.id: {}})
    await ended.released(claim)


async def test_a_report_from_the_moment_of_removal_does_not_release(ended: Ended) -> None:
    claim = ended.claims["lab/c-1"]
    await ended.confirmed(claim, "lab/c-1", 5.0)
    ended.reported("lab/c-1", 5.0, {})
    await ended.looked_at(claim)
    assert ended.counts(claim)
    ended.reported("lab/c-1", 5.1, {})
    await ended.released(claim)


@pytest.mark.parametrize("gone", [False, True])
async def test_a_confirmation_of_another_cluster_does_not_release(ended: Ended, gone: bool) -> None:
    claim = ended.claims["lab/c-1"]
    await ended.confirmed(claim, "lab/c-0", 5.0, gone)
    for cluster in CLUSTERS:
        ended.reported(cluster, 6.0, {})
    await ended.looked_at(claim)
    assert ended.counts(claim)
    await ended.confirmed(claim, "lab/c-1", 5.0)
    await ended.released(claim)


async def test_claims_of_a_cluster_that_left_are_released_without_a_report(ended: Ended) -> None:
    claim = ended.claims["lab/c-1"]
    await ended.confirmed(claim, "lab/c-1", 0.0, gone=True)
    await ended.released(claim)


async def test_a_confirmation_alone_does_not_release_claims_of_an_unknown_cluster(ended: Ended) -> None:
    claim = ended.claims["lab/c-1"]
    ended.site.report("lab/c-1", lambda w, cid: w.drop(cid))
    await ended.confirmed(claim, "lab/c-1", 5.0)
    await ended.looked_at(claim)
    assert ended.counts(claim)
