"""Quotas of devices are exact while eight committers race for the last devices of a project."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from moorage.bus import Bus
from moorage.classes import BUILT_IN_ONLY, ClassCatalog
from moorage.fleet import FleetWriter, normalize_node, with_devices
from moorage.ledger import Committed, Committer, Dropped, Ledger, keep_capacity, keep_quotas, open_ledger
from moorage.ledger.device_quotas import DeviceQuotas
from moorage.model.claims import Claim, Decision, IntentRef, Slot, Withdrawal
from moorage.model.reports import NodeReport
from moorage.model.resource_classes import FleetObject, StoredMetadata
from moorage_testkit.invariants import read_log
from moorage_testkit.servers import NatsServer

GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpu.memory"
PARTIES, NODES = 8, 16


def catalog() -> ClassCatalog:
    """Returns a class of which project `a` may hold ten devices, of twelve in all."""
    found = ClassCatalog()
    wanted = {"key": "memory", "operator": "GtEq", "values": ["30G"]}
    specs: dict[str, dict[str, Any]] = {
        "ResourceClass": {"resourceSelector": [{"matchExpressions": [wanted]}]},
        "DeviceQuota": {"projects": ["a"], "devices": [{"class": "big", "count": 10}, {"class": "*", "count": 12}]},
    }
    for kind, spec in specs.items():
        made = FleetObject(kind=kind, metadata=StoredMetadata(name="big", uid=kind), spec=spec)
        found.put(made.key, msgspec.json.encode(made), 1)
    return found


def fleet_writer() -> FleetWriter:
    writer = FleetWriter()
    reports = [
        NodeReport(
            name=f"n-{i}",
            ready=True,
            allocatable={"cpu": "64", GPU: "8", "pods": "110"},
            labels={MEMORY: "81920" if i % 2 else "16384"},
        )
        for i in range(NODES)
    ]
    rows = [with_devices(normalize_node(report)[0], BUILT_IN_ONLY) for report in reports]
    writer.put(0, "lab/a", rows, whole=True, as_of=1.0)
    return writer


def holding(name: str, gpus: int, node: str, project: str) -> Decision:
    intent = IntentRef(kind="Application", name=name, revision=1)
    taken = {"cpu": 1, "pods": 1, GPU: gpus}
    slot = Slot(node=node, resources=taken, parts={f"{node}/{GPU}": {GPU: gpus}})
    claim = Claim(
        id=f"claim-{name}",
        decision=name,
        intent=intent,
        tenant=project,
        slots=[slot],
        cluster="lab/a",
        app="app",
        object="o",
    )
    return Decision(id=name, group=f"{project}/{name}/v1/default", revision=1, claims=[claim])


class Party:
    """A committer with its connection, ledger, fleet and catalog."""

    async def open(self, nats: NatsServer) -> Party:
        self.bus = await Bus.connect(nats.settings(), worker="merger")
        self.follower = await open_ledger(self.bus)
        fleet = fleet_writer().fleet
        self.capacity = keep_capacity(self.follower, fleet)
        self.quotas = keep_quotas(self.follower, fleet, catalog())
        self.committer = Committer(self.bus, self.follower, self.capacity, self.quotas)
        return self

    async def commit(self, decision: Decision) -> Committed | Dropped:
        self.capacity.hold(decision)
        return await self.committer.commit(decision)


@pytest.mark.parametrize("seed", range(3))
async def test_eight_committers_never_exceed_a_quota(nats: NatsServer, bus: Bus, seed: int) -> None:
    rng = random.Random(seed)
    parties = [await Party().open(nats) for _ in range(PARTIES)]
    try:
        made = [
            holding(f"g{i}", rng.choice((1, 1, 2)), f"n-{rng.randrange(NODES)}", "ab"[i % 4 == 3]) for i in range(96)
        ]
        results = await asyncio.gather(*(parties[i % PARTIES].commit(one) for i, one in enumerate(made)))
        # Some give theirs back meanwhile; what is withdrawn counts until it is released.
        taken = [one for one, result in zip(made, results, strict=True) if isinstance(result, Committed)]
        await parties[0].committer.commit(Withdrawal(group=taken[0].group, revision=1))
        more = [holding(f"h{i}", 1, f"n-{2 * rng.randrange(8) + 1}", "a") for i in range(PARTIES)]
        later = await asyncio.gather(*(party.commit(one) for party, one in zip(parties, more, strict=True)))
        codes = Counter(result.code for result in [*results, *later] if isinstance(result, Dropped))
        assert codes["QuotaExceeded"] > 0 and sum(party.committer.conflicts for party in parties) > 0
        # Every state of the log keeps the quota, and the last one leaves no room for what was refused.
        ledger, fleet = Ledger(), fleet_writer().fleet
        quotas = DeviceQuotas(fleet, ledger, catalog())
        _, commits = await read_log(bus)
        for seq, commit in commits:
            quotas.folded(ledger.fold(seq, commit))
            assert quotas.held("a", "big") <= 10_000 and quotas.held("a") <= 12_000
        refused = [
            one
            for one, result in zip([*made, *more], [*results, *later], strict=True)
            if isinstance(result, Dropped) and result.code == "QuotaExceeded"
        ]
        assert all(one.group.startswith("a/") for one in refused), "project b has no quota"
        assert all(quotas.check(one) is not None for one in refused)
    finally:
        for party in parties:
            await party.bus.close()
