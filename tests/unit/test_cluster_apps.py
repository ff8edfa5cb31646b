"""The patcher's list of what runs where, kept in step with the ledger, against a walk over all claims."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from moorage.ledger import Ledger
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Release, Settlement, Withdrawal
from moorage.model.slots import Slot
from moorage.patcher.core.cluster_apps import AppOnCluster, ClusterApps

CLUSTERS, APPS = ("lab/x", "lab/y"), ("a", "b")
GROUPS = ("g/one", "g/two", "g/three")


def walked(ledger: Ledger, cluster: str) -> list[AppOnCluster]:
    """Returns the same from all claims of the cluster."""
    actives = [ledger.claims[ident] for ident in sorted(ledger.by_cluster.get(cluster, ()))]
    found = []
    for group, app in sorted({(active.group, active.claim.app) for active in actives}):
        mine = [active for active in actives if (active.group, active.claim.app) == (group, app)]
        families = list(dict.fromkeys(active.family for active in mine))
        claims = [active.claim for active in mine if not active.withdrawn]
        found.append(AppOnCluster(group, app, claims, families, any(active.claim.pinned for active in mine)))
    return found


class World:
    def __init__(self, seed: int) -> None:
        self.random, self.ledger = random.Random(seed), Ledger()
        self.revisions = dict.fromkeys(GROUPS, 1)
        self.decisions = 0

    def claim(self, group: str, app: str, cluster: str) -> Claim:
        template = self.random.choice("tu")
        others = [
            ident
            for ident, active in self.ledger.claims.items()
            if active.group != group and (active.claim.app, active.claim.cluster) == (app, cluster)
        ]
        return Claim(
            id=f"{group}/{app}/{cluster}/{template}",
            decision=f"d{self.decisions}",
            intent=IntentRef(kind="Application", name=group, revision=1),
            tenant="t",
            app=app,
            object="Deployment/web",
            cluster=cluster,
            slots=[Slot(node="n-0", count=self.random.randint(1, 2)), Slot(node="n-1", surge=True)],
            pinned=self.random.random() < 0.2,
            replaces=self.random.choice(others) if others and self.random.random() < 0.3 else "",
        )

    def decision(self) -> Decision:
        self.decisions += 1
        group = self.random.choice(GROUPS)
        places = [(app, cluster) for app in APPS for cluster in CLUSTERS if self.random.random() < 0.5]
        claims = [self.claim(group, *place) for place in places]
        return Decision(id=f"d{self.decisions}", group=group, revision=self.revisions[group], claims=claims)

    def settlement(self) -> Settlement:
        cluster = self.random.choice(CLUSTERS)
        here = sorted(self.ledger.by_cluster.get(cluster, ()))
        moved = self.random.sample(here, min(len(here), 2))
        groups = sorted({self.ledger.claims[ident].group for ident in here} & self.ledger.standing.keys())
        ended = [group for group in groups if self.random.random() < 0.3]
        previous = [self.ledger.previous[group][-1].id for group in ended if group in self.ledger.previous]
        return Settlement(
            cluster=cluster,
            epoch=f"1.{self.ledger.seq}",
            slots={ident: [Slot(node="n-2", count=1)] for ident in moved},
            ended=[self.ledger.standing[group].id for group in ended],
            restored=[ident for ident in previous if self.random.random() < 0.7],
            confined={ident: {"n-3": "no"} for ident in moved[:1]},
        )

    def withdrawal(self) -> Withdrawal:
        group = self.random.choice(GROUPS)
        self.revisions[group] += 1
        return Withdrawal(group=group, revision=self.revisions[group] - 1)

    def release(self) -> Release:
        gone = sorted(ident for ident, active in self.ledger.claims.items() if active.withdrawn)
        return Release(claims=self.random.sample(gone, self.random.randint(0, len(gone))))


@pytest.mark.parametrize("seed", range(30))
def test_it_lists_what_a_walk_over_all_claims_lists_after_each_commit(seed: int) -> None:
    world = World(seed)
    apps = ClusterApps(world.ledger)
    kinds: list[Callable[[], Entry]] = [
        world.decision,
        world.decision,
        world.settlement,
        world.withdrawal,
        world.release,
        world.release,
    ]
    for seq in range(1, 81):
        entries: list[Entry] = [make() for make in world.random.sample(kinds, world.random.choice((1, 1, 2)))]
        apps.folded(world.ledger.fold(seq, Commit(id=str(seq), entries=entries)))
        for cluster in CLUSTERS if world.random.random() < 0.7 else ():
            assert apps.on(cluster) == walked(world.ledger, cluster)
    again = ClusterApps(Ledger())
    again.reload(world.ledger)
    for cluster in CLUSTERS:
        assert apps.on(cluster) == again.on(cluster) == walked(world.ledger, cluster)


def test_an_app_that_did_not_change_is_not_read_again() -> None:
    world = World(0)
    claims = [world.claim(group, "a", "lab/x") for group in GROUPS]
    for seq, (group, claim) in enumerate(zip(GROUPS, claims, strict=True), 1):
        world.ledger.fold(seq, Commit(id=group, entries=[Decision(id=group, group=group, revision=1, claims=[claim])]))
    apps = ClusterApps(world.ledger)
    before = {app.group: app for app in apps.on("lab/x")}
    apps.folded(world.ledger.fold(4, Commit(id="4", entries=[Withdrawal(group=GROUPS[1], revision=1)])))
    after = {app.group: app for app in apps.on("lab/x")}
    assert [after[group] is before[group] for group in GROUPS] == [True, False, True]
    assert after[GROUPS[1]].claims == []
