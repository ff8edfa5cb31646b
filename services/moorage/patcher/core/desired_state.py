"""What each cluster should run, and how far it is: pure functions of decision, documents, contributions and what agents
confirmed. Nothing here waits for anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec

from moorage.ledger import ActiveClaim, Ledger
from moorage.model.claims import Claim, Decision
from moorage.model.desired import (
    AppStatus,
    ClaimsRemoved,
    Confirm,
    Contribution,
    DesiredApp,
    DesiredRecord,
    DiffItem,
    GroupStatus,
)
from moorage.model.groups import GroupRecord
from moorage.model.phases import ENDED, phase
from moorage.model.reasons import Reason
from moorage.model.redaction import redacted
from moorage.podspec import diff

from .manifest_patching import preferred_nodes, tailor

#: An answer to an agent is cut below this.
PART_BYTES = 400_000
_encode = msgspec.json.Encoder().encode


class Head(msgspec.Struct, rename="camel"):
    """The few fields of a group's record that a phase needs."""

    group: str
    revision: int
    state: str


class WantedApp(NamedTuple):
    """One app of a group on one cluster. `standing`: claims of the decision that stands; none = it is to go."""

    group: str
    app: str
    standing: list[Claim]


def wanted_on(ledger: Ledger, cluster: str) -> list[WantedApp]:
    """Everything that counts on a cluster, in a fixed order."""
    found: dict[tuple[str, str], list[Claim]] = {}
    for ident in ledger.by_cluster.get(cluster, ()):
        held = ledger.claims[ident]
        standing = found.setdefault((held.group, held.claim.app), [])
        if not held.withdrawn:
            standing.append(held.claim)
    return [WantedApp(group, app, claims) for (group, app), claims in sorted(found.items())]


def held_by(ledger: Ledger, group: str) -> Iterable[ActiveClaim]:
    return (ledger.claims[ident] for ident in ledger.by_group.get(group, ()))


def nodes_of(decision: Decision, before: DesiredRecord | None) -> dict[str, list[str]]:
    """What each claim's pods lean towards. A claim that stays keeps what it had: another template restarts pods."""
    kept = before.nodes if before is not None else {}
    return {claim.id: kept.get(claim.id) or preferred_nodes(claim) for claim in decision.claims}


def objects_for(
    record: GroupRecord, desired: DesiredRecord, app: str, cluster: str, claims: Iterable[Claim]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The objects of an app as given and as they are applied on a cluster."""
    given = record.manifests.get(app, [])
    contributions = [c for c in desired.contributions if c.app == app and c.cluster in ("", cluster)]
    by_object = {claim.object: claim for claim in claims}
    return given, tailor(given, contributions, by_object, desired.nodes, desired.decision)


def desired_app(wanted: WantedApp, cluster: str, desired: DesiredRecord, record: GroupRecord | None) -> DesiredApp:
    if not wanted.standing or record is None:
        return DesiredApp(
            group=wanted.group,
            app=wanted.app,
            version=desired.version,
            remove=True,
            traceparent=desired.traceparent,
        )
    given, objects = objects_for(record, desired, wanted.app, cluster, wanted.standing)
    return DesiredApp(
        group=wanted.group,
        app=wanted.app,
        version=desired.version,
        decision=desired.decision,
        objects=given,
        patch=diff({"objects": given}, {"objects": objects}),
        claims=sorted(claim.id for claim in wanted.standing),
        traceparent=desired.traceparent,
    )


def may_go(decision: Decision | None, app: str, version: int, confirmed: Mapping[tuple[str, str], AppStatus]) -> bool:
    """What an app leaves behind goes only once it runs where it is now: the new place first, then the removal."""
    places = {c.cluster for c in decision.claims if c.app == app} if decision is not None else set()
    for place in places:
        status = confirmed.get((app, place))
        if status is None or status.version < version or any(o.state != "Ready" for o in status.objects):
            return False
    return True


def diff_items(record: GroupRecord, decision: Decision, desired: DesiredRecord) -> Iterable[DiffItem]:
    places: dict[tuple[str, str], list[Claim]] = {}
    for claim in decision.claims:
        places.setdefault((claim.cluster, claim.app), []).append(claim)
    for (cluster, app), claims in sorted(places.items()):
        given, objects = (redacted(one) for one in objects_for(record, desired, app, cluster, claims))
        yield DiffItem(cluster=cluster, app=app, manifests=given, objects=objects, patch=diff(given, objects))


def parts(apps: Iterable[bytes], generation: int) -> list[bytes]:
    """Answers below the size that agents take, each whole JSON."""
    bodies: list[list[bytes]] = [[]]
    size = 0
    for app in apps:
        if size and size + len(app) > PART_BYTES:
            bodies.append([])
            size = 0
        bodies[-1].append(app)
        size += len(app)
    return [
        b'{"apps":[%b],"part":[%d,%d],"generation":%d}' % (b",".join(body), i, len(bodies), generation)
        for i, body in enumerate(bodies)
    ]


def conclude(
    group: str,
    head: Head | None,
    ledger: Ledger,
    desired: DesiredRecord | None,
    before: GroupStatus | None,
    confirmed: Mapping[tuple[str, str], AppStatus],
    left: AbstractSet[str] = frozenset(),
) -> GroupStatus:
    """A group's status from all that is known. `confirmed`: by app and cluster, newest first come. `left`: clusters that
    are no part of the fleet any more."""
    decision = ledger.standing.get(group)
    ident = decision.id if decision is not None else ""
    places = {(held.claim.app, held.claim.cluster) for held in held_by(ledger, group)}
    standing = {(c.app, c.cluster) for c in decision.claims} if decision is not None else set()
    current = desired is not None and desired.decision == ident
    # Until the new desired state is stored, what is confirmed is about the one before.
    version = desired.version if desired is not None else 0
    status = GroupStatus(
        group=group,
        revision=decision.revision if decision is not None else head.revision if head is not None else 0,
        phase="Draft",
        decision=ident if current else (before.decision if before is not None else ""),
        version=version,
    )
    if desired is not None and current:
        status.reasons = [*desired.reasons, *(_gone(cluster) for cluster in sorted({c for _, c in standing} & left))]
        status.warnings = desired.warnings
    same = before is not None and before.decision == status.decision
    status.apps = [
        confirmed.get(place) or AppStatus(app=place[0], cluster=place[1])
        for place in sorted(standing or places if current else places)
    ]
    status.reached = bool(same and before is not None and before.reached)
    state: Any = head.state if head is not None else "Terminated"
    revision = head.revision if head is not None else 0
    counting = (
        ledger.is_terminating(group, revision)
        if head is not None and state in ENDED
        else ledger.has_active_claims(group)
    )
    status.phase = phase(state, revision, ident, counting, None, status if current else None)
    status.reached = status.reached or status.phase == "Running"
    if status.phase == "Degraded":
        status.reasons = [*status.reasons, *refusals(status.apps)]
    # What is on its way out is shown beside what stands, until it is gone.
    shown = {(app.app, app.cluster) for app in status.apps}
    status.apps += [confirmed[p] for p in sorted(places - shown) if p in confirmed]
    return status


def _gone(cluster: str) -> Reason:
    message = (
        f"it left the fleet, and what runs there is not known; `moorage delete cluster {cluster} --abandon-claims`"
    )
    message += " has the group decided anew"
    return Reason(code="ClusterGone", cluster=cluster, clusters=1, samples=[cluster], message=message)


def learn(confirm: Confirm, cluster: str, before: AppStatus | None) -> AppStatus | None:
    """What a confirmation says; None where a newer one is known."""
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
    """Whether it says nothing but that it is still so."""
    return msgspec.structs.replace(status, as_of=before.as_of) == before


def removable(
    ledger: Ledger, group: str, desired: DesiredRecord | None, confirmed: Mapping[tuple[str, str], AppStatus]
) -> list[ClaimsRemoved]:
    """Withdrawn claims whose removal the agent of their cluster has confirmed."""
    decision = ledger.standing.get(group)
    if desired is None or desired.decision != (decision.id if decision is not None else ""):
        return []
    found: dict[str, ClaimsRemoved] = {}
    for held in held_by(ledger, group):
        claim = held.claim
        status = confirmed.get((claim.app, claim.cluster))
        if held.withdrawn and status is not None and status.version >= desired.version:
            one = found.setdefault(claim.cluster, ClaimsRemoved(claims=[], cluster=claim.cluster))
            one.claims.append(claim.id)
            one.as_of = max(one.as_of, status.as_of)
    return list(found.values())


def abandoned(ledger: Ledger, group: str, left: AbstractSet[str]) -> list[ClaimsRemoved]:
    """Withdrawn claims on clusters that left: no agent is there to confirm anything."""
    found: dict[str, ClaimsRemoved] = {}
    for held in held_by(ledger, group):
        if held.withdrawn and held.claim.cluster in left:
            one = found.setdefault(held.claim.cluster, ClaimsRemoved(claims=[], cluster=held.claim.cluster, gone=True))
            one.claims.append(held.claim.id)
    return list(found.values())


def refusals(apps: Iterable[AppStatus]) -> list[Reason]:
    """What clusters say of objects that failed there."""
    return [
        Reason(
            code="ApplyFailed",
            app=app.app,
            cluster=app.cluster,
            clusters=1,
            samples=[app.cluster],
            message=f"{one.object}: {one.message}",
            by="agent",
        )
        for app in apps
        for one in app.objects
        if one.state == "Failed"
    ]


def encoded(app: DesiredApp) -> bytes:
    return _encode(app)


def by_controller(contributions: Iterable[Contribution], name: str) -> list[Contribution]:
    """Who said so is who was asked, whatever the answer claims."""
    return [msgspec.structs.replace(one, by=name) for one in contributions]
