"""Makes the decision, with all its claims, from a choice of clusters and the slots assigned there."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.candidates import Choice, PlacementProblem
from moorage.fit.device_rows import asked_devices
from moorage.fleet import BOUNDLESS, Fleet
from moorage.ledger import Ledger
from moorage.model.claims import Claim, Decision, IntentRef, claim_id
from moorage.model.groups import Revision
from moorage.model.machine_slots import reservation_claim
from moorage.model.reasons import Warn
from moorage.model.shapes import EXCLUSIVE, ShapedApp
from moorage.model.slots import names_parts, own_parts, resources_of_devices
from moorage.podspec import has_gate

from .assigner import AssignedShape, Assigner
from .class_versions import class_versions
from .cluster_names import listed
from .responses import ControllerResults

#: A chosen cluster and the apps that go there.
AppsOnCluster = tuple[int, frozenset[int]]


def decision_of(
    record: Revision,
    merged: PlacementProblem,
    chosen: Choice,
    places: Sequence[AppsOnCluster],
    assigner: Assigner,
    fleet: Fleet,
    results: ControllerResults,
    ident: str,
    ledger: Ledger,
) -> Decision:
    apps = [app.name for app in record.apps]
    claims = [claim for place in places for claim in _claims_at(place, record, assigner, fleet, ident, ledger)]
    warnings = dict.fromkeys([*record.warnings, *results.warnings])
    return Decision(
        id=ident,
        group=record.group,
        revision=record.revision,
        claims=claims,
        epoch=str(fleet.epoch),
        # Relative to the controllers that scored the app: the others do not lower its score.
        scores={apps[app]: round(min(1.0, chosen.scores[app] / share), 6) for app, share in merged.scored.items()},
        replicas=dict(zip(apps, merged.replicas, strict=True)),
        controllers=results.asked,
        warnings=[
            *warnings,
            *(warning for place in places for warning in _warnings_at(place, assigner, fleet)),
            *_clusters_left_out(record, merged, fleet),
        ],
        asked=[
            asked
            for app in record.apps
            for shape in app.shapes
            if (asked := asked_devices(app.name, shape)) is not None
        ],
    )


def _claims_at(
    place: AppsOnCluster, record: Revision, assigner: Assigner, fleet: Fleet, ident: str, ledger: Ledger
) -> list[Claim]:
    cid, apps = place
    cluster = fleet.names[cid]
    intent = IntentRef(kind="Application", name=record.group, revision=record.revision)
    claims: list[Claim] = []
    for assigned in assigner.assigned[cid, apps]:
        app, shape = record.apps[assigned.app], assigned.shape
        pinned = _is_pinned(app, assigned, ledger)
        before = ledger.claims.get(assigned.claim)
        claims.append(
            Claim(
                id=assigned.claim,
                decision=ident,
                intent=intent,
                tenant=record.tenant,
                slots=assigned.slots,
                app=app.name,
                object=shape.object,
                cluster=cluster,
                replaces=assigned.replaces,
                optional=assigned.optional,
                rules=shape.rules,
                marks=shape.marks,
                required_nodes={} if pinned else _required_nodes(app, assigned, record.group, ledger),
                pinned=pinned,
                within=reservation_claim(shape.machine, cluster) if shape.machine else "",
                classes=class_versions(assigned.slots, shape, cluster, before.claim if before is not None else None),
            )
        )
    # Apps without pods take no room, but the log must name their clusters.
    for app in map(record.apps.__getitem__, sorted(apps)):
        if not app.shapes:
            bare = claim_id(record.group, app.name, "", cluster, "")
            claims.append(
                Claim(
                    id=bare,
                    decision=ident,
                    intent=intent,
                    tenant=record.tenant,
                    slots=[],
                    app=app.name,
                    cluster=cluster,
                )
            )
    return claims


def _warnings_at(place: AppsOnCluster, assigner: Assigner, fleet: Fleet) -> list[Warn]:
    cluster, here = fleet.names[place[0]], assigner.assigned[place]
    warnings = [_surge_left_out(assigned, cluster) for assigned in here if assigned.surge_left_out]
    by_kubelet: dict[str, list[str]] = {}
    for assigned in here:
        if what := _chosen_by_kubelet(assigned):
            by_kubelet.setdefault(what, []).append(assigned.shape.object)
    for what, objects in by_kubelet.items():
        text = f"{cluster}: kubelets choose {what} of the pods of {', '.join(objects)}; they may be others than claimed"
        warnings.append(Warn(code="ChosenByKubelet", message=text))
    if objects := [one.shape.object for one in here if _cores_unknown(one, place[0], fleet)]:
        text = f"{cluster} reports no CPU manager; the whole cores of {', '.join(objects)} may not be exclusive there"
        warnings.append(Warn(code="ExclusiveCoresUnknown", message=text))
    return warnings


def _cores_unknown(assigned: AssignedShape, cid: int, fleet: Fleet) -> bool:
    """Returns whether the pods have exclusive cores on nodes that do not report how many they can give."""
    nodes = {slot.node for slot in assigned.slots if slot.resources.get(EXCLUSIVE)}
    cores = fleet.allocatable(EXCLUSIVE) if nodes else None
    rows = (fleet.row_of(cid, node) for node in nodes)
    return cores is not None and any(row is not None and cores[row] >= BOUNDLESS for row in rows)


def _chosen_by_kubelet(assigned: AssignedShape) -> str:
    """Returns what kubelets choose for the pods, with device plugins or alone; empty if they choose nothing that is claimed. Devices
    of drivers are those that claims are pinned to."""
    slots = [slot for slot in assigned.slots if own_parts(slot) != slot.aligned]
    resources = sorted({name for slot in slots for name in resources_of_devices(slot.devices)})
    counted = {grant.part for slot in slots for grant in slot.devices if grant.name in resources}
    what = ["the parts"] if any(own_parts(slot).keys() - counted for slot in slots) else []
    what += [f"which {resource}" for resource in resources]
    return " and ".join(what)


def _clusters_left_out(record: Revision, merged: PlacementProblem, fleet: Fleet) -> list[Warn]:
    return [
        Warn(
            code="ClustersLeftOut",
            message=f"{listed(fleet, mask)} cannot take {record.apps[number].name}, which its placement asks of all",
        )
        for number, mask in merged.left_out.items()
        if mask.any()
    ]


def _surge_left_out(assigned: AssignedShape, cluster: str) -> Warn:
    shape = assigned.shape
    message = (
        f"{cluster} has no room for the {shape.surge} more pods of {shape.object} that its rollout may start "
        f"(maxSurge); up to {shape.unavailable} are missing meanwhile (maxUnavailable)"
    )
    return Warn(code="SurgeLeftOut", message=message)


def _is_pinned(app: ShapedApp, assigned: AssignedShape, ledger: Ledger) -> bool:
    """Returns whether each pod is pinned to its slot. Affinity to several nodes cannot keep a pod off one of them whose sums
    fit and whose parts are taken, so pods with parts on several nodes are pinned unless the document says otherwise. A claim stays
    pinned, because another pod template restarts pods."""
    if not has_gate(assigned.shape.object.partition("/")[0]) or app.steering in ("preferred", "required"):
        return False
    if assigned.shape.machine:
        return False  # the cluster pins guests of machines at a gate of their own
    active = ledger.claims.get(assigned.claim)
    if app.steering == "pinned" or (active is not None and active.claim.pinned):
        return True
    return len({slot.node for slot in assigned.slots if own_parts(slot)}) > 1


def _required_nodes(app: ShapedApp, assigned: AssignedShape, group: str, ledger: Ledger) -> dict[str, str]:
    """Returns the nodes that the claim's pods are confined to: where the app asks for it, and where slots name something inside
    a node, which is valid only there. They stay the same while the slots are on them, because another pod template restarts pods.
    The pods of a DaemonSet are bound to their nodes already."""
    required = app.steering in ("required", "pinned") or group in ledger.steered or names_parts(assigned.slots)
    if assigned.shape.per_node or assigned.shape.machine or not required:
        return {}
    nodes = {slot.node: slot.host for slot in assigned.slots}
    active = ledger.claims.get(assigned.claim)
    before = active.claim.required_nodes if active is not None else {}
    return before if nodes.keys() <= before.keys() else nodes
