"""What is answered about a group, from document, decision, attempt and status: pure, so that every reader tells the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from moorage.model.attempts import AppView, Attempt, ClaimView, Why, slot_views
from moorage.model.claims import Decision
from moorage.model.desired import GroupStatus
from moorage.model.groups import GroupRecord, Phase
from moorage.model.phases import ENDED, phase
from moorage.model.reasons import Reason, Warn


class Known(NamedTuple):
    """All that is known of one group at one moment."""

    record: GroupRecord
    decision: Decision | None  # the one that stands
    counting: bool  # claims of it count, also withdrawn ones
    attempt: Attempt | None  # the last try to decide
    status: GroupStatus | None
    places: Mapping[
        str, float | None
    ] = {}  # clusters where claims of it count; seconds of silence of those that are stale


def phase_of(known: Known) -> Phase:
    record = known.record
    decision = known.decision.id if known.decision is not None else ""
    return phase(record.state, record.revision, decision, known.counting, known.attempt, known.status)


def silent_of(known: Known) -> list[str]:
    """Clusters of the standing decision that do not report: what runs there is not known."""
    standing = known.decision.claims if known.decision is not None else ()
    return sorted({claim.cluster for claim in standing if known.places.get(claim.cluster) is not None})


def waiting(known: Known) -> bool:
    """An update that is not decided yet, does not fit, or came to a stop: what stands is from an older revision."""
    return (
        known.record.state in ("Instantiated", "InstantiateStopped")
        and known.decision is not None
        and known.decision.revision < known.record.revision
    )


def pending_phase(known: Known) -> Phase | None:
    """That of the revision that waits."""
    if not waiting(known):
        return None
    tried = known.attempt
    fits = tried is None or tried.revision != known.record.revision or tried.phase not in ("Pending", "Failed")
    return "Deciding" if fits or tried is None else tried.phase


def why(known: Known) -> Why:
    record, decision = known.record, known.decision
    attempt = known.attempt
    ended = record.state in ENDED
    if attempt is not None and (attempt.revision != record.revision or ended):
        attempt = None  # of a revision that is not the newest any more, or of a life that is over
    if decision is not None and (attempt is None or attempt.phase == "Placed"):
        controllers, epoch = decision.controllers, decision.epoch
    elif attempt is not None:
        controllers, epoch = attempt.controllers, attempt.epoch
    else:
        controllers, epoch = [], ""
    pending = waiting(known)
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
        found.reasons = list(attempt.reasons)
    if known.status is not None and decision is not None and known.status.decision == decision.id:
        found.reasons = [*found.reasons, *known.status.reasons]
    found.reasons = [*_once(found.reasons), *_unknown(known, found.phase)]
    found.warnings = _distinct(
        record.resolved.warnings if not ended else (),
        attempt.warnings if attempt is not None else (),
        decision.warnings if decision is not None else (),
        known.status.warnings if known.status is not None and decision is not None else (),
    )
    return found


def _once(reasons: list[Reason]) -> list[Reason]:
    """That there are no clusters is found by several; with words it is said by one who looked for somebody."""
    worded = {reason.code for reason in reasons if reason.message}
    return [r for r in reasons if r.code != "NoClusters" or r.message or r.code not in worded]


def _unknown(known: Known, phase: Phase) -> Iterable[Reason]:
    """Of clusters from which nobody hears, or not yet what is waited for."""
    going = phase == "Terminating"
    silent = silent_of(known)
    for cluster, seconds in sorted(known.places.items()):
        if seconds is not None and (going or cluster in silent):
            what = "waits for it to take away what ran there" if going else "what ran there may not run any more"
            yield _there("ClusterStale", cluster, f"{what}; silent for {seconds:.0f} s")
        elif going:
            yield _there("RemovalUnconfirmed", cluster, "waits for it to say that what ran there is gone")


def _there(code: str, cluster: str, message: str) -> Reason:
    return Reason(code=code, cluster=cluster, clusters=1, samples=[cluster], message=message)


def _distinct(*lists: Iterable[Warn]) -> list[Warn]:
    return list(dict.fromkeys(warning for one in lists for warning in one))


def apps_of(known: Known) -> dict[str, AppView]:
    """Each app with the clusters it has, by the standing decision; without one, with none."""
    decision = known.decision
    views = {app.name: AppView(replicas=app.replicas) for app in known.record.resolved.apps}
    if decision is None:
        return views
    if waiting(known) or known.record.state != "Instantiated":
        views = {}  # the apps of the revision that stands, not those of the one that waits
    for name, wanted in decision.replicas.items():
        views[name] = AppView(replicas=wanted)
    for claim in decision.claims:
        view = views.setdefault(claim.app, AppView(replicas=decision.replicas.get(claim.app, 1)))
        if claim.cluster not in view.clusters:
            view.clusters = [*view.clusters, claim.cluster]
        if not claim.object:
            continue  # an app without pods is there, but claims nothing
        shown = ClaimView(cluster=claim.cluster, object=claim.object, slots=slot_views(claim.slots))
        view.claims = [*view.claims, shown]
    for name, score in decision.scores.items():
        if name in views:
            views[name].score = score
    return views


def group_item(known: Known) -> dict[str, Any]:
    """A group as lists have it."""
    record = known.record
    item: dict[str, Any] = {
        "group": record.group,
        "revision": record.revision,
        "state": record.state,
        "phase": phase_of(known),
        "apps": {name: {"replicas": view.replicas, "clusters": view.clusters} for name, view in apps_of(known).items()},
    }
    if waiting(known):
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
    """The document as it was given, with its status: what `apply` takes again (it leaves the status out)."""
    status = group_item(known)
    status.pop("labels", None)
    return {**known.record.document, "status": status}


def simulated(record: GroupRecord, attempt: Attempt) -> Why:
    """What `why` would answer if this were applied."""
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
    )


def nothing_to_place(group: str, warnings: list[Warn]) -> Why:
    """What an intent whose group is not there yet comes to: it is taken, and nobody is asked about it."""
    return Why(group=group, revision=0, state="Created", phase="Draft", warnings=warnings)
