"""Counts of quotas are kept as claims, classes and fleet change; they are always those of a count from nothing."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec
import pytest

from moorage.classes import BUILT_IN_ONLY, CLUSTER, KIND, NAME, NODE, ClassCatalog
from moorage.fleet import FleetWriter, normalize_node, with_devices
from moorage.ledger import Ledger
from moorage.ledger.device_quotas import DeviceQuotas
from moorage.ledger.families import at_least
from moorage.ledger.held_by_projects import ALL_DEVICES
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Release, Settlement, Slot, Withdrawal
from moorage.model.part_reports import PropertyValue
from moorage.model.reports import NodeReport
from moorage.model.resource_classes import DeviceQuotaSpec, FleetObject, StoredMetadata

GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpu.memory"
CLUSTERS, NODES, CLASSES, PROJECTS = ("lab/a", "lab/b"), ("n0", "n1", "n2"), ("big", "small", "here"), ("a", "b", "c")
STEPS = 120


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.writer, self.catalog, self.ledger = FleetWriter(), ClassCatalog(), Ledger()
        for cid in range(len(CLUSTERS)):
            self.change_fleet(cid)
        self.quotas = DeviceQuotas(self.writer.fleet, self.ledger, self.catalog)
        self.change_classes()
        self.change_quotas()

    # -- what changes ---------------------------------------------------------------------------------------------

    def change_fleet(self, cid: int) -> None:
        """Reports other devices of a cluster, and sometimes not all of its nodes."""
        rows = []
        for name in self.rng.sample(NODES, self.rng.choice((2, 3, 3))):
            labels = {MEMORY: str(self.rng.choice((16, 40, 80)) << 10)}
            amounts = {"cpu": "64", GPU: "8"} if self.rng.random() < 0.8 else {"cpu": "64"}
            report = NodeReport(name=name, ready=True, allocatable=amounts, labels=labels)
            rows.append(with_devices(normalize_node(report)[0], BUILT_IN_ONLY))
        self.writer.put(cid, CLUSTERS[cid], rows, whole=True, as_of=1.0)

    def change_classes(self) -> None:
        name, cluster = self.rng.choice(CLASSES), self.rng.choice(("", "", *CLUSTERS))
        key, operator, value = self.rng.choice(
            (("memory", "GtEq", "30Gi"), ("memory", "Lt", "60Gi"), (NODE, "In", "n1"), (CLUSTER, "In", "lab/b"))
        )
        selector = [{"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]}]
        found = _object("ResourceClass", name, cluster, resourceSelector=selector)
        self.catalog.put(found.key, None if self.rng.random() < 0.2 else msgspec.json.encode(found), 1)

    def change_quotas(self) -> None:
        items = [{"class": name, "count": self.rng.randint(0, 12)} for name in (*CLASSES, ALL_DEVICES)]
        projects = self.rng.sample(PROJECTS, self.rng.choice((2, 3)))
        found = _object("DeviceQuota", "q", projects=projects, devices=items)
        self.catalog.put(found.key, msgspec.json.encode(found), 1)

    def slots(self) -> list[Slot]:
        return [
            Slot(node=node, count=self.rng.choice((1, 2)), resources={"cpu": 1}, parts={f"{node}/{GPU}": {GPU: gpus}})
            for node in self.rng.sample(NODES, self.rng.choice((1, 2)))
            for gpus in (self.rng.randint(1, 3),)
        ]

    def decision(self) -> Decision:
        group = f"{self.rng.choice(PROJECTS)}/g{self.rng.randrange(4)}/v1/default"
        standing = self.ledger.standing.get(group)
        revision = max(self.ledger.ended_revisions.get(group, 0), standing.revision if standing else 0) + 1
        ident, cluster = f"{group} {self.ledger.seq} {self.rng.random()}", self.rng.choice(CLUSTERS)
        claim = Claim(
            id=f"claim {ident}",
            decision=ident,
            intent=IntentRef(kind="Application", name="g", revision=revision),
            tenant="t",
            slots=self.slots(),
            cluster=cluster,
            app="app",
            object="o",
        )
        return Decision(id=ident, group=group, revision=revision, claims=[claim])

    def entries(self) -> list[Entry]:
        claims = list(self.ledger.claims)
        kind = self.rng.choice(("decide", "decide", "decide", "withdraw", "release", "settle"))
        if kind == "withdraw" and self.ledger.standing:
            group = self.rng.choice(list(self.ledger.standing))
            return [Withdrawal(group=group, revision=self.ledger.standing[group].revision)]
        if kind == "release" and claims:
            return [Release(claims=self.rng.sample(claims, min(2, len(claims))))]
        if kind == "settle" and claims:
            ident = self.rng.choice(claims)
            cluster = self.ledger.claims[ident].claim.cluster
            return [Settlement(cluster=cluster, epoch=f"1.{self.ledger.seq}", slots={ident: self.slots()})]
        return list(self.let_pass())

    def let_pass(self) -> list[Decision]:
        """Returns of some decisions those that quotas allow, and checks that these are the right ones."""
        batch = self.quotas.batch()
        passed: list[Decision] = []
        for one in [self.decision() for _ in range(self.rng.randint(1, 3))]:
            if any(one.group == other.group for other in passed):
                continue
            project = one.group.partition("/")[0]
            bounds = {item.class_: item.count for quota in self.quotas_of(project) for item in quota.devices}
            before, after = (self.counts(project, decisions) for decisions in (passed, [*passed, one]))
            exceeds = any(after[name] > max(1000 * count, before[name]) for name, count in bounds.items())
            refused = batch.check(one)
            assert (refused is not None) == exceeds
            if refused is None:
                passed.append(one)
        return passed

    def commit(self, entries: list[Entry]) -> None:
        seq = self.ledger.seq + 1
        self.quotas.folded(self.ledger.fold(seq, Commit(id=str(seq), by="t", entries=entries)))

    # -- what is right --------------------------------------------------------------------------------------------

    def quotas_of(self, project: str) -> list[DeviceQuotaSpec]:
        return [spec for spec in self.catalog.quotas.values() if project in spec.projects]

    def counts(
        self, project: str, decisions: Collection[Decision] = (), without: Collection[str] = ()
    ) -> dict[str, int]:
        """Counts what a project holds, with decisions and without groups, from nothing."""
        families: dict[object, dict[tuple[str, str, str], dict[str, int]]] = {}
        of_ledger = [(active.group, active.claim) for active in self.ledger.claims.values()]
        for group, claim in [*of_ledger, *((one.group, claim) for one in decisions for claim in one.claims)]:
            if group.startswith(f"{project}/") and group not in without:
                taken: dict[tuple[str, str, str], dict[str, int]] = {}
                for slot in claim.slots:
                    for part, amounts in slot.parts.items():
                        here = taken.setdefault((claim.cluster, slot.node, part), {})
                        for name, amount in amounts.items():
                            here[name] = here.get(name, 0) + slot.count * amount
                parts = families.setdefault((group, claim.cluster), {})
                for place, amounts in taken.items():
                    at_least(parts.setdefault(place, {}), amounts)
        found = dict.fromkeys((*CLASSES, ALL_DEVICES), 0)
        for place in {place for parts in families.values() for place in parts}:
            amount = sum(parts[place][GPU] for parts in families.values() if place in parts)
            known = self.device(*place)
            if known is None:  # it counts while it is held
                found[ALL_DEVICES] += 1000
                continue
            found[ALL_DEVICES] += 1000 * amount
            for name in CLASSES:
                class_ = self.catalog.class_in(name, place[0])
                if class_ is not None and class_.selector.matches(known):
                    found[name] += 1000 * amount
        return found

    def device(self, cluster: str, node: str, part: str) -> dict[str, PropertyValue] | None:
        fleet = self.writer.fleet
        row = fleet.row_of(fleet.ids[cluster], node)
        if row is None or (at := fleet.own_layout(row).at.get(part.removeprefix(node))) is None:
            return None
        properties = dict(fleet.own_layout(row).parts[at].properties)
        assert KIND in properties
        return {**properties, NAME: part.rpartition("/")[2], NODE: node, CLUSTER: cluster}


def _object(kind: str, name: str, cluster: str = "", **spec: object) -> FleetObject:
    return FleetObject(kind=kind, metadata=StoredMetadata(name=name, cluster=cluster, uid=name), spec=dict(spec))


@pytest.mark.parametrize("seed", range(12))
def test_counts_follow_every_change(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        match world.rng.choice(("commit", "commit", "commit", "fleet", "classes", "quotas")):
            case "commit":
                world.commit(world.entries())
            case "fleet":
                world.change_fleet(world.rng.randrange(len(CLUSTERS)))
            case "classes":
                world.change_classes()
            case _:
                world.change_quotas()
        if world.rng.random() < 0.3:
            continue  # several changes before the next look
        project = world.rng.choice(PROJECTS)
        counts = world.counts(project)
        assert {name: world.quotas.held(project, name) for name in counts} == counts
        own = {f"{project}/g{world.rng.randrange(4)}/v1/default"}
        beside = world.counts(project, without=own)
        items = [item for quota in world.quotas_of(project) for item in quota.devices if item.class_ != ALL_DEVICES]
        assert world.quotas.full(own) == {one.class_ for one in items if beside[one.class_] >= 1000 * one.count}
        if items:
            assert world.quotas.may_hold(own, items[0].class_, 1000) == all(
                beside[one.class_] + 1000 <= 1000 * one.count
                for quota in world.quotas_of(project)
                for one in quota.devices
                if one.class_ in (items[0].class_, ALL_DEVICES)
            )
