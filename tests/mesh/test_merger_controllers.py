"""Tests how the merger uses the answers of controllers: sets, counts, weights, reasons, deadlines and policies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from moorage.bus import Incoming, subjects
from moorage.candidates import pack
from moorage.controllers.cluster_selection.core.selection import decide as select_clusters
from moorage.fleet.delta import CORDONED
from moorage.merger.concurrency import SLOTS
from moorage.model.attempts import ClaimView
from moorage.model.candidates import Answer, AppAnswer, Ask, CandidateGroup
from moorage.model.claims import Claim
from moorage.model.groups import Decide, Revision
from moorage.model.machine_slots import slot_resource
from moorage.model.part_requests import PartGroup
from moorage.model.shapes import EXCLUSIVE, Intent, OptionalNeed, Shape, ShapedApp
from moorage_testkit.fleets import node
from moorage_testkit.merger_harness import (
    Clusters,
    OpenMergers,
    allow_only,
    group,
    revision,
    shape,
    silent,
    three_clusters,
)
from moorage_testkit.mesh_client import eventually
from moorage_testkit.polling import until


async def test_cluster_names_and_packed_sets_are_intersected(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        await s.controller("outsider", allow_only("lab/c-1", "lab/c-2", "nowhere/x"))

        async def packed(incoming: Incoming) -> bytes:
            fleet = s.writers[0].fleet
            sets = [CandidateGroup(mode="deny", clusters=pack(fleet.clusters.mask(["lab/c-1"])))]
            return msgspec.json.encode(Answer(apps={"a": AppAnswer(groups=sets)}))

        await s.controller("insider", packed)
        await s.decide(revision("shop"))
        assert (await s.attempt("shop", "Placed")).apps["a"].clusters == ["lab/c-2"]


async def test_contradicting_counts_fail(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        await s.controller("two", allow_only("lab/c-1", "lab/c-2", count=2))
        await s.controller("one", allow_only("lab/c-1", "lab/c-2", count=1))
        await s.decide(revision("shop"))
        failed = await s.attempt("shop", "Failed")
        assert [r.code for r in failed.reasons] == ["ReplicasConflict"]
        assert "one 1" in failed.reasons[0].message


async def test_a_count_that_contradicts_replicas_fails(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        await s.controller("two", allow_only("lab/c-1", "lab/c-2", count=2))
        await s.decide(revision("shop"))
        (reason,) = (await s.attempt("shop", "Failed")).reasons
        assert reason.code == "ReplicasConflict" and "the application 1" in reason.message


async def test_a_controller_that_excludes_clusters_without_reasons_is_named(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        await s.controller("mine", allow_only())
        await s.decide(revision("shop"))
        pending = await s.attempt("shop", "Pending")
        assert ("ControllerExcludes", "mine", 3) in {(r.code, r.by, r.clusters) for r in pending.reasons}


async def test_weights_decide_and_granted_needs_are_recorded(open_mergers: OpenMergers) -> None:
    """A controller with weight 10 of 19 wins. When an app grows, an optional need stays granted only if the new pods have it, too."""

    def clusters() -> Clusters:
        return {
            "lab/nine": [node(cpu="64", resources={"example.com/nine": "2"})],
            "lab/ten": [node(cpu="6", resources={"example.com/ten": "2"})],
        }

    def app(count: int) -> ShapedApp:
        wishes = [
            OptionalNeed(consumer="c", name=f"example.com/{n}", weight=w, resources={f"example.com/{n}": 1})
            for n, w in (("ten", 10), ("nine", 9))
        ]
        return ShapedApp(name="a", shapes=[shape(1000, count, optional=wishes)])

    def grants(claim: Claim | ClaimView) -> list[tuple[str, str, bool]]:
        return [(g.consumer, g.need, g.granted) for g in claim.optional]

    async with open_mergers(clusters) as s:
        for number, (count, granted) in enumerate([(1, True), (2, True), (3, False)], start=1):
            await s.decide(revision("shop", app(count), number=number))
            await until(lambda number=number: any(a.revision == number for a in s.attempts("shop")))  # type: ignore[misc]
            (claim,) = s.ledger.standing[group("shop")].claims
            assert claim.cluster == "lab/ten"
            assert grants(claim) == [("c", "example.com/ten", granted), ("c", "example.com/nine", False)]
            view = await s.attempt("shop", "Placed")
            assert grants(view.apps["a"].claims[0])[1:] == grants(claim)[1:]


async def test_an_app_for_all_selected_clusters_is_placed_on_all_or_none(open_mergers: OpenMergers) -> None:
    """Unless `partial` is set."""

    def clusters() -> Clusters:
        return {f"lab/c-{i}": [node(cpu="2" if i == 2 else "4")] for i in range(4)}

    async with open_mergers(clusters) as s:
        _, fleet = await s.connect("labels")

        async def labels(incoming: Incoming) -> Answer:
            return select_clusters(msgspec.json.decode(incoming.data, type=Ask), fleet)

        await s.controller("labels", labels, policy="required", steady=True)
        s.report("lab/c-3", lambda w, cid: w.set_state(cid, CORDONED))

        def asks(cpu: int, *, partial: bool = False, number: int = 1) -> Revision:
            found = {"count": 0, "partial": partial, "allOf": [{"provider": "lab"}]}
            spec = msgspec.Raw(msgspec.json.encode({"group": "g", "app": "a", "sets": [found]}))
            app = ShapedApp(name="a", replicas=0, shapes=[shape(cpu, template=str(cpu))])
            record = revision("shop", app, number=number)
            record.intents = [Intent(kind="PlacementIntent", name="p", spec=spec)]
            return record

        await s.decide(asks(3000))
        (reason,) = [r for r in (await s.attempt("shop", "Pending")).reasons if r.code == "NotEnoughClusters"]
        assert (reason.needed, reason.free, reason.samples) == ("4", "2", ["lab/c-2", "lab/c-3"])
        assert reason.message.endswith("every one must take it, and lab/c-2, lab/c-3 cannot")
        would = await s.simulate(asks(3000, partial=True))
        assert would.apps["a"].clusters == ["lab/c-0", "lab/c-1"]
        (warning,) = would.warnings
        assert (warning.code, warning.message.partition(" cannot")[0]) == ("ClustersLeftOut", "lab/c-2, lab/c-3")
        s.report("lab/c-3", lambda w, cid: w.set_state(cid, 0))
        await s.decide(asks(1000, number=2))
        placed = await s.attempt("shop", "Placed")
        assert sorted(placed.apps["a"].clusters) == [f"lab/c-{i}" for i in range(4)] and not placed.warnings


async def test_exclusive_cores_go_to_clusters_that_report_them(open_mergers: OpenMergers) -> None:
    async with open_mergers(lambda: {"lab/a": [node(cpu="64")], "lab/z": [node(cpu="8", exclusive=4)]}) as s:
        cores = Shape(key="x", object="Deployment/x", resources={"cpu": 2000, EXCLUSIVE: 2, "pods": 1})
        would = await s.simulate(revision("shop", ShapedApp(name="a", shapes=[cores])))
        assert would.apps["a"].clusters == ["lab/z"]


async def test_controllers_are_asked_about_groups_that_concern_them(open_mergers: OpenMergers) -> None:
    """One that is not asked excludes nothing and prevents nothing, even if it is required and does not answer."""
    async with open_mergers(three_clusters) as s:
        await s.controller("places", silent, policy="required", deadline_ms=100, concerns=["PlacementIntent"])
        await s.controller("devices", allow_only(), policy="required", concerns=["devices", "parts", "machines"])
        await s.controller("stranger", allow_only("lab/c-2"))
        await s.decide(revision("plain"))
        placed = await s.attempt("plain", "Placed")
        assert {a.name: a.outcome for a in placed.controllers} == {
            "hpa": "answered",
            "places": "skipped",
            "devices": "skipped",
            "stranger": "answered",
        }
        assert placed.apps["a"].clusters == ["lab/c-2"] and not placed.warnings

        chosen = revision("chosen")
        chosen.intents = [Intent(kind="PlacementIntent", name="p", spec=msgspec.Raw(b"{}"))]
        await s.decide(chosen)
        (reason,) = (await s.attempt("chosen", "Pending")).reasons
        assert (reason.code, reason.by) == ("ControllerTimeout", "places")

        slot = {"cpu": 1000, slot_resource("m/t"): 1, "pods": 1}
        for name, asking in {
            "parts": shape(1000, groups=[PartGroup(suffix="_1", resources={"FPGA": 1})]),
            "machines": Shape(key="machines", object="Deployment/x", resources=slot),
        }.items():
            await s.decide(revision(name, ShapedApp(name="a", shapes=[asking])))
            asked = (await s.attempt(name, "Pending")).controllers
            assert {a.name: a.outcome for a in asked}["devices"] == "answered"


async def test_reasons_consider_only_clusters_that_the_placement_selects(open_mergers: OpenMergers) -> None:
    """The same holds for simulations. The blocking app comes first."""

    def clusters() -> Clusters:
        return {f"{where}/c-{i}": [node(cpu="4" if i else "2")] for where in ("eu", "us") for i in range(3)}

    async with open_mergers(clusters) as s:
        _, fleet = await s.connect("labels")

        async def labels(incoming: Incoming) -> Answer:
            return select_clusters(msgspec.json.decode(incoming.data, type=Ask), fleet)

        await s.controller("labels", labels, policy="required", steady=True)
        for cluster in ("eu/c-2", "us/c-2"):
            s.report(cluster, lambda w, cid: w.set_state(cid, CORDONED))
        spec = {"group": "g", "app": "blocks", "allOf": [{"provider": "eu"}]}
        fits = ShapedApp(name="fits", shapes=[shape(3000)])
        blocks = ShapedApp(
            name="blocks", shapes=[Shape(key="y", object="Deployment/y", resources={"cpu": 9000, "pods": 1})]
        )
        record = revision("shop", fits, blocks)
        record.intents = [Intent(kind="PlacementIntent", name="p", spec=msgspec.Raw(msgspec.json.encode(spec)))]
        await s.decide(record)
        for attempt in (await s.attempt("shop", "Pending"), await s.simulate(record)):
            about = [r.app for r in attempt.reasons]
            assert about[0] == "blocks" and about.index("fits") > max(i for i, app in enumerate(about) if not app)
            relevant = [r for r in attempt.reasons if r.app in ("", "blocks") and r.code != "PlacementExcludes"]
            assert {(r.code, r.by, r.clusters) for r in relevant} == {
                ("NotEnoughClusters", "merger", 3),
                ("ClusterCordoned", "merger", 1),
                ("ClusterCordoned", "hpa", 1),
                ("ResourceShort", "hpa", 2),
            }
            assert {name for r in relevant for name in r.samples} == {"eu/c-0", "eu/c-1", "eu/c-2"}
            (short,) = [r for r in relevant if r.code == "NotEnoughClusters"]
            assert short.message.startswith("0 of 3 that the placement leaves qualify")
            (other,) = [r for r in attempt.reasons if (r.app, r.code) == ("fits", "ResourceShort")]
            assert set(other.samples) == {"eu/c-0", "us/c-0"}, "its own placement leaves all"


async def test_slow_controllers_do_not_delay_other_groups(open_mergers: OpenMergers) -> None:
    """There are far more groups than are decided at once."""
    async with open_mergers(lambda: {"lab/a": [node(cpu="400", pods="1000")]}) as s:
        await s.controller("slow", silent, deadline_ms=4000)
        names = [f"g-{i}" for i in range(4 * SLOTS)]
        began = asyncio.get_running_loop().time()
        await s.decide(*(revision(name) for name in names))
        for name in names:
            await s.attempt(name, "Placed")
        took = asyncio.get_running_loop().time() - began
        assert took < 4 * 4, "they took turns of one deadline each"


async def test_a_contested_decision_keeps_the_deadline(open_mergers: OpenMergers) -> None:
    """Others take the capacity while slow controllers are asked; a merger that cannot ask again in time says so and retries."""
    took: list[float] = []

    def timed(decide: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def timing(*args: Any, **kwargs: Any) -> Any:
            began = asyncio.get_running_loop().time()
            try:
                return await decide(*args, **kwargs)
            finally:
                took.append(asyncio.get_running_loop().time() - began)

        return timing

    async def slow(_: Incoming) -> Answer:
        await asyncio.sleep(5)
        return Answer()

    async with open_mergers(lambda: {f"lab/c-{i}": [node(cpu="2"), node(cpu="2")] for i in range(4)}, mergers=3) as s:
        for merger in s.mergers:
            merger.decider.decide = timed(merger.decider.decide)
        await s.controller("slow", slow, policy="required", deadline_ms=5300)
        await s.controller("hpa", None, policy="required", deadline_ms=5300)
        names = [f"g-{i}" for i in range(40)]
        await s.decide(*(revision(name, at=f"{i:03}") for i, name in enumerate(names)))
        await until(lambda: len([n for n in names if any(a.phase == "Placed" for a in s.attempts(n))]) == 16, 60)
        await until(lambda: all(s.attempts(name) for name in names), 60)
        # Forty groups at once on a busy machine: a second round of asks would take another 5 s.
        assert max(took) < 5.3 + 0.05 + 4


def answering(data: bytes) -> Callable[[Incoming], Awaitable[bytes]]:
    async def answer(_: Incoming) -> bytes:
        return data

    return answer


NONSENSE = {
    "not JSON": b"\xff\xfe",
    "another type": b"[1, 2]",
    "no set": b'{"apps": {"a": {"groups": [{"mode": "allow", "clusters": {"format": "roaring", "data": "AAAA"}}]}}}',
    "another app": b'{"apps": {"nobody": {"groups": []}}}',
    "a score of two": b'{"apps": {"a": {"levels": [{"value": 2, "clusters": []}]}}}',
    "deep": b'{"apps":' * 5000,
    "its own problem": b'{"problem": {"title": "Busy", "status": 503, "code": "Busy"}}',
    "an error": b'{"error": "no idea"}',
    "too much": b'{"apps": {}, "epoch": "' + b"x" * (5 << 20) + b'"}',
}


@pytest.mark.parametrize("kind", NONSENSE)
async def test_an_invalid_answer_counts_as_an_error(open_mergers: OpenMergers, kind: str) -> None:
    async with open_mergers(three_clusters) as s:
        await s.controller("odd", answering(NONSENSE[kind]))
        await s.decide(revision("shop"))
        placed = await s.attempt("shop", "Placed")
        odd = next(a for a in placed.controllers if a.name == "odd")
        assert odd.outcome == "error"
        assert odd.error
        assert any(w.code == "ControllerLeftOut" for w in placed.warnings)
        await s.controller("odd", None, policy="required")
        await s.decide(revision("other"))
        pending = await s.attempt("other", "Pending")
        assert ("ControllerError", "odd") in {(r.code, r.by) for r in pending.reasons}


async def test_deadlines_hold_when_controllers_are_dead(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        for i in range(4):

            async def slow(incoming: Incoming) -> Answer:
                await asyncio.sleep(0.5)
                return await allow_only("lab/c-0", "lab/c-1")(incoming)

            await s.controller(f"slow-{i}", slow, deadline_ms=900)
        await s.controller("dead", silent, deadline_ms=1000)
        loop = asyncio.get_running_loop()
        took: list[float] = []
        while not took or (min(took) > 1.7 and len(took) < 6):  # other processes of this machine may use part of it
            name = f"g{len(took)}"
            started = loop.time()
            await s.bus.publish(subjects.GROUPS_DECIDE, Decide(record=revision(name)))
            await s.attempt(name, "Placed")
            took.append(loop.time() - started)
        assert min(took) <= 1.8, took
        explained: list[float] = []
        while not explained or (min(explained) > 3.5 and len(explained) < 4):
            name = f"huge{len(explained)}"
            started = loop.time()
            huge = revision(name, ShapedApp(name="a", shapes=[shape(64000)]))
            await s.bus.publish(subjects.GROUPS_DECIDE, Decide(record=huge))
            pending = await s.attempt(name, "Pending")
            explained.append(loop.time() - started)
        assert min(explained) <= 3.5, "asking for reasons stays within the largest deadline too"
        assert {a.name: a.outcome for a in pending.controllers}["dead"] == "timeout"


async def test_a_group_waits_for_a_silent_required_controller(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        answers: dict[str, Callable[[Incoming], Awaitable[Any]]] = {"now": silent}

        async def changing(incoming: Incoming) -> Any:
            return await answers["now"](incoming)

        await s.controller("must", changing, policy="required", deadline_ms=100)
        await s.decide(revision("shop"))
        pending = await s.attempt("shop", "Pending")
        assert [r.code for r in pending.reasons] == ["ControllerTimeout"]
        answers["now"] = allow_only("lab/c-1")
        assert (await s.attempt("shop", "Placed")).apps["a"].clusters == ["lab/c-1"]


async def test_stale_ok_reuses_the_last_answer_for_the_revision(open_mergers: OpenMergers) -> None:
    async with open_mergers(lambda: {"lab/c-1": [node(cpu="4")], "lab/c-2": [node(cpu="4")]}) as s:
        answers: dict[str, Callable[[Incoming], Awaitable[Any]]] = {"now": allow_only("lab/c-1")}

        async def changing(incoming: Incoming) -> Any:
            return await answers["now"](incoming)

        await s.controller("memory", changing, policy="stale-ok", deadline_ms=100)

        async def remembered() -> bool:
            found = await s.simulate(revision("shop"))
            return bool({a.name: a.outcome for a in found.controllers}["memory"] == "answered")

        await eventually(remembered, 40, "it answered in time")
        answers["now"] = silent
        again = await s.simulate(revision("shop"))
        assert again.apps["a"].clusters == ["lab/c-1"]
        assert {a.name: a.outcome for a in again.controllers}["memory"] == "stale"
        other = await s.simulate(revision("another"))
        assert {a.name: a.outcome for a in other.controllers}["memory"] == "timeout"


async def test_a_changed_notice_retries_the_groups_that_it_rejected(open_mergers: OpenMergers) -> None:
    async with open_mergers(three_clusters) as s:
        answers: dict[str, Callable[[Incoming], Awaitable[Any]]] = {"now": allow_only()}

        async def changing(incoming: Incoming) -> Any:
            return await answers["now"](incoming)

        await s.controller("moody", changing)
        await s.decide(revision("shop"))
        await s.attempt("shop", "Pending")
        answers["now"] = allow_only("lab/c-0")
        await s.bus.publish(subjects.controller("moody", "changed"), b"{}")
        assert (await s.attempt("shop", "Placed")).apps["a"].clusters == ["lab/c-0"]
