"""Settling over a real broker: pods that start elsewhere, groups that lose their room, and who settles when."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from moorage.bus import Entry
from moorage.fleet import normalize_node
from moorage.merger.settling import Settling
from moorage.mesh import stores
from moorage.model.claims import Claim, Reassignment, Settlement, Slot
from moorage.model.groups import GroupRecord, Revision
from moorage.model.names import group_tokens
from moorage.model.reports import Taint
from moorage.model.shapes import PodRule, ShapedApp
from moorage.model.status import GroupStatus
from moorage_testkit.fleets import node
from moorage_testkit.invariants import read_log
from moorage_testkit.merger_harness import Clusters, MergerHarness, OpenMergers, group, revision, shape
from moorage_testkit.mesh_client import eventually
from moorage_testkit.polling import until


def two_nodes(cpu: str = "2") -> Clusters:
    return {"lab/one": [node(cpu=cpu), node(cpu=cpu)]}


def app(count: int, cpu: int = 1000) -> ShapedApp:
    return ShapedApp(name="a", shapes=[shape(cpu, count)])


def rows(cpu: str, *requested: int) -> list[Any]:
    return [normalize_node(node(f"n-{i}", cpu=cpu, requested={"cpu": f"{r}m"}))[0] for i, r in enumerate(requested)]


def nodes_of(s: MergerHarness, name: str) -> dict[str, int]:
    (claim,) = s.ledger.standing[group(name)].claims
    found: dict[str, int] = {}
    for slot in claim.slots:
        found[slot.node] = found.get(slot.node, 0) + slot.count
    return found


def claim_at(s: MergerHarness, ident: str) -> Claim:
    return s.ledger.claims[ident].claim


def claim_of(s: MergerHarness, name: str) -> str:
    return s.ledger.standing[group(name)].claims[0].id


async def place(s: MergerHarness, name: str, one: ShapedApp, slots: list[str]) -> None:
    """Places the group, with its pods expected on these nodes."""
    await s.decide(revision(name, one, at=name))
    await s.attempt(name, "Placed")
    resources = one.shapes[0].resources
    moved = Reassignment(claim=claim_of(s, name), slots=[Slot(node=n, resources=resources) for n in slots])
    await s.mergers[0].decider.committer.commit(moved)  # type: ignore[attr-defined]


async def test_a_slot_that_its_pod_left_is_not_given_away_and_settled(open_mergers: OpenMergers) -> None:
    """Two pods bind on one node, where a pod of another group is still to come."""
    async with open_mergers(two_nodes) as s:
        await place(s, "wide", app(2), ["n-0", "n-1"])
        await place(s, "late", app(1), ["n-0"])
        wide = claim_of(s, "wide")
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 2000, 0), claims={wide: {"n-0": 2}}))
        await until(lambda: nodes_of(s, "wide") == {"n-0": 2} and nodes_of(s, "late") == {"n-1": 1})
        await s.decide(revision("third", app(1)))
        await s.attempt("third", "Placed")
        assert nodes_of(s, "third") == {"n-1": 1}
        await s.decide(revision("fourth", app(1)))
        await s.attempt("fourth", "Pending")


async def test_strangers_push_open_slots_to_where_they_fit(open_mergers: OpenMergers) -> None:
    async with open_mergers(two_nodes) as s:
        await place(s, "one", app(1, 2000), ["n-0"])
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 1000, 0)))
        await until(lambda: nodes_of(s, "one") == {"n-1": 1})


async def test_open_slots_move_only_to_nodes_that_their_pods_may_use(open_mergers: OpenMergers) -> None:
    def clusters() -> Clusters:
        return {"lab/one": [node(cpu="2"), node(cpu="2", taints=[Taint(key="t", effect="NoSchedule")]), node(cpu="2")]}

    async with open_mergers(clusters) as s:
        await place(s, "one", app(1, 2000), ["n-0"])
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 1000)))
        await until(lambda: nodes_of(s, "one") == {"n-2": 1})


async def test_a_group_that_lost_its_room_before_it_ran_goes_where_it_fits(open_mergers: OpenMergers) -> None:
    clusters = {"lab/one": [node(cpu="2")], "lab/two": [node(cpu="2")]}
    async with open_mergers(lambda: msgspec.convert(msgspec.to_builtins(clusters), Clusters)) as s:
        await s.decide(revision("moves", app(1, 2000)))
        await s.attempt("moves", "Placed")
        first = s.ledger.standing[group("moves")].claims[0].cluster
        s.report(first, lambda w, cid: w.put(cid, first, rows("2", 1000)))
        await until(lambda: any(r.code == "Displaced" for a in s.attempts("moves") for r in a.reasons))
        await until(
            lambda: (d := s.ledger.standing.get(group("moves"))) is not None and d.claims[0].cluster != first,
            seconds=20,
        )
        (displaced,) = (r for a in s.attempts("moves") for r in a.reasons if r.code == "Displaced")
        assert displaced.cluster == first and "2 cpu" in displaced.message
        assert [a.claim.cluster for a in s.ledger.claims.values() if a.withdrawn] == [first]


async def test_a_group_that_ran_keeps_its_slots_where_nothing_else_fits(open_mergers: OpenMergers) -> None:
    async with open_mergers(two_nodes) as s:
        await place(s, "ran", app(1, 2000), ["n-0"])
        decision = s.ledger.standing[group("ran")]
        status = GroupStatus(
            group=group("ran"), revision=1, phase="Running", decision=decision.id, version=1, reached=True
        )
        await s.bus.bucket("moorage-status").put(group_tokens(group("ran")), msgspec.json.encode(status))
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 1000, 1000)))
        await s.decide(revision("after", app(1, 2000)))
        await s.attempt("after", "Pending")
        assert s.ledger.standing[group("ran")].id == decision.id
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 1000, 0)))
        await until(lambda: nodes_of(s, "ran") == {"n-1": 1})


async def test_two_mergers_settle_a_cluster_once_and_the_other_goes_on(open_mergers: OpenMergers) -> None:
    async with open_mergers(two_nodes, mergers=2) as s:
        await until(lambda: sum(m.wait_loop is not None for m in s.mergers) == 1)
        await place(s, "one", app(1, 2000), ["n-0"])
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 1000, 0)))
        await until(lambda: nodes_of(s, "one") == {"n-1": 1})
        _, commits = await read_log(s.bus)
        assert sum(len(c.entries_of(Settlement)) for _, c in commits) == 1


async def test_what_changed_while_no_merger_ran_is_settled_after_the_start(open_mergers: OpenMergers) -> None:
    async with open_mergers(two_nodes) as s:
        await place(s, "one", app(1, 2000), ["n-0"])
        await s.buses[0].close()
        s.mergers.clear()
        plain = s.clusters
        s.clusters = lambda: {"lab/one": [node(cpu="2", requested={"cpu": "1"}), *plain()["lab/one"][1:]]}
        await s.merger()
        await until(lambda: nodes_of(s, "one") == {"n-1": 1}, seconds=20)


@pytest.mark.parametrize("point", ["merger.settling", "merger.settled"])
async def test_a_report_during_a_settlement_is_settled_too(
    open_mergers: OpenMergers, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The rows change between the computation and the commit, or right after it."""
    async with open_mergers(two_nodes) as s:
        await place(s, "one", app(1, 2000), ["n-0"])
        swapped: list[str] = []

        def swap(name: str) -> None:
            if name == point and not swapped:
                swapped.append(name)
                s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 0, 1000)))

        monkeypatch.setattr("moorage.merger.settling.reached", swap)
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 1000, 0)))
        await until(lambda: bool(swapped))
        await until(lambda: nodes_of(s, "one") == {"n-0": 1})


async def report_reached(s: MergerHarness, name: str) -> None:
    """Says, as the patcher does, that the group's decision ran in full."""
    decision = s.ledger.standing[group(name)]
    status = GroupStatus(group=group(name), revision=decision.revision, phase="Running", decision=decision.id)
    status.version, status.reached, status.ran = 1, True, True
    await s.bus.bucket("moorage-status").put(group_tokens(group(name)), msgspec.json.encode(status))


async def keep(s: MergerHarness, record: Revision) -> None:
    """Keeps an older revision, as the intent store does."""
    whole = GroupRecord(group=record.group, revision=record.revision, state="Instantiated", resolved=record)
    key = f"{group_tokens(record.group)}.{record.revision}"
    await s.bus.bucket("moorage-revisions").put(key, msgspec.json.encode(whole))


def cluster_of_group(s: MergerHarness, name: str) -> str:
    decision = s.ledger.standing.get(group(name))
    return decision.claims[0].cluster if decision is not None else ""


async def test_a_displaced_group_is_confined_to_its_nodes_the_next_time(open_mergers: OpenMergers) -> None:
    async with open_mergers(lambda: {"lab/one": [node(cpu="2")], "lab/two": [node(cpu="2"), node(cpu="2")]}) as s:
        await s.decide(revision("moves", app(1, 1000)))
        await s.attempt("moves", "Placed")
        (claim,) = s.ledger.standing[group("moves")].claims
        assert claim.required_nodes == {}
        cpu = [2000] * len(s.clusters()[claim.cluster])
        s.report(claim.cluster, lambda w, cid: w.put(cid, claim.cluster, rows("2", *cpu)))
        await until(lambda: cluster_of_group(s, "moves") not in ("", claim.cluster))
        (again,) = s.ledger.standing[group("moves")].claims
        assert again.required_nodes.keys() == {slot.node for slot in again.slots}
        # Kept by the following revisions, and forgotten once the group ends.
        await s.decide(revision("moves", ShapedApp(name="a", shapes=[shape(1000, template="u")]), number=2))
        await until(lambda: s.ledger.standing[group("moves")].revision == 2)
        assert s.ledger.standing[group("moves")].claims[0].required_nodes
        await s.mergers[0].decider.withdraw(group("moves"), 2, 0)
        assert not s.ledger.steered
        assert not s.ledger.previous


async def test_an_update_that_lost_its_room_gives_way_to_what_ran(open_mergers: OpenMergers) -> None:
    async with open_mergers(lambda: {"lab/one": [node(cpu="2")], "lab/two": [node(cpu="4")]}) as s:
        first = revision("app", app(1, 2000))
        await keep(s, first)
        await s.decide(first)
        await s.attempt("app", "Placed")
        ran = s.ledger.standing[group("app")]
        await until(lambda: cluster_of_group(s, "app") == "lab/two")
        s.report(
            "lab/two", lambda w, cid: w.put(cid, "lab/two", rows("4", 2000), claims={ran.claims[0].id: {"n-0": 1}})
        )
        await report_reached(s, "app")
        second = revision("app", ShapedApp(name="a", shapes=[shape(2000, 2, template="u")]), number=2)
        await s.decide(second)
        await until(lambda: s.ledger.standing[group("app")].revision == 2)
        new = s.ledger.standing[group("app")].claims[0]
        # A stranger takes the room of the second pod.
        s.report(
            "lab/two", lambda w, cid: w.put(cid, "lab/two", rows("4", 4000), claims={ran.claims[0].id: {"n-0": 1}})
        )
        await until(lambda: s.ledger.standing[group("app")].id == ran.id)
        assert not s.ledger.claims[ran.claims[0].id].withdrawn
        assert s.ledger.claims[new.id].withdrawn
        told = [("2", "0")]
        await until(
            lambda: [(r.needed, r.free) for a in s.attempts("app") for r in a.reasons if r.code == "Displaced"] == told
        )


async def test_a_group_that_ran_is_degraded_with_numbers_and_moves_as_soon_as_another_cluster_improves(
    open_mergers: OpenMergers,
) -> None:
    async with open_mergers(lambda: {"lab/one": [node(cpu="2")], "lab/two": [node(cpu="2")]}) as s:
        s.report("lab/two", lambda w, cid: w.put(cid, "lab/two", rows("2", 2000)))
        await s.decide(revision("app", app(1, 2000)))
        await s.attempt("app", "Placed")
        decision = s.ledger.standing[group("app")]
        await report_reached(s, "app")
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 500)))
        await until(lambda: group("app") in s.ledger.displaced)
        lack = s.ledger.displaced[group("app")]["lab/one"]
        assert (lack.resource, lack.needed, lack.free) == ("cpu", 2000, 1500)
        assert s.ledger.standing[group("app")].id == decision.id
        s.report("lab/two", lambda w, cid: w.put(cid, "lab/two", rows("2", 0)))
        await until(lambda: cluster_of_group(s, "app") == "lab/two")
        assert group("app") not in s.ledger.displaced
        assert s.ledger.claims[decision.claims[0].id].withdrawn


async def test_a_degraded_group_is_well_again_once_it_fits(open_mergers: OpenMergers) -> None:
    async with open_mergers(lambda: {"lab/one": [node(cpu="2")]}) as s:
        await s.decide(revision("app", app(1, 2000)))
        await s.attempt("app", "Placed")
        decision = s.ledger.standing[group("app")]
        await report_reached(s, "app")
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 500)))
        await until(lambda: group("app") in s.ledger.displaced)
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 0)))
        await until(lambda: group("app") not in s.ledger.displaced)
        assert s.ledger.standing[group("app")].claims[0].id == decision.claims[0].id


async def test_open_slots_leave_a_node_that_is_gone(open_mergers: OpenMergers) -> None:
    async with open_mergers(two_nodes) as s:
        await place(s, "one", app(1, 2000), ["n-0"])
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", [], gone=["n-0"]))
        await until(lambda: nodes_of(s, "one") == {"n-1": 1})


async def test_open_slots_leave_a_node_that_is_unusable_for_long(
    open_mergers: OpenMergers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moorage.merger.lost_nodes.LOST_AFTER", 0.3)
    async with open_mergers(two_nodes) as s:
        await place(s, "one", app(1, 2000), ["n-0"])
        broken = normalize_node(node("n-0", cpu="2", ready=False))[0]
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", [broken]))
        await until(lambda: nodes_of(s, "one") == {"n-1": 1})


async def test_the_next_merger_goes_on_counting_how_long_a_node_is_unusable(open_mergers: OpenMergers) -> None:
    async with open_mergers(two_nodes) as s:
        bucket = s.bus.bucket(stores.UNUSABLE_NODES)
        await bucket.put("lab.gone", b'{"n-0": 1}')
        await bucket.put("lab.junk", b"[]")
        await place(s, "one", app(1, 2000), ["n-0"])
        broken = node("n-0", cpu="2", ready=False)
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", [normalize_node(broken)[0]]))
        stored: list[Entry] = []

        async def is_stored() -> bool:
            stored[:] = [entry for entry in await bucket.newest("lab.one", 100) if entry.value != b"{}"]
            return bool(stored)

        await eventually(is_stored, 20, "it is stored since when the node is unusable")
        (since,) = msgspec.json.decode(stored[-1].value).values()
        assert abs(since - time.time()) < 60
        assert nodes_of(s, "one") == {"n-0": 1}
        await s.buses[0].close()
        s.mergers.clear()
        await bucket.put("lab.one", msgspec.json.encode({"n-0": since - 300}))
        s.clusters = lambda: {"lab/one": [broken, node(cpu="2")]}
        await s.merger()
        await until(lambda: nodes_of(s, "one") == {"n-1": 1}, seconds=30)

        async def forgotten() -> bool:
            return not await bucket.newest("*.*", 100)

        await eventually(forgotten, 20, "nothing is kept of clusters without open slots on unusable nodes")


async def test_slots_of_a_daemon_set_follow_the_nodes(open_mergers: OpenMergers) -> None:
    async with open_mergers(two_nodes) as s:
        each = shape(1000, 0)
        each = msgspec.structs.replace(each, object="DaemonSet/x", per_node=True, key="each")
        await s.decide(revision("each", ShapedApp(name="a", shapes=[each])))
        await s.attempt("each", "Placed")
        assert nodes_of(s, "each") == {"n-0": 1, "n-1": 1}
        more = normalize_node(node("n-2", cpu="2"))[0]
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", [more]))
        await until(lambda: nodes_of(s, "each") == {"n-0": 1, "n-1": 1, "n-2": 1})
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", [], gone=["n-0"]))
        await until(lambda: nodes_of(s, "each") == {"n-1": 1, "n-2": 1})
        await report_reached(s, "each")
        small = normalize_node(node("n-3", cpu="500m"))[0]
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", [small]))
        await until(lambda: group("each") in s.ledger.displaced)
        assert nodes_of(s, "each") == {"n-1": 1, "n-2": 1}


async def test_a_cluster_that_cannot_be_settled_holds_up_no_other(
    open_mergers: OpenMergers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Settling, cluster: str) -> None:
        if cluster == "lab/one":
            raise ZeroDivisionError
        await settle(self, cluster)

    settle = Settling._settle
    monkeypatch.setattr(Settling, "_settle", broken)
    clusters = {"lab/one": [node(cpu="2"), node(cpu="2")], "lab/two": [node(cpu="2"), node(cpu="2")]}
    async with open_mergers(lambda: clusters) as s:
        for name in ("x", "y"):
            await s.decide(revision(name, app(2, 2000)))
            await s.attempt(name, "Placed")
        for name in ("lab/one", "lab/two"):
            s.report(name, lambda w, cid: w.put(cid, w.fleet.names[cid], rows("4", 3000, 0)))
        other = next(name for name in ("x", "y") if cluster_of_group(s, name) == "lab/two")
        await until(lambda: nodes_of(s, other) == {"n-1": 2})
        monkeypatch.setattr(Settling, "_settle", settle)
        await until(lambda: nodes_of(s, "x" if other == "y" else "y") == {"n-1": 2})


async def test_open_slots_leave_a_node_that_refused_their_pods(open_mergers: OpenMergers) -> None:
    async with open_mergers(two_nodes) as s:
        await place(s, "one", app(2), ["n-0", "n-0"])
        one = claim_of(s, "one")
        assert claim_at(s, one).required_nodes == {}
        words = {one: "TopologyAffinityError: no zone"}
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", rows("2", 0, 0), refused={one: ["n-0"]}, words=words))
        await until(lambda: nodes_of(s, "one") == {"n-1": 2})
        # A preference would let the scheduler choose it again.
        assert claim_at(s, one).required_nodes == {"n-1": ""}
        assert claim_at(s, one).refused_by == {"n-0": words[one]}
        # A decision of the same pods stays away from it, too.
        await s.decide(revision("one", app(3), number=2))
        await s.attempt("one", "Pending")
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", refused={one: []}))
        await until(lambda: nodes_of(s, "one") in ({"n-1": 2, "n-0": 1}, {"n-1": 1, "n-0": 2}), seconds=60)


async def test_slots_that_move_keep_the_rules_of_pods_about_each_other(open_mergers: OpenMergers) -> None:
    nodes = [node(cpu="8"), node(cpu="8"), node(cpu="4")]
    async with open_mergers(lambda: {"lab/one": nodes}) as s:
        apart = [PodRule(kind="apart", key="kubernetes.io/hostname", pods="p")]
        one = msgspec.structs.replace(shape(1000, 2), rules=apart, marks=["p"], key="apart")
        await place(s, "one", ShapedApp(name="a", shapes=[one]), ["n-0", "n-1"])
        s.report("lab/one", lambda w, cid: w.put(cid, "lab/one", [], gone=["n-1"]))
        await until(lambda: nodes_of(s, "one") == {"n-0": 1, "n-2": 1})
