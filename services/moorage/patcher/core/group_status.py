"""Derives a group's status and phase from its document, the ledger, the desired state and the agents' confirmations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from moorage.ledger import Ledger, displaced_reason
from moorage.model.claims import Decision
from moorage.model.desired_state import DesiredRecord
from moorage.model.groups import State
from moorage.model.phases import ENDED, phase
from moorage.model.reasons import Reason, Warn
from moorage.model.status import AppStatus, Confirm, GroupStatus

from .desired_state import claims_of

Place = tuple[str, str]  # app, cluster
Confirmed = Mapping[Place, AppStatus]


class GroupHead(msgspec.Struct, rename="camel"):
    """The few fields of a group's record that a phase needs."""

    group: str
    revision: int
    state: State


def conclude(
    group: str,
    head: GroupHead | None,
    ledger: Ledger,
    desired: DesiredRecord | None,
    before: GroupStatus | None,
    confirmed: Confirmed,
    left: AbstractSet[str] = frozenset(),
) -> GroupStatus:
    """Returns the group's new status. `left`: clusters that are no longer part of the fleet."""
    decision = ledger.standing.get(group)
    ident = decision.id if decision is not None else ""
    active = {(claim.claim.app, claim.claim.cluster) for claim in claims_of(ledger, group)}
    standing = {(c.app, c.cluster) for c in decision.claims} if decision is not None else set()
    # Until the new desired state is stored, confirmations are about the one before.
    current = desired is not None and desired.decision == ident
    status = GroupStatus(
        group=group,
        revision=decision.revision if decision is not None else head.revision if head is not None else 0,
        phase="Draft",
        decision=ident if current else (before.decision if before is not None else ""),
        version=desired.version if desired is not None else 0,
    )
    if desired is not None and current:
        status.held = bool(desired.held)
        gone = sorted({cluster for _, cluster in standing} & left)
        status.reasons = [*desired.reasons, *(_cluster_gone(cluster, head, decision) for cluster in gone)]
        status.reasons += [displaced_reason(c, lack) for c, lack in sorted(ledger.displaced.get(group, {}).items())]
        status.warnings = [*desired.warnings, *_refusals(decision)]
    places = standing if current and standing else active
    status.apps = [confirmed.get(place) or AppStatus(app=place[0], cluster=place[1]) for place in sorted(places)]
    status.warnings = [*status.warnings, *_notices(status.apps)]
    status.reached = before is not None and before.decision == status.decision and before.reached
    state, revision = (head.state, head.revision) if head is not None else ("Terminated", 0)
    if head is not None and state in ENDED:
        terminated = before is not None and before.phase == "Terminated" and before.revision == revision
        counting = ledger.is_terminating(group, revision, was_terminated=terminated)
    else:
        counting = ledger.has_active_claims(group)
    status.phase = phase(state, revision, ident, counting, None, status if current else None)
    status.reached = status.reached or status.phase == "Running"
    ran_before = before is not None and (before.ran or before.reached) and ledger.has_active_claims(group)
    status.ran = status.reached or ran_before
    if status.phase == "Degraded":
        status.reasons = [*status.reasons, *apply_failures(status.apps)]
    # Apps that are being removed are shown beside the standing ones until they are gone.
    status.apps += [confirmed[place] for place in sorted(active - places) if place in confirmed]
    return status


def _refusals(decision: Decision | None) -> list[Warn]:
    """Returns a warning for each claim whose pods a node refused."""
    claims = decision.claims if decision is not None else []
    return [
        Warn(
            code="NodeRefused",
            message=f"{node} of {claim.cluster} refused a pod of {claim.app} {claim.object}: {words}",
        )
        for claim in claims
        for node, words in sorted(claim.refused_by.items())
    ]


def _notices(apps: Iterable[AppStatus]) -> list[Warn]:
    """Returns what agents tell of objects that are not wrong."""
    return [
        Warn(code=status.code, message=f"{app.cluster}: {status.object}: {status.message}")
        for app in apps
        for status in app.objects
        if status.code and status.state != "Failed"
    ]


def _cluster_gone(cluster: str, head: GroupHead | None, decision: Decision | None) -> Reason:
    """Returns what the operator can do, unless it was done: the group is then decided again, and waits for another
    cluster."""
    if head is not None and decision is not None and head.revision > decision.revision:
        message = f"the cluster left the fleet; revision {head.revision} waits for another cluster"
    elif head is not None and head.state == "InstantiateStopped":
        message = (
            f"the cluster left the fleet, and the group is stopped; `moorage instantiate {head.group}` places it again"
        )
    else:
        message = (
            f"the cluster left the fleet, and pods may still run there; `moorage delete cluster {cluster} --abandon-claims`"
            " places the group again"
        )
    return Reason(code="ClusterGone", cluster=cluster, clusters=1, samples=[cluster], message=message)


def apply_failures(apps: Iterable[AppStatus]) -> list[Reason]:
    """Returns a reason for each object that failed on a cluster."""
    return [
        Reason(
            code=status.code or "ApplyFailed",
            app=app.app,
            cluster=app.cluster,
            clusters=1,
            samples=[app.cluster],
            message=f"{status.object}: {status.message}",
            by="agent",
        )
        for app in apps
        for status in app.objects
        if status.state == "Failed"
    ]


def runs(status: AppStatus | None, version: int) -> bool:
    """Returns whether this version of an app runs in full."""
    return status is not None and status.version >= version and all(o.state == "Ready" for o in status.objects)


def learn(confirm: Confirm, cluster: str, before: AppStatus | None) -> AppStatus | None:
    """Returns the status that a confirmation reports; None if a newer one is known."""
    if before is not None and (confirm.version, confirm.as_of) < (before.version, before.as_of):
        return None
    return AppStatus(
        app=confirm.app,
        cluster=cluster,
        version=confirm.version,
        removed=confirm.removed,
        objects=confirm.objects,
        as_of=confirm.as_of,
    )


def repeats(status: AppStatus, before: AppStatus) -> bool:
    """Returns whether nothing but the time differs."""
    return msgspec.structs.replace(status, as_of=before.as_of) == before
