"""Tests which waiting groups a change may help."""

from __future__ import annotations

import numpy as np
import pytest

from moorage.fleet import Epoch
from moorage.merger.core.delayed import Delayed
from moorage.merger.core.responses import AskedAt
from moorage.merger.core.round import Round
from moorage.merger.core.wait_queue import BACK_OFF, BACK_OFF_MOST, WaitQueue
from moorage.merger.core.waiting_news import NUMBERS_STAND, is_news
from moorage.model.attempts import Attempt
from moorage.model.candidates import Answer
from moorage.model.groups import Phase, Revision
from moorage.model.reasons import Reason
from moorage.model.shapes import Shape, ShapedApp
from moorage_testkit.fleets import fleet_of, node


def record(name: str, cpu: int, at: str = "") -> Revision:
    shape = Shape(key=str(cpu), object="Deployment/x", resources={"cpu": cpu})
    return Revision(group=name, revision=1, tenant="p", apps=[ShapedApp(name="a", shapes=[shape])], instantiated=at)


def refused(name: str, *codes: str, phase: Phase = "Pending") -> Attempt:
    reasons = [Reason(code=code, by="hpa") for code in codes]
    return Attempt(group=name, revision=1, phase=phase, reasons=reasons)


def test_only_rows_that_improved_and_have_room_wake_a_group() -> None:
    fleet = fleet_of({"lab/one": [node(cpu="4"), node(cpu="1")]})
    waiting = WaitQueue()
    for name, cpu in (("small", 500), ("medium", 2000), ("large", 9000)):
        waiting.put(record(name, cpu), None)
    assert waiting.helped_by(fleet, None) == {}, "somebody is deciding them for the first time"
    for name in waiting.groups:
        waiting.refused(name, refused(name, "ResourceShort"), 0.0, untested=True)
    all_rows, no_rows = waiting.helped_by(fleet, np.zeros(0, np.intp)), np.zeros(0, np.intp)
    assert set(all_rows) == {"small", "medium"}, "what is new is tested against everything once"
    assert waiting.helped_by(fleet, no_rows) == {}
    assert set(waiting.helped_by(fleet, np.array([1]))) == {"small"}
    assert set(waiting.helped_by(fleet, None)) == {"small", "medium"}
    assert waiting.still_helped(fleet, "small", np.array([1]))
    fleet.take(1, {"cpu": 800})
    assert not waiting.still_helped(fleet, "small", np.array([1]))


def test_an_update_is_helped_by_any_room_where_the_group_runs() -> None:
    """Its pods need only what they need beyond those that run."""
    fleet = fleet_of({"lab/one": [node(cpu="4"), node(cpu="4")], "lab/two": [node(cpu="4")]})
    waiting = WaitQueue(lambda group: {fleet.ids["lab/one"]} if group == "runs" else ())
    for name in ("runs", "new"):
        waiting.put(record(name, 9000), None)
        waiting.refused(name, refused(name, "ResourceShort"), 0.0, untested=True)
    assert set(waiting.helped_by(fleet, None)) == {"runs"}
    row, other = fleet.row_of(fleet.ids["lab/one"], "n-1"), fleet.row_of(fleet.ids["lab/two"], "n-0")
    assert row is not None and other is not None
    assert set(waiting.helped_by(fleet, np.array([row]))) == {"runs"} and waiting.still_helped(
        fleet, "runs", np.array([row])
    )
    assert waiting.helped_by(fleet, np.array([other])) == {}


def test_groups_that_share_rows_share_their_unions() -> None:
    """Checks that groups share unions: with many groups waiting, one for each would cost more than the decisions."""
    rng = np.random.default_rng(1)
    waiting = WaitQueue()
    names = [f"g{i}" for i in range(20)]
    for name in names:
        waiting.put(record(name, 500), None)
    current = Round(waiting, (), {})
    expected: dict[str, set[int]] = {}
    for _ in range(12):
        shared = [rng.integers(0, 50, 5) for _ in range(2)]
        rows = {name: shared[int(rng.integers(2))] for name in names if rng.random() < 0.7}
        current.add(rows)
        for name, more in rows.items():
            expected[name] = expected.get(name, set()) | set(more.tolist())
        assert {name: set(found.tolist()) for name, found in current.rows.items()} == expected
    current = Round(waiting, (), dict.fromkeys(names, np.arange(3)))
    current.add(dict.fromkeys(names, np.arange(2, 5)))
    assert all(found is current.rows["g0"] for found in current.rows.values())


def test_the_oldest_comes_first_and_what_failed_waits_for_documents() -> None:
    fleet = fleet_of({"lab/one": [node(cpu="4")]})
    waiting = WaitQueue()
    for name, at in (("c", "2026-01-03"), ("a", "2026-01-02"), ("b", "2026-01-01")):
        waiting.put(record(name, 100, at), None)
        waiting.refused(name, refused(name, "ResourceShort"), 0.0, untested=True)
    assert waiting.oldest_first(["a", "b", "c", "gone"]) == ["b", "a", "c"]
    waiting.refused("b", refused("b", "ReplicasConflict", phase="Failed"), 0.0, untested=True)
    assert set(waiting.helped_by(fleet, None)) == {"a", "c"}


def without_pods(name: str, *shapes: Shape) -> Revision:
    return Revision(group=name, revision=1, tenant="p", apps=[ShapedApp(name="a", shapes=list(shapes))])


def test_what_has_no_pods_waits_for_a_cluster_and_for_nothing_else() -> None:
    fleet = fleet_of({f"lab/c-{i}": [node(cpu="4")] for i in range(3)})
    waiting = WaitQueue()
    some_rows, no_rows = np.array([0]), np.zeros(0, np.intp)
    names = {"bare", "scaled to none"}
    waiting.put(without_pods("bare"), None)
    waiting.put(without_pods("scaled to none", Shape(key="none", object="Deployment/x", count=0)), None)
    waiting.clusters_opened([0], (1, 5))
    assert waiting.helped_by(fleet, no_rows) == {}, "somebody is deciding them for the first time"
    for name in names:
        seen = refused(name, "NotEnoughClusters")
        seen.epoch = "1.5"
        waiting.refused(name, seen, 0.0, untested=True)
    assert waiting.helped_by(fleet, some_rows) == {}, (
        "who refused them knew of all that opened; room is nothing to them"
    )
    waiting.clusters_opened([1], (1, 9))
    assert set(waiting.helped_by(fleet, no_rows)) == names
    assert all(waiting.still_helped(fleet, name, no_rows) for name in names)
    for name in names:
        seen = refused(name, "NotEnoughClusters")
        seen.epoch = "1.8"
        waiting.refused(name, seen, 0.0, untested=True)
    assert not any(waiting.still_helped(fleet, name, some_rows) for name in names)
    assert set(waiting.helped_by(fleet, no_rows)) == names, "refused by who had not seen that one yet"
    for name in names:
        waiting.refused(name, refused(name, "NotEnoughClusters"), 0.0, untested=False)
    assert waiting.helped_by(fleet, some_rows) == {}
    waiting.groups["bare"].confined, waiting.groups["bare"].confined_among = (
        [np.packbits([True, False, False]).tobytes()],
        3,
    )
    waiting.clusters_opened([2], (1, 10))
    assert set(waiting.helped_by(fleet, no_rows)) == {"scaled to none"}, "the other is kept from there"


def test_a_cluster_that_came_later_was_not_known_to_who_confined_an_app() -> None:
    fleet = fleet_of({f"lab/c-{i}": [node(cpu="4")] for i in range(5)})
    waiting = WaitQueue()
    for record_ in (record("pods", 1000), without_pods("bare")):
        waiting.put(record_, None)
        waiting.refused(record_.group, refused(record_.group, "NotEnoughClusters"), 0.0, untested=False)
        waiter = waiting.groups[record_.group]
        waiter.confined, waiter.confined_among = [np.packbits([True, False, False, False]).tobytes()], 4
    at = [int(fleet.rows_of(cid)[0]) for cid in range(5)]
    waiting.clusters_opened([3], (0, 0))
    assert waiting.helped_by(fleet, np.array([at[3]])) == {}
    waiting.clusters_opened([4], (0, 0))
    assert set(waiting.helped_by(fleet, np.array([at[4]]))) == {"pods", "bare"}
    assert waiting.still_helped(fleet, "pods", np.array([at[4]]))


def test_silence_is_retried_with_growing_delays() -> None:
    waiting = WaitQueue()
    waiting.put(record("a", 1), 1.0)
    assert waiting.due(1.0) == {"a"}
    delays = []
    for _ in range(10):
        waiting.refused("a", refused("a", "ControllerTimeout"), 100.0, untested=False)
        due = waiting.next_due()
        assert due is not None
        delays.append(due - 100)
    assert delays[:3] == [BACK_OFF, 2 * BACK_OFF, 4 * BACK_OFF]
    assert delays[-1] == BACK_OFF_MOST
    waiting.refused("a", refused("a", "ResourceShort"), 100.0, untested=False)
    assert waiting.next_due() is None


def test_a_newer_revision_takes_the_place_and_older_tries_say_nothing_of_it() -> None:
    waiting = WaitQueue()
    waiting.put(record("a", 1), None)
    newer = record("a", 2)
    newer.revision = 2
    waiting.put(newer, None)
    waiting.refused("a", refused("a", "ResourceShort"), 0.0, untested=False)
    assert waiting.groups["a"].attempt is None
    assert waiting.groups["a"].record.revision == 2
    waiting.put(record("a", 1), None)
    assert waiting.groups["a"].record.revision == 2


def test_delayed_values_are_due_in_the_order_in_which_they_were_put_last() -> None:
    delayed: Delayed[int] = Delayed(1.0)
    assert not delayed and delayed.next_due() is None
    delayed.put("a", 1, 0.0)
    delayed.put("b", 2, 0.25)
    delayed.put("a", 3, 0.5)
    assert delayed.next_due() == 1.25
    assert delayed.due(1.2) == []
    assert delayed.due(1.25) == ["b"]
    assert delayed.due(2.0) == ["b", "a"]
    assert (delayed.get("a"), delayed.pop("a"), delayed.pop("a")) == (3, 3, None)


def test_answers_from_before_the_newest_changes_are_asked_for_again_with_growing_delays() -> None:
    waiting = WaitQueue()
    waiting.put(record("a", 1), None)
    delays = []
    for _ in range(10):
        waiting.refused("a", refused("a", "ResourceShort"), 100.0, untested=False, outdated=True)
        delays.append((waiting.next_due() or 0) - 100)
    assert delays[:3] == [BACK_OFF, 2 * BACK_OFF, 4 * BACK_OFF] and delays[-1] == BACK_OFF_MOST
    waiting.refused("a", refused("a", "ResourceShort"), 100.0, untested=False)
    assert waiting.next_due() is None


def test_changes_do_not_shorten_the_delay_of_a_group_for_which_a_controller_is_silent() -> None:
    fleet = fleet_of({"lab/one": [node(cpu="4")]})
    waiting = WaitQueue()
    for name in ("silent", "short"):
        waiting.put(record(name, 500), None)
    waiting.refused("silent", refused("silent", "ControllerTimeout"), 0.0, untested=False)
    waiting.refused("short", refused("short", "ResourceShort"), 0.0, untested=False)
    assert set(waiting.helped_by(fleet, None)) == {"short"}
    assert waiting.due(BACK_OFF) == {"silent"}


def test_groups_that_were_put_off_are_tried_once_a_controller_answers() -> None:
    waiting = WaitQueue()
    for name in ("silent", "put off"):
        waiting.put(record(name, 500), None)
    waiting.refused("silent", refused("silent", "ControllerTimeout"), 0.0, untested=False)
    waiting.postpone(["put off"], 10.0)
    waiting.bring_forward(0.1)
    assert waiting.due(0.1) == {"put off"} and waiting.due(BACK_OFF) == {"put off", "silent"}


@pytest.mark.parametrize(
    ("epoch", "sequence", "outdated"),
    [("2.7", 5, False), ("2.8", 6, False), ("2.6", 5, True), ("1.9", 5, True), ("2.7", 4, True), ("", 0, False)],
)
def test_an_answer_is_outdated_if_its_controller_had_seen_less(epoch: str, sequence: int, outdated: bool) -> None:
    """A controller that does not say what it has seen counts as current."""
    assert AskedAt(Epoch(2, 7), 5).is_ahead_of(Answer(epoch=epoch, sequence=sequence)) is outdated


def told(message: str, free: str = "1", phase: Phase = "Pending") -> Attempt:
    reasons = [Reason(code="SlotShort", by="machine", free=free, message=message)]
    return Attempt(group="a", revision=1, phase=phase, reasons=reasons)


def test_words_and_figures_of_reasons_are_published_at_once_and_numbers_in_words_now_and_then() -> None:
    waiting = WaitQueue()
    waiter = waiting.put(record("a", 1), None)
    first = told("2 of 3 slots of g/large are in use")
    assert is_news(waiter, first, 100.0), "nothing was published yet"
    waiting.told("a", first, 100.0)
    assert not is_news(waiter, first, 1000.0)
    assert is_news(waiter, told("g/large is for project p only"), 100.0)
    assert is_news(waiter, told(first.reasons[0].message, free="2"), 100.0)
    assert is_news(waiter, told(first.reasons[0].message, phase="Failed"), 100.0)
    other = told("1 of 3 slots of g/large are in use")
    assert not is_news(waiter, other, 100.0 + NUMBERS_STAND - 1)
    assert is_news(waiter, other, 100.0 + NUMBERS_STAND)
    waiting.told("a", other, 200.0)
    assert not is_news(waiter, other, 1000.0) and not is_news(waiter, first, 201.0)
    newer = told("no", free="9")
    newer.revision = 2
    waiting.told("a", newer, 300.0)
    assert waiter.told is other, "it is about a revision that does not wait"
