"""Tests what the gateway says of a group: one pure function of record, decision, attempt and status."""

from __future__ import annotations

import math
from typing import Any

from moorage.gateway.core.explain import Known, application_item, group_item, why
from moorage.model.attempts import Attempt
from moorage.model.candidates import Asked
from moorage.model.claims import Claim, Decision, IntentRef, Slot
from moorage.model.groups import GroupRecord, Revision
from moorage.model.reasons import Reason, Warn
from moorage.model.shapes import ShapedApp
from moorage.model.status import GroupStatus

GROUP = "default/shop/v1/default"


def record(revision: int = 1, state: Any = "Instantiated", warnings: list[Warn] | None = None) -> GroupRecord:
    apps = [ShapedApp(name="web", replicas=2), ShapedApp(name="db")]
    resolved = Revision(group=GROUP, revision=revision, tenant="default", apps=apps, warnings=warnings or [])
    document = {"kind": "Application", "metadata": {"name": "shop"}, "spec": {"apps": []}}
    return GroupRecord(group=GROUP, revision=revision, state=state, resolved=resolved, document=document)


def decision(revision: int = 1) -> Decision:
    def claim(app: str, cluster: str, node: str, count: int = 1) -> Claim:
        return Claim(
            id=f"{app}-{cluster}",
            decision="d1",
            intent=IntentRef(kind="Group", name=GROUP, revision=revision),
            tenant="default",
            app=app,
            object=f"Deployment/{app}",
            cluster=cluster,
            slots=[Slot(node=node, count=count, resources={"cpu": 1000})],
        )

    return Decision(
        id="d1",
        group=GROUP,
        revision=revision,
        epoch="1.5",
        claims=[claim("web", "a/x", "n1", 2), claim("web", "a/y", "n2"), claim("db", "a/x", "n3")],
        replicas={"web": 2, "db": 1},
        scores={"web": 0.8, "db": 0.0},
        controllers=[Asked(name="hpa", outcome="answered", took_ms=2, deadline_ms=500, policy="required")],
        warnings=[Warn(code="NotGuaranteed", message="of the decision")],
    )


def pending(revision: int = 1, phase: Any = "Pending") -> Attempt:
    reason = Reason(code="ResourceShort", app="web", needed="4", free="2", by="hpa")
    return Attempt(group=GROUP, revision=revision, phase=phase, epoch="1.9", reasons=[reason])


def test_placed_shows_the_decision() -> None:
    found = why(Known(record(), decision(), True, None, None))
    assert (found.phase, found.decision, found.epoch) == ("Placed", "d1", "1.5")
    assert found.apps["web"].clusters == ["a/x", "a/y"] and found.apps["web"].score == 0.8
    assert [(s.node, s.count) for s in found.apps["web"].claims[0].slots] == [("n1", 2)]
    assert [c.name for c in found.controllers] == ["hpa"] and not found.reasons and found.pending_revision is None


def test_a_claim_that_grew_is_shown_by_node() -> None:
    grown = decision()
    grown.claims[0].slots.append(Slot(node="n1", resources={"cpu": 1000}))
    found = why(Known(record(), grown, True, None, None))
    assert [(s.node, s.count) for s in found.apps["web"].claims[0].slots] == [("n1", 3)]


def test_what_runs_where_nobody_reports_is_not_known() -> None:
    status = GroupStatus(group=GROUP, revision=1, phase="Running", decision="d1", version=3)
    known = Known(record(), decision(), True, None, status, {"a/x": None, "a/y": 12.3})
    found = why(known)
    assert found.phase == "Running", "the last that is known"
    assert [(r.code, r.cluster) for r in found.reasons] == [("ClusterStale", "a/y")]
    assert "last report 12 s ago" in found.reasons[0].message
    restarted = why(known._replace(clusters={"a/y": math.inf}))
    assert restarted.reasons[0].message.endswith("; no report since the mesh started")
    assert (group_item(known)["phase"], group_item(known)["silent"]) == ("Running", ["a/y"])
    # Of a cluster from which it only goes away, nothing of what stands is in doubt.
    known = known._replace(clusters={"a/x": None, "a/y": None, "a/z": 12.3})
    assert why(known).phase == "Running" and not why(known).reasons and "silent" not in group_item(known)


def test_what_ends_says_for_which_clusters_it_waits() -> None:
    known = Known(record(state="Terminated"), None, True, None, None, {"a/x": None, "a/y": 70})
    found = why(known)
    assert found.phase == "Terminating"
    assert [(r.code, r.cluster) for r in found.reasons] == [("RemovalUnconfirmed", "a/x"), ("ClusterStale", "a/y")]
    assert "last report 70 s ago" in found.reasons[1].message


def test_what_has_ended_says_nothing_of_its_life() -> None:
    warned = record(state="Terminated", warnings=[Warn(code="NotGuaranteed", message="of the document")])
    tried = pending()
    tried.controllers = [Asked(name="hpa", outcome="answered", took_ms=2, deadline_ms=500, policy="required")]
    found = why(Known(warned, None, False, tried, None))
    assert found.phase == "Terminated"
    assert (found.controllers, found.reasons, found.warnings, found.epoch) == ([], [], [], None)


def test_that_there_are_no_clusters_is_said_once() -> None:
    tried = pending()
    tried.reasons = [Reason(code="NoClusters", message="no cluster reports", app="web"), Reason(code="NoClusters")]
    found = why(Known(record(), None, False, tried, None))
    assert [(r.code, r.message) for r in found.reasons] == [("NoClusters", "no cluster reports")]
    tried.reasons = tried.reasons[1:]
    assert len(why(Known(record(), None, False, tried, None)).reasons) == 1


def test_waiting_shows_why_and_no_clusters() -> None:
    found = why(Known(record(), None, False, pending(), None))
    assert found.phase == "Pending" and found.decision is None
    assert [r.code for r in found.reasons] == ["ResourceShort"]
    assert found.apps["web"].replicas == 2 and found.apps["web"].clusters == []


def test_an_attempt_at_another_revision_says_nothing_about_this_one() -> None:
    found = why(Known(record(revision=2), None, False, pending(revision=1), None))
    assert found.phase == "Deciding" and not found.reasons


def test_an_update_that_does_not_fit_keeps_the_old_decision_and_its_phase() -> None:
    known = Known(record(revision=2), decision(revision=1), True, pending(revision=2), None)
    found = why(known)
    assert (found.phase, found.revision, found.pending_revision) == ("Placed", 1, 2)
    assert [r.code for r in found.reasons] == ["ResourceShort"] and found.apps["web"].clusters == ["a/x", "a/y"]
    item = group_item(known)
    assert (item["revision"], item["pendingRevision"], item["pendingPhase"]) == (1, 2, "Pending")
    assert group_item(known._replace(attempt=pending(1)))["pendingPhase"] == "Deciding", "that try is of the old one"
    assert group_item(known._replace(attempt=pending(2, "Failed")))["pendingPhase"] == "Failed"


def test_an_update_that_waits_when_the_group_is_stopped_still_waits() -> None:
    known = Known(record(revision=2, state="InstantiateStopped"), decision(revision=1), True, pending(revision=2), None)
    found, item = why(known), group_item(known)
    assert (found.phase, found.revision, found.pending_revision) == ("Placed", 1, 2)
    assert (item["revision"], item["pendingRevision"]) == (1, 2)
    assert found.apps["web"].clusters == ["a/x", "a/y"]


def test_a_stale_pending_of_a_group_that_is_placed_is_not_a_reason() -> None:
    assert not why(Known(record(), decision(), True, pending(), None)).reasons


def test_states_before_and_after_running() -> None:
    assert why(Known(record(state="Created"), None, False, None, None)).phase == "Draft"
    assert why(Known(record(state="Terminated"), None, True, None, None)).phase == "Terminating"
    assert why(Known(record(state="Terminated"), None, False, None, None)).phase == "Terminated"


def test_warnings_of_all_sources_once() -> None:
    same = Warn(code="NotGuaranteed", message="of the decision")
    other = Warn(code="Unsupported", message="x")
    found = why(Known(record(warnings=[same, other]), decision(), True, None, None))
    assert found.warnings == [same, other]


def test_an_application_is_its_document_with_a_status() -> None:
    item = application_item(Known(record(), decision(), True, None, None))
    assert item["metadata"] == {"name": "shop"} and item["status"]["phase"] == "Placed"
    assert item["status"]["group"] == GROUP
