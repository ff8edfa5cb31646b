"""Groups that take the place of others: objects that both have are counted as in an update, in whatever order things happen."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from moorage.intents.core.succession import kept_succession, succession
from moorage.ledger import Capacity, Family, Ledger
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Release, Withdrawal
from moorage.model.groups import GroupRecord, Revision, Succession
from moorage.model.slots import Slot
from moorage_testkit.brute_force import taken_together
from moorage_testkit.fleets import node, writer_of
from moorage_testkit.seeds import seeds

GROUPS = [f"p/a/v{number}/g" for number in range(4)]
NODES = ("n-0", "n-1")
ROOM = 1000


def claim(group: str, version: int, cluster: str, slots: list[Slot], replaces: str = "") -> Claim:
    return Claim(
        id=f"{group}-{version}-{cluster}",
        decision="d",
        intent=IntentRef(kind="Application", name="a", revision=1),
        tenant="p",
        slots=slots,
        cluster=cluster,
        app="x",
        object="Deployment/web",
        replaces=replaces,
    )


def pods(where: str, count: int = 1, cpu: int = 1, *, surge: bool = False) -> Slot:
    return Slot(node=where, count=count, resources={"cpu": cpu}, surge=surge)


class Log:
    def __init__(self) -> None:
        self.writer = writer_of({c: [node(cpu=f"{ROOM}m") for _ in NODES] for c in ("lab/x", "lab/y")})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)
        self.live: dict[str, dict[str, int]] = {}

    def commit(self, *entries: Entry) -> None:
        commit = Commit(id=f"c{self.ledger.seq}", entries=list(entries))
        changes = self.ledger.fold(self.ledger.seq + 1, commit)
        self.capacity.folded(changes, commit.entries_of(Decision))

    def decide(self, group: str, *claims: Claim, revision: int = 1) -> None:
        self.commit(Decision(id=f"d{self.ledger.seq}", group=group, revision=revision, claims=list(claims)))

    def free(self, cluster: str, where: str) -> int:
        fleet = self.writer.fleet
        column, row = fleet.free("cpu"), fleet.row_of(fleet.ids[cluster], where)
        assert column is not None and row is not None
        return int(column[row])

    def check(self) -> None:
        """Each claim is in one family, with all others of its object; a family is named after a group in it, its newest claims
        stand; and what is free is what the families leave."""
        ledger = self.ledger
        assert Counter(i for idents in ledger.families.values() for i in idents) == Counter(list(ledger.claims))
        taken: Counter[tuple[str, str]] = Counter()
        mine: dict[Family, set[Family]] = {}
        for family, idents in ledger.families.items():
            active = [ledger.claims[ident] for ident in idents]
            assert all(one.family == family for one in active)
            assert family.group in {one.group for one in active}
            withdrawn = [one.withdrawn for one in active]
            assert len({one.group for one in active}) == 1 or withdrawn == sorted(withdrawn, reverse=True)
            for one in active:
                mine.setdefault(Family.of(one.group, one.claim), set()).add(family)
            running = [self.live.get(ident, {}) for ident in idents]
            for where in NODES:
                slots = [one.claim.slots for one in active]
                taken[family.cluster, where] += taken_together(slots, running, where, "cpu")
        assert all(len(families) == 1 for families in mine.values())
        assert ledger.joined == {own: family for own, (family,) in mine.items() if own != family}
        for cluster in ("lab/x", "lab/y"):
            for where in NODES:
                assert self.free(cluster, where) == ROOM - taken[cluster, where]


def test_a_group_that_takes_the_place_of_another_counts_as_an_update() -> None:
    log, (a, b, *_) = Log(), GROUPS
    log.decide(a, old := claim(a, 1, "lab/x", [pods("n-0", 2, 400)]))
    assert log.free("lab/x", "n-0") == 200
    log.decide(b, new := claim(b, 1, "lab/x", [pods("n-0", 2, 450), pods("n-1", 1, 450, surge=True)], old.id))
    assert log.free("lab/x", "n-0") == 100 and log.free("lab/x", "n-1") == 550
    assert log.ledger.standing.keys() == {a, b}
    again = Ledger.decode(log.ledger.encode())
    assert again.families == log.ledger.families and again.joined == log.ledger.joined
    assert again.claims == log.ledger.claims
    log.commit(Withdrawal(group=a, revision=1))
    assert log.free("lab/x", "n-0") == 100
    log.commit(Release(claims=[old.id]))
    assert log.free("lab/x", "n-0") == 100 and log.free("lab/x", "n-1") == 1000, "the surge is over"
    assert list(log.ledger.families) == [Family.of(b, new)] and not log.ledger.joined
    log.check()


def test_a_successor_that_ends_first_leaves_the_object_to_the_former_group() -> None:
    log, (a, b, *_) = Log(), GROUPS
    log.decide(a, old := claim(a, 1, "lab/x", [pods("n-0", 2, 400)]))
    log.decide(b, new := claim(b, 1, "lab/x", [pods("n-0", 1, 600)], old.id))
    assert log.free("lab/x", "n-0") == 200
    assert log.ledger.families[Family.of(a, old)] == [old.id, new.id]
    log.commit(Withdrawal(group=b, revision=1))
    assert log.ledger.families[Family.of(a, old)] == [new.id, old.id], "the one that stands is the newest"
    assert log.free("lab/x", "n-0") == 0, "the second of the two pods may start before the larger one ends"
    log.commit(Release(claims=[new.id]))
    assert log.free("lab/x", "n-0") == 200 and not log.ledger.joined
    log.check()


def test_a_later_group_of_the_name_is_not_counted_with_the_successor() -> None:
    log, (a, b, *_) = Log(), GROUPS
    log.decide(a, old := claim(a, 1, "lab/x", [pods("n-0", 1, 400)]))
    log.decide(b, claim(b, 1, "lab/x", [pods("n-0", 1, 400)], old.id))
    log.commit(Withdrawal(group=a, revision=1), Release(claims=[old.id]))
    log.decide(a, claim(a, 1, "lab/x", [pods("n-0", 1, 400)]), revision=2)
    assert log.free("lab/x", "n-0") == 200
    log.check()


def test_logs_and_snapshots_from_before_are_read() -> None:
    log, (a, b, *_) = Log(), GROUPS
    log.decide(a, claim(a, 1, "lab/x", [pods("n-0", 1, 400)]))
    log.decide(b, claim(b, 1, "lab/x", [pods("n-0", 1, 400)]))
    snapshot = msgspec.msgpack.decode(log.ledger.encode())
    snapshot.pop("joined", None)
    again = Ledger.decode(msgspec.msgpack.encode(snapshot))
    assert again.families == log.ledger.families and len(again.families) == 2


@pytest.mark.parametrize("seed", seeds(30, 600))
def test_any_sequence_of_updates_and_migrations_counts_the_larger_of_old_and_new(seed: int) -> None:
    rng = random.Random(seed)
    log = Log()
    whole: list[Commit] = []
    revisions = dict.fromkeys(GROUPS, 1)
    for step in range(40):
        group, cluster = rng.choice(GROUPS), rng.choice(["lab/x", "lab/y"])
        active = list(log.ledger.claims.values())
        match rng.randrange(6):
            case 0 | 1:
                claims = []
                for where in rng.sample(["lab/x", "lab/y"], rng.randint(1, 2)):
                    slots = [pods(rng.choice(NODES), rng.randint(1, 3), rng.randint(1, 9)) for _ in range(2)]
                    slots[-1].surge = rng.random() < 0.3
                    there = [one.claim.id for one in active if one.claim.cluster == where]
                    replaces = rng.choice(there) if there and rng.random() < 0.8 else ""
                    claims.append(claim(group, rng.randrange(3), where, slots, replaces))
                entry: Entry = Decision(id=f"d{step}", group=group, revision=revisions[group], claims=claims)
                if rng.random() < 0.5:
                    assert isinstance(entry, Decision)
                    log.capacity.hold(entry)
            case 2:
                entry = Withdrawal(group=group, revision=revisions[group])
                revisions[group] += 1
            case 3 if active:
                entry = Release(claims=[rng.choice(active).claim.id])
            case 4:
                cid = log.writer.fleet.ids[cluster]
                there = [one.claim.id for one in active if one.claim.cluster == cluster]
                counts = {i: {rng.choice(NODES): rng.randint(1, 2)} for i in there if rng.random() < 0.5}
                before = [ident for ident in log.live if ident.endswith(cluster)]
                log.live = {i: v for i, v in log.live.items() if i not in before} | counts
                rows: dict[str, dict[str, int]] = {i: counts.get(i, {}) for i in {*there, *before}}
                log.writer.put(cid, cluster, claims=rows)
                continue
            case _:
                again = Ledger.decode(log.ledger.encode())
                assert (again.families, again.claims) == (log.ledger.families, log.ledger.claims)
                log.ledger = again
                log.capacity.reload(again)
                continue
        whole.append(Commit(id=f"c{len(whole)}", entries=[entry]))
        log.commit(entry)
        log.check()
    folded = Ledger()
    for seq, commit in enumerate(whole, 1):
        folded.fold(seq, msgspec.json.decode(msgspec.json.encode(commit), type=Commit))
    assert (folded.families, folded.claims) == (log.ledger.families, log.ledger.claims), "the same from the log alone"


def record(group: str, **apps: list[tuple[str, str]]) -> GroupRecord:
    manifests = {
        app: [{"kind": "Deployment", "metadata": {"name": n} | ({"namespace": ns} if ns else {})} for n, ns in objects]
        for app, objects in apps.items()
    }
    resolved = Revision(group=group, revision=1, tenant="p", apps=[])
    return GroupRecord(group=group, revision=1, state="Instantiated", resolved=resolved, manifests=manifests)


def test_only_objects_of_the_same_app_kind_name_and_namespace_are_taken_over() -> None:
    before = record(GROUPS[0], web=[("a", ""), ("b", "prod"), ("c", "prod")], db=[("d", "")])
    after = record(GROUPS[1], web=[("a", "default"), ("b", "test"), ("c", "prod"), ("d", "")])
    found = succession(before, after.manifests)
    assert found == Succession(group=GROUPS[0], objects={"web": {"Deployment/a": "default", "Deployment/c": "prod"}})
    later = record(GROUPS[1], web=[("a", "other"), ("c", "prod"), ("b", "prod")])
    kept = kept_succession(found, later.manifests)
    assert kept.objects == {"web": {"Deployment/c": "prod"}}
