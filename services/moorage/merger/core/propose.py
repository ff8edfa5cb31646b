"""Proposes a decision for a revision from the controllers' answers, the fleet and the ledger, or gives reasons against one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.candidates import (
    Choice,
    ChoiceBasis,
    FailedPlacement,
    FreeCapacity,
    Mask,
    OwnRoom,
    PlacementProblem,
    basis_of,
    choose,
    merge,
)
from moorage.fit import PackingSolutions, Shortage, Unassigned, largest_shortage, unsupported_reason
from moorage.fleet import Fleet
from moorage.ledger import (
    ExistingPlacement,
    Ledger,
    OwnClaims,
    Placed,
    Wanted,
    assign_beside_own,
    existing_placement,
    own_amounts,
    wanted_on,
)
from moorage.model.claims import Claim, Decision, IntentRef, OptionalGrant, Slot, claim_id
from moorage.model.groups import Revision
from moorage.model.reasons import Reason, Warn
from moorage.model.shapes import EXCLUSIVE, Shape, ShapedApp
from moorage.parsing import format_amount, readable_amount
from moorage.podspec import has_gate, is_host_port

from .funnel import Shortfall
from .responses import ControllerResults, order_reasons, placement_masks

#: Choices of clusters that are tried with an exact assignment. Each failure costs about as much as a decision.
TRIES = 32
#: Clusters of partial sets that are tried one by one where no choice holds them all.
MOST_PARTIAL = 512
#: Clusters that a reason names.
SAMPLES = 5
#: Clusters per app that are kept of a choice beyond those that it takes.
RANKED = 4


@dataclass(slots=True)
class ProposalRefused:
    """Why there is no decision. `final`: only changed documents help. `overtaken`: others took the room each time it was
    found. `blocking`: the apps that cannot be placed, the one that lacks most first."""

    reasons: list[Reason]
    final: bool = False
    overtaken: bool = False
    blocking: Sequence[str] = ()
    shortfall: Shortfall | None = None  # once every app has its controllers' answers


class TriedChoice(NamedTuple):
    """A choice of clusters per app, those where the apps did not fit, and what it was made by."""

    clusters: list[list[int]]
    failed: list[int]
    basis: ChoiceBasis

    def ranked(self, app: int) -> list[tuple[int, int]]:
        """Returns the best clusters for an app, some more than it takes, with their values."""
        best = self.basis.ranked(app, len(self.clusters[app]) + RANKED)
        return list(zip(best.tolist(), self.basis.values[app][best].tolist(), strict=True))


class TriedChoices:
    """Keeps the choices that a proposal tries, in order."""

    def __init__(self) -> None:
        self.choices: list[TriedChoice] = []

    def add(self, chosen: Choice, failed: list[int]) -> None:
        self.choices.append(TriedChoice(chosen.clusters, failed, basis_of(chosen)))


class NameOrder:
    """Ranks clusters by name. They are sorted again only when clusters joined or left."""

    def __init__(self) -> None:
        self._key: tuple[int, int, int] = (-1, -1, -1)
        self._ranks: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def ranks(self, fleet: Fleet) -> NDArray[np.int64]:
        key = (fleet.resets, fleet.membership, len(fleet.ids))
        if key != self._key:
            order = np.array(sorted(range(fleet.size), key=fleet.names.__getitem__), dtype=np.intp)
            ranks = np.empty(fleet.size, dtype=np.int64)
            ranks[order] = np.arange(fleet.size)
            self._key, self._ranks = key, ranks
        return self._ranks


def summed_resources(record: Revision) -> list[str]:
    """Returns the asked resources that are summed up per cluster. Left out are host ports, which say nothing about how full a
    cluster is, and exclusive cores: clusters that do not report them have no meaningful sum."""
    asked = {r: None for app in record.apps for s in app.shapes for r, need in s.resources.items() if need > 0}
    return [r for r in asked if r != EXCLUSIVE and not is_host_port(r)]


def free_capacity(record: Revision, fleet: Fleet) -> FreeCapacity:
    """Sums up the asked resources per cluster."""
    rows = {resource: row for row, resource in enumerate(summed_resources(record))}
    needs = np.zeros((len(record.apps), len(rows)), dtype=np.float64)
    free = np.zeros((len(rows), fleet.size), dtype=np.float64)
    allocatable = np.zeros((len(rows), fleet.size), dtype=np.float64)
    for resource, row in rows.items():
        free[row], allocatable[row] = fleet.sums(resource)
    for number, app in enumerate(record.apps):
        total = [0] * len(rows)
        for shape in app.shapes:
            if shape.per_node:
                continue  # the number of pods differs from cluster to cluster
            for resource, need in shape.resources.items():
                if (at := rows.get(resource)) is not None:
                    total[at] += need * shape.count
        needs[number] = total
    return FreeCapacity(free, allocatable, needs)


def own_room(record: Revision, fleet: Fleet, own: OwnClaims) -> list[OwnRoom]:
    """Sums up what each app has already of the asked resources, per cluster."""
    asked = summed_resources(record) if own else []
    return [
        {
            cid: np.array([amounts.get(resource, 0) for resource in asked], np.float64)
            for cluster, claims in own.get(app.name, {}).items()
            if (cid := fleet.ids.get(cluster)) is not None
            for amounts in (own_amounts(claims, cid, fleet),)
        }
        for app in record.apps
    ]


@dataclass(slots=True)
class _AssignedShape:
    """The slots of one shape on one cluster, and whether all its pods have each of its optional needs. `replaces`: the
    object's claim there before. `surge_left_out`: pods that its rollout has no room for."""

    app: int
    shape: Shape
    claim: str
    slots: list[Slot]
    optional: list[OptionalGrant]
    replaces: str = ""
    surge_left_out: int = 0


class _Assigner:
    """Assigns slots exactly to apps that share a cluster. Each combination is tried once."""

    def __init__(
        self, record: Revision, fleet: Fleet, ledger: Ledger, own: OwnClaims, solutions: PackingSolutions | None
    ) -> None:
        self.record, self.fleet, self.ledger, self.own, self.solutions = record, fleet, ledger, own, solutions
        self.assigned: dict[tuple[int, frozenset[int]], list[_AssignedShape]] = {}
        self.failures: dict[FailedPlacement, tuple[Unassigned, str]] = {}

    def fits(self, cid: int, apps: frozenset[int]) -> bool:
        """Assigns slots to the apps, or records why they do not fit together."""
        key = (cid, apps)
        if key in self.assigned:
            return True
        cluster = self.fleet.names[cid]
        asked = [
            (number, wanted_on(self.record.group, app.name, s, cluster, self.own.get(app.name, {}).get(cluster, ())))
            for number in sorted(apps)
            for app in (self.record.apps[number],)
            for s in app.shapes
        ]
        found = assign_beside_own(self.fleet, cid, [wanted for _, wanted in asked], self.solutions)
        if isinstance(found, Unassigned):
            number, wanted = asked[found.shape]
            alone = found.code not in ("PackingFails", "PodRulesFail", "SearchBound")
            failed = frozenset((number,)) if alone else apps
            self.failures[cid, failed] = (found, wanted.shape.object)
            return False
        self.assigned[key] = [
            _AssignedShape(
                number,
                wanted.shape,
                wanted.claim,
                placed.slots,
                self._grants(wanted, placed),
                self._replaces(wanted),
                placed.surge_left_out,
            )
            for (number, wanted), placed in zip(asked, found, strict=True)
        ]
        return True

    def _replaces(self, wanted: Wanted) -> str:
        """Returns the object's newest other claim there; for a claim that stays, the one that it replaced."""
        if not wanted.own:
            return ""
        active = self.ledger.claims.get(wanted.claim)
        if active is not None and not active.withdrawn:
            return active.claim.replaces
        return next((claim.id for claim in reversed(wanted.own) if claim.id != wanted.claim), "")

    def _grants(self, wanted: Wanted, placed: Placed) -> list[OptionalGrant]:
        """Returns the optional needs that all pods have. A need that only some of the pods have is granted to none: they
        share one template."""
        had = self._kept_grants(wanted) if placed.kept else None
        if placed.met is None:
            return had if had is not None else self._kept_grants(wanted)
        return [
            OptionalGrant(consumer=o.consumer, need=o.name, granted=i in placed.met and (had is None or had[i].granted))
            for i, o in enumerate(wanted.shape.optional)
        ]

    def _kept_grants(self, wanted: Wanted) -> list[OptionalGrant]:
        """Returns the optional needs that the object's claim has already; all missing where there is no claim."""
        shape = wanted.shape
        if not shape.optional:
            return []
        active = self.ledger.claims.get(wanted.claim)
        claim = None if active is None else active.claim
        recorded = {} if claim is None else {(g.consumer, g.need): g.granted for g in claim.optional}
        held = [] if claim is None or claim.optional else _grants_in(claim.slots, shape)
        return [
            OptionalGrant(consumer=o.consumer, need=o.name, granted=recorded.get((o.consumer, o.name), i in held))
            for i, o in enumerate(shape.optional)
        ]

    def _scarcest(self, cid: int, apps: frozenset[int]) -> Shortage | None:
        here = np.zeros(self.fleet.size, np.bool_)
        here[cid] = True
        return largest_shortage(self.fleet, [s for a in apps for s in self.record.apps[a].shapes], here)

    def failed_apps(self) -> list[str]:
        """Returns the apps that failed alone on some cluster; if none did, those that failed together."""
        alone = {app for _, apps in self.failures if len(apps) == 1 for app in apps}
        failed = alone or {app for _, apps in self.failures for app in apps}
        return [self.record.apps[app].name for app in sorted(failed)]

    def shortfall(self, replicas: Sequence[int], short: Mapping[int, int] | None = None) -> Shortfall:
        failed: dict[int, dict[int, Reason]] = {}
        for (cid, apps), (why, obj) in self.failures.items():
            if len(apps) > 1:
                continue
            (app,) = apps
            reason = Reason(code=why.code, consumer=obj, need=why.resource, by="merger", message=why.message)
            if why.needed:
                reason.needed, reason.free = _numbers(why)
            failed.setdefault(app, {})[cid] = reason
        return Shortfall(list(replicas), failed, dict(short or {}))

    def reasons(self) -> list[Reason]:
        """Returns a reason per code, app, object and resource, with the best numbers and a few of the clusters."""
        merged: dict[tuple[str, str, str, str], Reason] = {}
        best: dict[tuple[str, str, str, str], int] = {}
        for (cid, apps), (why, obj) in self.failures.items():
            app = " ".join(self.record.apps[a].name for a in sorted(apps))
            key = (why.code, app, obj, why.resource)
            known = merged.get(key)
            if known is None:
                known = merged[key] = Reason(
                    code=why.code, app=app, consumer=obj, need=why.resource, by="merger", message=why.message
                )
                best[key] = -1
            known.clusters += 1
            if len(known.samples) < 3:
                known.samples.append(self.fleet.names[cid])
            if why.needed and why.best > best[key]:
                best[key] = why.best
                known.needed, known.free = _numbers(why)
            elif why.code != "NodeRefused" and not known.needed and (scarce := self._scarcest(cid, apps)) is not None:
                more = scarce.reason_fields()
                known.need, known.needed, known.free = more["need"], more["needed"], more["free"]
                needed, free = (readable_amount(scarce.resource, n) for n in (scarce.needed, scarce.free))
                known.message = (
                    f"{app} needs {needed} {known.need} in one cluster, which has {free} free{scarce.caveat}"
                )
        return list(merged.values())


def _numbers(why: Unassigned) -> tuple[str, str]:
    """Returns what was needed and what is free."""
    return format_amount(why.resource, why.needed), format_amount(why.resource, max(0, why.best))


def _grants_in(slots: Sequence[Slot], shape: Shape) -> list[int]:
    """Returns the optional needs that these slots have room for, the heaviest first. Claims of earlier versions do not
    record them; labels cannot be read from slots."""
    extra = {
        r: min(slot.resources.get(r, 0) for slot in slots) - shape.resources.get(r, 0)
        for r in {r for slot in slots for r in slot.resources}
    }
    found = []
    for i in sorted(range(len(shape.optional)), key=lambda i: -shape.optional[i].weight):
        needs = shape.optional[i].resources
        if needs and all(extra.get(r, 0) >= amount for r, amount in needs.items()):
            found.append(i)
            for r, amount in needs.items():
                extra[r] -= amount
    return found


def propose(
    record: Revision,
    results: ControllerResults,
    fleet: Fleet,
    ledger: Ledger,
    names: NameOrder,
    decision: str,
    solutions: PackingSolutions | None = None,
    tried: TriedChoices | None = None,
) -> Decision | ProposalRefused:
    """Returns a decision for the best choice of clusters on which every pod has a place, or why there is none. `solutions`
    learns which packings were too hard to be found here, `tried` what is looked at."""
    invalid = [
        Reason(code="Unsupported", app=app.name, consumer=shape.object, message=why, by="merger")
        for app in record.apps
        for shape in app.shapes
        if (why := unsupported_reason(shape))
    ]
    # The documents contradict themselves, which no controller's answer can change.
    invalid += [
        Reason(code=warning.code, message=warning.message, by="intents")
        for warning in record.warnings
        if warning.code == "ReplicasConflict"
    ]
    if invalid:
        return ProposalRefused(invalid, final=True)
    if results.missing:
        return ProposalRefused(list(results.missing))
    merged = merge([app.replicas for app in record.apps], fleet.usable_clusters, results.weighted, fleet.known)
    if merged.count_mismatches:
        return ProposalRefused(
            [_replicas_conflict(record, mismatch.app, mismatch.counts) for mismatch in merged.count_mismatches],
            final=True,
        )
    existing = existing_placement(record, fleet, ledger)
    ranks = names.ranks(fleet)
    room = free_capacity(record, fleet)
    own = own_room(record, fleet, existing.own)
    assigner = _Assigner(record, fleet, ledger, existing.own, solutions)
    for _ in range(TRIES):
        chosen = choose(merged, room, ranks, current=existing.current, own=own, failed=assigner.failures)
        if not isinstance(chosen, Choice):
            if sum(int(np.count_nonzero(merged.masks[number])) for number in merged.partial) > MOST_PARTIAL:
                break
            if _leave_out_unfit(merged, assigner):
                continue
            others = _choice_without_partial(merged, room, ranks, existing, own, assigner)
            if others is not None and _leave_room(merged, others, assigner):
                continue
            break
        together: dict[int, set[int]] = {}
        for number, clusters in enumerate(chosen.clusters):
            for cid in clusters:
                together.setdefault(cid, set()).add(number)
        places = [(cid, frozenset(apps)) for cid, apps in together.items()]
        # Every cluster is tried, even after a failure: each failure is a reason and rules out further choices.
        fitting = [assigner.fits(cid, apps) for cid, apps in places]
        if tried is not None:
            tried.add(chosen, [cid for (cid, _), fits in zip(places, fitting, strict=True) if not fits])
        if all(fitting):
            return _decision(record, merged, chosen, places, assigner, fleet, results, decision, ledger)
        for cid, apps in assigner.failures:
            for app in apps & merged.partial if len(apps) == 1 else ():
                merged.leave_out(app, cid)
    else:
        return _search_bound(f"{TRIES} choices did not fit together", merged, assigner)
    if chosen.truncated:
        return _search_bound("no choice of clusters was found within the bounds", merged, assigner)
    left = placement_masks(results, fleet)
    return _why_no_choice(record, merged, room, ranks, chosen.short, fleet, assigner, left)


def _search_bound(message: str, merged: PlacementProblem, assigner: _Assigner) -> ProposalRefused:
    bound = Reason(code="SearchBound", by="merger", message=message)
    shortfall = assigner.shortfall(merged.replicas)
    return ProposalRefused([bound, *assigner.reasons()], blocking=assigner.failed_apps(), shortfall=shortfall)


def _leave_out_unfit(merged: PlacementProblem, assigner: _Assigner) -> bool:
    """Leaves out of partial sets the clusters that cannot take their app. Returns whether there are any."""
    unfit = [
        (number, cid)
        for number in sorted(merged.partial)
        for cid in np.flatnonzero(merged.masks[number]).tolist()
        if not assigner.fits(cid, frozenset((number,)))
    ]
    return [merged.leave_out(number, cid) for number, cid in unfit].count(True) > 0


def _choice_without_partial(
    merged: PlacementProblem,
    room: FreeCapacity,
    ranks: NDArray[np.int64],
    existing: ExistingPlacement,
    own: Sequence[OwnRoom],
    assigner: _Assigner,
) -> dict[int, list[int]] | None:
    """Chooses clusters for the apps without a partial set, as if they were alone."""
    others = [app for app in range(len(merged.replicas)) if app not in merged.partial]
    if not merged.partial or not others:
        return {} if merged.partial else None
    numbers = {app: at for at, app in enumerate(others)}
    chosen = choose(
        merged.only(others),
        replace(room, needs=room.needs[others]),
        ranks,
        current=[existing.current[app] for app in others],
        own=[own[app] for app in others],
        failed=[
            (cid, frozenset(numbers[a] for a in apps)) for cid, apps in assigner.failures if apps <= numbers.keys()
        ],
    )
    return dict(zip(others, chosen.clusters, strict=True)) if isinstance(chosen, Choice) else None


def _leave_room(merged: PlacementProblem, others: Mapping[int, Sequence[int]], assigner: _Assigner) -> bool:
    """Leaves out of partial sets the clusters that their apps cannot share with those of this choice, or with each other.
    Returns whether there are any."""
    taken: dict[int, frozenset[int]] = {}
    for number, clusters in others.items():
        for cid in clusters:
            taken[cid] = taken.get(cid, frozenset()) | {number}
    found = False
    for number in sorted(merged.partial):
        for cid in np.flatnonzero(merged.masks[number]).tolist():
            apps = taken.get(cid, frozenset()) | {number}
            if merged.excludes(apps, cid) or not assigner.fits(cid, apps):
                # An app keeps one cluster; then another partial set leaves this one out.
                partial = (number, *sorted(apps & merged.partial - {number}))
                left = next((app for app in partial if merged.leave_out(app, cid)), None)
                found |= left is not None
                apps -= {number if left is None else left}
            taken[cid] = apps
    return found


def _decision(
    record: Revision,
    merged: PlacementProblem,
    chosen: Choice,
    places: list[tuple[int, frozenset[int]]],
    assigner: _Assigner,
    fleet: Fleet,
    results: ControllerResults,
    ident: str,
    ledger: Ledger,
) -> Decision:
    intent = IntentRef(kind="Application", name=record.group, revision=record.revision)
    claims: list[Claim] = []
    for cid, apps in places:
        cluster = fleet.names[cid]
        for assigned in assigner.assigned[cid, apps]:
            app, shape = record.apps[assigned.app], assigned.shape
            name = app.name
            pinned = _is_pinned(app, assigned, ledger)
            required = app.steering in ("required", "pinned") or record.group in ledger.steered
            claims.append(
                Claim(
                    id=assigned.claim,
                    decision=ident,
                    intent=intent,
                    tenant=record.tenant,
                    slots=assigned.slots,
                    app=name,
                    object=shape.object,
                    cluster=cluster,
                    replaces=assigned.replaces,
                    optional=assigned.optional,
                    rules=shape.rules,
                    marks=shape.marks,
                    required_nodes=_required_nodes(assigned, ledger) if required and not pinned else {},
                    pinned=pinned,
                )
            )
        # Apps without pods take no room, but the log must name their clusters.
        claims += [
            Claim(
                id=claim_id(record.group, app.name, "", cluster, ""),
                decision=ident,
                intent=intent,
                tenant=record.tenant,
                slots=[],
                app=app.name,
                cluster=cluster,
            )
            for app in map(record.apps.__getitem__, sorted(apps))
            if not app.shapes
        ]
    warnings = list(dict.fromkeys([*record.warnings, *results.warnings]))
    for cid, apps in places:
        warnings += [
            _surge_left_out(assigned, fleet.names[cid])
            for assigned in assigner.assigned[cid, apps]
            if assigned.surge_left_out
        ]
        chosen_inside = [a for a in assigner.assigned[cid, apps] if any(s.parts != s.aligned for s in a.slots)]
        if chosen_inside:
            objects = ", ".join(dict.fromkeys(assigned.shape.object for assigned in chosen_inside))
            text = f"{fleet.names[cid]}: kubelets choose the parts of the pods of {objects}; they may be others than claimed"
            warnings.append(Warn(code="ChosenByKubelet", message=text))
    for number, mask in merged.left_out.items():
        if mask.any():
            text = f"{_listed(fleet, mask)} cannot take {record.apps[number].name}, which its placement asks of all"
            warnings.append(Warn(code="ClustersLeftOut", message=text))
    apps_by_name = [app.name for app in record.apps]
    return Decision(
        id=ident,
        group=record.group,
        revision=record.revision,
        claims=claims,
        epoch=str(fleet.epoch),
        # Relative to the controllers that scored the app: the others do not lower its score.
        scores={
            apps_by_name[app]: round(min(1.0, chosen.scores[app] / share), 6) for app, share in merged.scored.items()
        },
        replicas=dict(zip(apps_by_name, merged.replicas, strict=True)),
        controllers=results.asked,
        warnings=warnings,
    )


def _surge_left_out(assigned: _AssignedShape, cluster: str) -> Warn:
    shape = assigned.shape
    message = (
        f"{cluster} has no room for the {shape.surge} more pods of {shape.object} that its rollout may start "
        f"(maxSurge); up to {shape.unavailable} are missing meanwhile (maxUnavailable)"
    )
    return Warn(code="SurgeLeftOut", message=message)


def _is_pinned(app: ShapedApp, assigned: _AssignedShape, ledger: Ledger) -> bool:
    """Returns whether each pod is pinned to its slot. Affinity to several nodes cannot keep a pod off one of them whose sums
    fit and whose parts are taken, so pods with parts on several nodes are pinned unless the document says otherwise. A claim stays
    pinned, because another pod template restarts pods."""
    if not has_gate(assigned.shape.object.partition("/")[0]) or app.steering in ("preferred", "required"):
        return False
    active = ledger.claims.get(assigned.claim)
    if app.steering == "pinned" or (active is not None and active.claim.pinned):
        return True
    return len({slot.node for slot in assigned.slots if slot.parts or slot.devices}) > 1


def _required_nodes(assigned: _AssignedShape, ledger: Ledger) -> dict[str, str]:
    """Returns the nodes that the claim's pods are confined to. They stay the same while the slots are on them, because another
    pod template restarts pods. The pods of a DaemonSet are bound to their nodes already."""
    if assigned.shape.per_node:
        return {}
    nodes = {slot.node: slot.host for slot in assigned.slots}
    active = ledger.claims.get(assigned.claim)
    before = active.claim.required_nodes if active is not None else {}
    return before if nodes.keys() <= before.keys() else nodes


def _replicas_conflict(record: Revision, app: int, counts: dict[str, int]) -> Reason:
    wanted = ", ".join(f"{name} {count}" for name, count in counts.items())
    message = f"controllers want different numbers of clusters: {wanted}"
    return Reason(code="ReplicasConflict", app=record.apps[app].name, message=message, by="merger")


def _why_no_choice(
    record: Revision,
    merged: PlacementProblem,
    room: FreeCapacity,
    ranks: NDArray[np.int64],
    short: dict[int, int],
    fleet: Fleet,
    assigner: _Assigner,
    left: Sequence[Mask],
) -> ProposalRefused:
    """`left`: per app, the clusters that its placement leaves."""
    found: list[Reason] = []
    if not fleet.known.any():
        found.append(Reason(code="NoClusters", by="merger"))
    blocking = sorted(short, key=lambda number: short[number] / merged.replicas[number])
    # Without a short app, what is lost to any app may be what is missing.
    concerned = np.logical_or.reduce([fleet.known & False, *(left[number] for number in blocking or range(len(left)))])
    for state, code in (("Stale", "ClusterStale"), ("Cordoned", "ClusterCordoned")):
        lost = [c for c in np.flatnonzero(concerned & ~fleet.usable_clusters).tolist() if fleet.state(c) == state]
        if lost:
            found.append(Reason(code=code, clusters=len(lost), samples=[fleet.names[c] for c in lost[:3]], by="merger"))
    for number in blocking:
        have, app, wanted = short[number], record.apps[number].name, merged.replicas[number]
        allowed, known = int(np.count_nonzero(merged.masks[number])), int(np.count_nonzero(left[number]))
        where = f"{known} that the placement leaves" if known < np.count_nonzero(fleet.known) else str(known)
        message = f"{allowed} of {where} {'qualifies' if allowed == 1 else 'qualify'}"
        if have < allowed:
            message += f", {have} with capacity for all its pods"
        samples: list[str] = []
        if number in merged.every:
            lacking = merged.every[number] & ~merged.masks[number]
            for cid, apps in assigner.failures:
                lacking[cid] |= apps == {number} and merged.every[number][cid]
            samples = fleet.clusters.named(lacking, SAMPLES)
            if samples:
                message += f"; every one must take it, and {_listed(fleet, lacking)} cannot"
        found.append(
            Reason(
                code="NotEnoughClusters",
                app=app,
                clusters=known - have,
                samples=samples,
                needed=str(wanted),
                free=str(have),
                by="merger",
                message=message,
            )
        )
    found += assigner.reasons()
    names = [record.apps[number].name for number in blocking]
    if not short:
        joint = _joint_conflict(record, merged, _binding_rule(merged, room, ranks))
        found.insert(0, joint)
        names = joint.app.split()
    shortfall = assigner.shortfall(merged.replicas, short)
    return ProposalRefused(order_reasons(found, names), blocking=names, shortfall=shortfall)


def _listed(fleet: Fleet, mask: Mask) -> str:
    names = fleet.clusters.named(mask, SAMPLES)
    more = int(np.count_nonzero(mask)) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _joint_conflict(record: Revision, merged: PlacementProblem, code: str) -> Reason:
    """Returns the reason why there is no choice for all apps at once, although each has enough clusters for itself."""
    names = [app.name for app in record.apps]
    allowed = [int(np.count_nonzero(mask)) for mask in merged.masks]

    def may(app: int) -> str:
        return f"{names[app]} ({merged.replicas[app]} of {allowed[app]} clusters)"

    parts: list[str] = []
    involved: set[int] = set()
    if code == "AffinityConflict":
        involved = {app for pair in merged.apart | merged.together for app in pair}
        for pairs, word in ((merged.apart, "share no cluster"), (merged.together, "run on the same clusters")):
            parts += [f"{may(a)} and {may(b)} must {word}" for a, b in sorted(pairs)]
    elif code == "NotEnoughClusters":
        involved = {app for app, sets in enumerate(merged.groups) if sets}
        parts = [f"the sets of {may(app)} have too few clusters of their own" for app in sorted(involved)]
    else:
        for (a, b), where in sorted(merged.conflicts.items(), key=lambda item: item[0]):
            both = merged.masks[a] & merged.masks[b]
            count = f"{np.count_nonzero(where & both)} of the {np.count_nonzero(both)} that both may take"
            parts.append(f"{may(a)} and {may(b)} do not fit together on {count}")
            involved |= {a, b}
        parts = parts or [f"no choice takes {', '.join(map(may, range(len(names))))} at once"]
    concerned = " ".join(names[app] for app in sorted(involved)) or " ".join(names)
    return Reason(code=code, by="merger", app=concerned, message="; ".join(parts))


def _binding_rule(merged: PlacementProblem, room: FreeCapacity, ranks: NDArray[np.int64]) -> str:
    """Returns the code of the first rule without which there would be a choice."""
    loose = PlacementProblem(merged.replicas, merged.masks, merged.scores, merged.groups, merged.conflicts)
    if (merged.apart or merged.together) and isinstance(choose(loose, room, ranks), Choice):
        return "AffinityConflict"
    looser = PlacementProblem(merged.replicas, merged.masks, merged.scores, merged.groups)
    if merged.conflicts and isinstance(choose(looser, room, ranks), Choice):
        return "AppsConflict"
    free = PlacementProblem(merged.replicas, merged.masks, merged.scores, [[] for _ in merged.groups])
    if any(merged.groups) and isinstance(choose(free, room, ranks), Choice):
        return "NotEnoughClusters"
    return "PackingFails"
