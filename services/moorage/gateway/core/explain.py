"""Derives what is shown of a group from its document, decision, last attempt and status, so that all handlers agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from moorage.model.attempts import AppView, Attempt, ClaimView, Why
from moorage.model.claims import Decision
from moorage.model.groups import GroupRecord, Phase
from moorage.model.phases import ENDED, phase
from moorage.model.reasons import Reason, Warn
from moorage.model.status import GroupStatus
from moorage.podspec.slot_views import slot_views

_PARTS = 5  # that a warning names


class Known(NamedTuple):
    """The state of one group at one moment."""

    record: GroupRecord
    decision: Decision | None  # the current one
    has_claims: bool  # there are active claims, including withdrawn ones
    attempt: Attempt | None  # the last attempt to decide
    status: GroupStatus | None
    clusters: Mapping[
        str, float | None
    ] = {}  # clusters with active claims; for stale ones, seconds since the last report, `inf` if there was none
    parts_gone: Sequence[str] = ()  # that slots of the current decision name


def phase_of(known: Known) -> Phase:
    record = known.record
    decision = known.decision.id if known.decision is not None else ""
    return phase(record.state, record.revision, decision, known.has_claims, known.attempt, known.status)


def silent_of(known: Known) -> list[str]:
    """Returns clusters of the current decision that do not report, so that it is unknown what runs there."""
    standing = known.decision.claims if known.decision is not None else ()
    return sorted({claim.cluster for claim in standing if known.clusters.get(claim.cluster) is not None})


def has_pending_revision(known: Known) -> bool:
    """Returns whether the current decision is of an older revision, because the newest is undecided, does not fit or is
    stopped."""
    return (
        known.record.state in ("Instantiated", "InstantiateStopped")
        and known.decision is not None
        and known.decision.revision < known.record.revision
    )


def pending_phase(known: Known) -> Phase | None:
    """Returns the phase of the pending revision."""
    if not has_pending_revision(known):
        return None
    tried = known.attempt
    fits = tried is None or tried.revision != known.record.revision or tried.phase not in ("Pending", "Failed")
    return "Deciding" if fits or tried is None else tried.phase


def why(known: Known) -> Why:
    record, decision = known.record, known.decision
    attempt = known.attempt
    ended = record.state in ENDED
    if attempt is not None and (attempt.revision != record.revision or ended):
        attempt = None  # it belongs to an older revision or to a terminated group
    if decision is not None and (attempt is None or attempt.phase == "Placed"):
        controllers, epoch = decision.controllers, decision.epoch
    elif attempt is not None:
        controllers, epoch = attempt.controllers, attempt.epoch
    else:
        controllers, epoch = [], ""
    pending = has_pending_revision(known)
    found = Why(
        group=record.group,
        revision=decision.revision if pending and decision is not None else record.revision,
        state=record.state,
        phase=phase_of(known),
        decision=decision.id if decision is not None else None,
        epoch=epoch or None,
        apps=apps_of(known),
        controllers=controllers,
        pending_revision=record.revision if pending else None,
        pending_phase=pending_phase(known),
    )
    if attempt is not None and attempt.phase != "Placed" and (decision is None or pending):
        found.reasons, found.blocking, found.funnel = list(attempt.reasons), attempt.blocking, attempt.funnel
    if known.status is not None and decision is not None and known.status.decision == decision.id:
        found.reasons = [*found.reasons, *known.status.reasons]
    found.reasons = [*_without_duplicates(found.reasons), *_report_reasons(known, found.phase)]
    found.warnings = _distinct(
        record.resolved.warnings if not ended else (),
        attempt.warnings if attempt is not None else (),
        decision.warnings if decision is not None else (),
        known.status.warnings if known.status is not None and decision is not None else (),
        _parts_gone(known.parts_gone),
    )
    return found


def _parts_gone(parts: Sequence[str]) -> Iterable[Warn]:
    if parts:
        more = f" and {len(parts) - _PARTS} more" if len(parts) > _PARTS else ""
        message = f"claimed but not reported any more: {', '.join(parts[:_PARTS])}{more}"
        yield Warn(code="PartGone", message=message)


def _without_duplicates(reasons: list[Reason]) -> list[Reason]:
    """Drops NoClusters reasons without a message if one has a message: several controllers may report it."""
    worded = {reason.code for reason in reasons if reason.message}
    return [r for r in reasons if r.code != "NoClusters" or r.message or r.code not in worded]


def _report_reasons(known: Known, phase: Phase) -> Iterable[Reason]:
    """Yields reasons for clusters that are stale, and for removals that they have not confirmed."""
    going = phase == "Terminating"
    silent = silent_of(known)
    for cluster, seconds in sorted(known.clusters.items()):
        if seconds is not None and (going or cluster in silent):
            what = "removal is not confirmed" if going else "pods may no longer be running there"
            last = f"last report {seconds:.0f} s ago" if math.isfinite(seconds) else "no report since the mesh started"
            yield _cluster_reason("ClusterStale", cluster, f"{what}; {last}")
        elif going:
            yield _cluster_reason("RemovalUnconfirmed", cluster, "waiting for the cluster to confirm the removal")


def _cluster_reason(code: str, cluster: str, message: str) -> Reason:
    return Reason(code=code, cluster=cluster, clusters=1, samples=[cluster], message=message)


def _distinct(*lists: Iterable[Warn]) -> list[Warn]:
    return list(dict.fromkeys(warning for warnings in lists for warning in warnings))


def apps_of(known: Known) -> dict[str, AppView]:
    """Returns the apps with their clusters by the current decision; without a decision, without clusters."""
    decision = known.decision
    views = {app.name: AppView(replicas=app.replicas) for app in known.record.resolved.apps}
    if decision is None:
        return views
    if has_pending_revision(known) or known.record.state != "Instantiated":
        views = {}  # show the apps of the decided revision instead of the pending one
    for name, replicas in decision.replicas.items():
        views[name] = AppView(replicas=replicas)
    for claim in decision.claims:
        view = views.setdefault(claim.app, AppView(replicas=decision.replicas.get(claim.app, 1)))
        if claim.cluster not in view.clusters:
            view.clusters = [*view.clusters, claim.cluster]
        if not claim.object:
            continue  # an app without pods claims nothing
        shown = ClaimView(
            cluster=claim.cluster, object=claim.object, slots=slot_views(claim.slots), optional=claim.optional
        )
        view.claims = [*view.claims, shown]
    for name, score in decision.scores.items():
        if name in views:
            views[name].score = score
    return views


def group_item(known: Known) -> dict[str, Any]:
    """Returns a group as an item of a list."""
    record = known.record
    item: dict[str, Any] = {
        "group": record.group,
        "revision": record.revision,
        "state": record.state,
        "phase": phase_of(known),
        "apps": {name: {"replicas": view.replicas, "clusters": view.clusters} for name, view in apps_of(known).items()},
    }
    if has_pending_revision(known):
        assert known.decision is not None
        item["revision"], item["pendingRevision"] = known.decision.revision, record.revision
        item["pendingPhase"] = pending_phase(known)
    if silent := silent_of(known):
        item["silent"] = silent
    if known.decision is not None:
        item["decision"] = known.decision.id
    if record.labels:
        item["labels"] = record.labels
    if record.intents:
        item["intents"] = sorted(record.intents)
    if record.created:
        item["created"] = record.created
    return item


def application_item(known: Known) -> dict[str, Any]:
    """Returns the document as given with its status. `apply` accepts it again and ignores the status."""
    status = group_item(known)
    status.pop("labels", None)
    return {**known.record.document, "status": status}


def simulated(record: GroupRecord, attempt: Attempt) -> Why:
    """Returns what `why` would show if the document were applied."""
    return Why(
        group=record.group,
        revision=record.revision,
        state=record.state,
        phase=attempt.phase,
        epoch=attempt.epoch or None,
        apps=attempt.apps or {app.name: AppView(replicas=app.replicas) for app in record.resolved.apps},
        controllers=attempt.controllers,
        reasons=attempt.reasons,
        warnings=_distinct(record.resolved.warnings, attempt.warnings),
        blocking=attempt.blocking,
        funnel=attempt.funnel,
    )


def nothing_to_place(group: str, warnings: list[Warn]) -> Why:
    """Returns the explanation of an intent whose group does not exist yet: it is accepted and nothing is decided."""
    return Why(group=group, revision=0, state="Created", phase="Draft", warnings=warnings)
