"""A group's phase is derived from its document, the log and the status."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.ledger import Ledger
from moorage.model.attempts import Attempt
from moorage.model.claims import Claim, Commit, Decision, IntentRef, Release, Withdrawal
from moorage.model.desired_state import DesiredRecord
from moorage.model.phases import phase
from moorage.model.reasons import Reason
from moorage.model.status import AppStatus, Confirm, GroupStatus, ObjectStatus
from moorage.patcher.core.claim_removal import may_remove, removed_claims
from moorage.patcher.core.cluster_apps import ClusterApps
from moorage.patcher.core.group_status import GroupHead, apply_failures, conclude, learn

READY: Any = "Ready"
BUSY, FAILED = "Progressing", "Failed"


def status(
    *states: Any, decision: str = "d", reached: bool = False, reasons: list[Reason] | None = None
) -> GroupStatus:
    apps = [
        AppStatus(app=f"a{i}", cluster="c", version=5 if s else 4, objects=[ObjectStatus(object="o", state=s or READY)])
        for i, s in enumerate(states)
    ]
    return GroupStatus(
        group="g",
        revision=1,
        phase="Draft",
        decision=decision,
        version=5,
        apps=apps,
        reached=reached,
        reasons=reasons or [],
    )


def tried(outcome: Any, revision: int = 1) -> Attempt:
    return Attempt(group="g", revision=revision, phase=outcome)


@pytest.mark.parametrize(
    ("state", "decision", "counting", "attempt", "known", "expected"),
    [
        ("Created", "", False, None, None, "Draft"),
        ("Approved", "", False, tried("Pending"), None, "Draft"),
        ("Instantiated", "", False, None, None, "Deciding"),
        ("Instantiated", "", False, tried("Pending"), None, "Pending"),
        ("Instantiated", "", False, tried("Failed"), None, "Failed"),
        ("Instantiated", "", False, tried("Pending", 7), None, "Deciding"),
        ("Instantiated", "", False, tried("Placed"), None, "Deciding"),
        ("Instantiated", "d", True, tried("Placed"), None, "Placed"),
        ("Instantiated", "d", True, None, status(READY, decision="older"), "Placed"),
        ("Instantiated", "d", True, None, status(None, READY), "Deploying"),
        ("Instantiated", "d", True, None, status(BUSY, READY), "Deploying"),
        ("Instantiated", "d", True, None, status(BUSY, READY, reached=True), "Degraded"),
        ("Instantiated", "d", True, None, status(READY, READY), "Running"),
        ("Instantiated", "d", True, None, status(READY, FAILED), "Degraded"),
        ("Instantiated", "d", True, None, status(READY, reasons=[Reason(code="PatchConflict")]), "Degraded"),
        ("Instantiated", "d", True, tried("Pending", 2), status(READY), "Running"),
        ("Terminated", "d", True, None, status(READY), "Terminating"),
        ("Terminated", "", True, None, status(READY), "Terminating"),
        ("Terminated", "", False, None, status(READY), "Terminated"),
        ("Terminated", "", False, tried("Pending"), None, "Terminated"),
    ],
)
def test_phase(state: Any, decision: str, counting: bool, attempt: Any, known: Any, expected: str) -> None:
    assert phase(state, 1, decision, counting, attempt, known) == expected


def decision(ident: str, revision: int, **where: str) -> Decision:
    claims = [
        Claim(
            id=claim,
            decision=ident,
            intent=IntentRef(kind="Application", name="g", revision=revision),
            tenant="t",
            slots=[],
            app="a",
            object="Deployment/o",
            cluster=cluster,
        )
        for claim, cluster in where.items()
    ]
    return Decision(id=ident, group="g", revision=revision, claims=claims)


def confirm(version: int, as_of: float = 1, removed: bool = False) -> Confirm:
    objects = [] if removed else [ObjectStatus(object="Deployment/o", state=READY)]
    return Confirm(group="g", app="a", version=version, as_of=as_of, removed=removed, objects=objects)


def test_a_move_from_one_cluster_to_another() -> None:
    ledger, head = Ledger(), GroupHead("g", 1, "Instantiated")
    ledger.fold(1, Commit(id="1", entries=[decision("d1", 1, x="one")]))
    desired = DesiredRecord(group="g", revision=1, decision="d1", version=1)
    first = conclude("g", head, ledger, desired, None, {})
    assert (first.phase, [a.cluster for a in first.apps]) == ("Deploying", ["one"])
    known = learn(confirm(1), "one", None)
    assert known is not None
    confirmed = {("a", "one"): known}
    second = conclude("g", head, ledger, desired, first, confirmed)
    assert (second.phase, second.reached) == ("Running", True)

    ledger.fold(2, Commit(id="2", entries=[decision("d2", 1, y="two")]))
    assert conclude("g", head, ledger, desired, second, confirmed).phase == "Placed", "nothing was handed out yet"
    assert removed_claims(ledger, "g", desired, confirmed) == []
    apps = ClusterApps(ledger)
    assert [bool(a.claims) for a in apps.on("one") + apps.on("two")] == [False, True]
    desired = DesiredRecord(group="g", revision=1, decision="d2", version=2)
    third = conclude("g", head, ledger, desired, second, confirmed)
    assert (third.phase, third.reached) == ("Deploying", False)
    assert removed_claims(ledger, "g", desired, confirmed) == [], "what is confirmed is about the version before"
    gone = learn(confirm(2, 2, removed=True), "one", known)
    assert gone is not None
    confirmed["a", "one"] = gone
    (removed,) = removed_claims(ledger, "g", desired, confirmed)
    assert (removed.claims, removed.cluster, removed.as_of) == (["x"], "one", 2)
    ledger.fold(3, Commit(id="3", entries=[Release(claims=["x"])]))
    assert removed_claims(ledger, "g", desired, confirmed) == []
    assert [a.cluster for a in conclude("g", head, ledger, desired, third, confirmed).apps] == ["two"]


def test_a_cluster_that_left_the_fleet_is_not_where_a_group_is_known_to_run() -> None:
    ledger, head = Ledger(), GroupHead("g", 1, "Instantiated")
    ledger.fold(1, Commit(id="1", entries=[decision("d1", 1, x="one")]))
    desired = DesiredRecord(group="g", revision=1, decision="d1", version=1)
    known = learn(confirm(1), "one", None)
    assert known is not None
    confirmed = {("a", "one"): known}
    runs = conclude("g", head, ledger, desired, None, confirmed, {"another"})
    assert (runs.phase, runs.reasons) == ("Running", [])
    gone = conclude("g", head, ledger, desired, runs, confirmed, {"one"})
    assert (gone.phase, [(r.code, r.cluster) for r in gone.reasons]) == ("Degraded", [("ClusterGone", "one")])
    assert "moorage delete cluster one --abandon-claims" in gone.reasons[0].message
    for later, advice in (
        (GroupHead("g", 2, "Instantiated"), "revision 2 waits for another cluster"),
        (GroupHead("g", 1, "InstantiateStopped"), "`moorage instantiate g` places it again"),
    ):
        (reason,) = conclude("g", later, ledger, desired, gone, confirmed, {"one"}).reasons
        assert advice in reason.message and "--abandon-claims" not in reason.message
    back = conclude("g", head, ledger, desired, gone, confirmed, set())
    assert (back.phase, back.reasons) == ("Running", [])


def test_the_end_of_a_group() -> None:
    ledger, head = Ledger(), GroupHead("g", 1, "Terminated")
    ledger.fold(1, Commit(id="1", entries=[decision("d1", 1, x="one")]))
    ledger.fold(2, Commit(id="2", entries=[Withdrawal(group="g", revision=1)]))
    desired = DesiredRecord(group="g", revision=1, decision="", version=2)
    leaving = conclude("g", head, ledger, desired, None, {})
    assert leaving.phase == "Terminating"
    ledger.fold(3, Commit(id="3", entries=[Release(claims=["x"])]))
    assert conclude("g", head, ledger, desired, leaving, {}).phase == "Terminated"


def test_an_older_confirmation_changes_nothing() -> None:
    newest = learn(confirm(3, 9), "one", None)
    assert learn(confirm(2, 10), "one", newest) is None
    assert learn(confirm(3, 8), "one", newest) is None
    assert learn(confirm(3, 9), "one", newest) == newest


def runs(version: int, *states: Any) -> AppStatus:
    return AppStatus(app="a", cluster="x", version=version, objects=[ObjectStatus(object="o", state=s) for s in states])


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        (runs(5, READY), runs(5, READY), True),
        (runs(7, READY), runs(5, READY, READY), True),
        (runs(5, READY), None, False),
        (None, None, False),
        (runs(5, READY), runs(4, READY), False),
        (runs(5, READY), runs(5, BUSY), False),
        (runs(5, READY), runs(5, READY, BUSY), False),
        (runs(5, READY), runs(5, FAILED), False),
        (runs(4, READY), runs(4, READY), False),
    ],
)
def test_the_old_place_goes_only_once_all_new_ones_run(
    one: AppStatus | None, two: AppStatus | None, expected: bool
) -> None:
    stands = decision("d", 2, x="one", y="two")
    confirmed = {("a", place): known for place, known in (("one", one), ("two", two)) if known is not None}
    assert may_remove(stands, "a", 5, confirmed) is expected


def test_what_goes_altogether_waits_for_nothing() -> None:
    assert may_remove(None, "a", 5, {})
    assert may_remove(decision("d", 2, x="one"), "another", 5, {}), "no place is left to this app"
    elsewhere = {("another", "one"): runs(5, READY), ("a", "two"): runs(5, READY)}
    assert not may_remove(decision("d", 2, x="one"), "a", 5, elsewhere), "another app, another cluster"


def test_a_failed_object_is_a_reason_with_the_code_that_its_agent_knows() -> None:
    objects = [
        ObjectStatus(object="Deployment/o", state="Failed", message="no", code="NamespaceNotEnabled"),
        ObjectStatus(object="ConfigMap/c", state="Failed", message="taken"),
        ObjectStatus(object="Service/s", state=READY),
    ]
    found = apply_failures([AppStatus(app="a", cluster="c", version=5, objects=objects)])
    assert [(r.code, r.cluster, r.message) for r in found] == [
        ("NamespaceNotEnabled", "c", "Deployment/o: no"),
        ("ApplyFailed", "c", "ConfigMap/c: taken"),
    ]
