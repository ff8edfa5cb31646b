"""Derives what each cluster should run from the ledger, the documents and the desired state's records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from moorage.ledger import ActiveClaim, Family, Ledger
from moorage.model.claims import Claim, Decision
from moorage.model.desired_state import (
    AppVersion,
    DesiredRecord,
    DiffItem,
    EncodedDesiredApp,
    PinnedClaim,
    PinnedSlot,
    Pins,
)
from moorage.model.groups import GroupRecord
from moorage.model.status import AppStatus
from moorage.parsing.redaction import redact
from moorage.podspec import diff, has_gate
from moorage.podspec.slot_views import readable_parts

from .class_needs import class_needs
from .cluster_apps import AppOnCluster
from .final_objects import FinalObjects, is_confined, parts_annotation, preferred_nodes, required_nodes

#: Replies to agents are split into parts below this size; an app alone may be larger.
PART_BYTES = 400_000
_encode = msgspec.json.Encoder().encode


def claims_of(ledger: Ledger, group: str) -> Iterable[ActiveClaim]:
    return (ledger.claims[ident] for ident in ledger.by_group.get(group, ()))


def nodes_of(decision: Decision, before: DesiredRecord | None) -> dict[str, list[str]]:
    """Returns the nodes, by claim, that pods prefer or are confined to. A claim that stays keeps the preferred ones: another
    pod template restarts pods. Those that pods are confined to change only where pods could start nowhere else."""
    kept = before.nodes if before is not None else {}
    return {claim.id: _nodes_of(claim, kept.get(claim.id)) for claim in decision.claims}


def _nodes_of(claim: Claim, kept: list[str] | None) -> list[str]:
    if claim.pinned or claim.within:
        return []  # pods get their node at their gate
    if claim.required_nodes:
        return required_nodes(claim)
    now = preferred_nodes(claim)
    return kept if kept and (set(now) <= set(kept) or not is_confined(claim)) else now


def confined_pods(decision: Decision) -> dict[str, int]:
    """Returns the pods, by claim, of Deployments that are confined to nodes."""
    return {
        claim.id: sum(slot.count for slot in claim.slots if not slot.surge)
        for claim in decision.claims
        if claim.object.startswith("Deployment/") and is_confined(claim)
    }


def parts_of(decision: Decision, before: DesiredRecord | None) -> dict[str, str]:
    """Returns the annotations about parts, by claim. That of a claim stays as long as the nodes that its template names: moving a
    slot restarts nothing."""
    found = {}
    for claim in decision.claims:
        nodes = before.nodes.get(claim.id) if before is not None else None
        stays = before is not None and nodes is not None and _nodes_of(claim, nodes) == nodes
        annotation = before.parts.get(claim.id, "") if before is not None and stays else parts_annotation(claim)
        if annotation:
            found[claim.id] = annotation
    return found


def pins_of(ledger: Ledger, families: Iterable[Family]) -> Pins:
    """Returns the slots of all claims of these objects, also of those that are on their way out: they may still get pods. Slots for
    a surge count beside older claims only."""
    claims = []
    for family in families:
        members = ledger.family_of(family)
        claims += [
            PinnedClaim(
                claim=claim.id,
                object=claim.object,
                slots=[
                    PinnedSlot(node=slot.node, count=slot.count, surge=slot.surge, parts=readable_parts(slot.parts))
                    for slot in claim.slots
                    if slot.node and (len(members) > 1 or not slot.surge)
                ],
            )
            for claim in members
            if has_gate(claim.object.partition("/")[0])
        ]
    return Pins(tag=hashlib.blake2b(_encode(claims), digest_size=8).hexdigest() if claims else "", claims=claims)


def held_pods(
    pods: Mapping[str, int],
    nodes: Mapping[str, list[str]],
    before: DesiredRecord | None,
    ready: Mapping[str, int],
    *,
    runs: bool,
) -> dict[str, int]:
    """Returns the claims of Deployments that get no more pods for now than run, because their pods become confined to other nodes.
    That changes the template. Where no pod may be missing, Kubernetes ends an old pod once there is one more than the number
    that is wanted, and on full nodes there is room only for those: it would wait for ever. With the number that runs, the room of
    the pods that are to come is that of the surge. `ready`: the pods of each claim that run, where that is known; `runs`: what
    was held back runs in full."""
    held: dict[str, int] = {}
    if before is None:
        return held
    for claim, count in pods.items():
        changes = before.nodes.get(claim, nodes[claim]) != nodes[claim]
        if changes or (claim in before.held and not runs):
            fewer = before.held.get(claim, min(before.confined.get(claim, count), ready.get(claim, count)))
            if 0 < fewer < count:
                held[claim] = fewer
    return held


def ready_pods(decision: Decision, confirmed: Mapping[tuple[str, str], AppStatus]) -> dict[str, int]:
    """Returns how many pods of each claim run, where an agent confirmed it."""
    ready: dict[str, int] = {}
    for claim in decision.claims:
        status = confirmed.get((claim.app, claim.cluster))
        for one in status.objects if status is not None else ():
            if one.object == claim.object:
                ready[claim.id] = one.ready
    return ready


def final_objects(record: GroupRecord, desired: DesiredRecord, app: str) -> FinalObjects:
    contributions = [c for c in desired.contributions if c.app == app]
    return FinalObjects(
        record.manifests.get(app, []),
        contributions,
        desired.nodes,
        desired.decision,
        desired.held,
        desired.parts,
        class_needs(record.resolved, app, record.manifests.get(app, [])),
    )


def encode_app(
    on_cluster: AppOnCluster,
    desired: DesiredRecord,
    objects: list[msgspec.Raw],
    pins: Pins | None = None,
    succeeds: str = "",
) -> bytes:
    return _encode(
        EncodedDesiredApp(
            group=on_cluster.group,
            app=on_cluster.app,
            version=desired.version,
            decision=desired.decision,
            objects=objects,
            claims=sorted(claim.id for claim in on_cluster.claims),
            traceparent=desired.traceparent,
            pins=pins,
            succeeds=succeeds,
        )
    )


def encode_removal(group: str, app: str, version: int, traceparent: str = "") -> bytes:
    return _encode(AppVersion(group=group, app=app, version=version, remove=True, traceparent=traceparent))


def encode_confirm_again(group: str, app: str, version: int, pins: Pins | None = None) -> bytes:
    """Names a version that the agent has, without its objects: the agent confirms it again, and takes over the pins."""
    return _encode(AppVersion(group=group, app=app, version=version, pins=pins))


def reply_parts(apps: Iterable[bytes], generation: int) -> list[bytes]:
    """Splits encoded apps into replies, each of them whole JSON."""
    bodies: list[list[bytes]] = [[]]
    size = 0
    for app in apps:
        if size and size + len(app) > PART_BYTES:
            bodies.append([])
            size = 0
        bodies[-1].append(app)
        size += len(app)
    return [
        b'{"apps":[%b],"part":[%d,%d],"generation":%d}' % (b",".join(body), index, len(bodies), generation)
        for index, body in enumerate(bodies)
    ]


def diff_items(record: GroupRecord, decision: Decision, desired: DesiredRecord) -> Iterable[DiffItem]:
    """Compares manifests and final objects, with secrets redacted, of each app on each cluster."""
    claims: dict[tuple[str, str], list[Claim]] = {}
    for claim in decision.claims:
        claims.setdefault((claim.app, claim.cluster), []).append(claim)
    finals = {app: final_objects(record, desired, app) for app in {app for app, _ in claims}}
    for app, cluster in sorted(claims, key=lambda place: (place[1], place[0])):
        manifests = redact(record.manifests.get(app, []))
        objects = redact(finals[app].on_cluster(cluster, claims[app, cluster]))
        yield DiffItem(cluster=cluster, app=app, manifests=manifests, objects=objects, patch=diff(manifests, objects))
