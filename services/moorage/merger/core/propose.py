"""Proposes a decision for a revision from the controllers' answers, the fleet and the ledger, or gives reasons against one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.candidates import Choice, FailedPlacement, FreeCapacity, Mask, PlacementProblem, choose, merge
from moorage.fit import PackingSolutions, Shortage, Unassigned, assign, largest_shortage, unsupported_reason
from moorage.fleet import Fleet
from moorage.ledger import Ledger, existing_placement, kept_slots
from moorage.model.claims import Claim, Decision, IntentRef, OptionalGrant, Slot, claim_id
from moorage.model.groups import Revision
from moorage.model.reasons import Reason, Warn
from moorage.model.shapes import EXCLUSIVE, Shape
from moorage.parsing import format_amount

from .responses import ControllerResults, order_reasons, placement_masks

#: Choices of clusters that are tried with an exact assignment. Each failure costs about as much as a decision.
TRIES = 32
#: Clusters that a reason names.
SAMPLES = 5


@dataclass(slots=True)
class ProposalRefused:
    """Why there is no decision. `final`: only changed documents help. `overtaken`: others took the room each time it was
    found. `blocking`: the apps that cannot be placed, the one that lacks most first."""

    reasons: list[Reason]
    final: bool = False
    overtaken: bool = False
    blocking: Sequence[str] = ()


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


def free_capacity(record: Revision, fleet: Fleet) -> FreeCapacity:
    """Sums up the asked resources per cluster. Exclusive cores are left out: clusters that do not report them have no
    meaningful sum."""
    asked = {r: None for app in record.apps for s in app.shapes for r, need in s.resources.items() if need > 0}
    asked.pop(EXCLUSIVE, None)
    needs = np.zeros((len(record.apps), len(asked)), dtype=np.float64)
    free = np.zeros((len(asked), fleet.size), dtype=np.float64)
    allocatable = np.zeros((len(asked), fleet.size), dtype=np.float64)
    for row, resource in enumerate(asked):
        free[row], allocatable[row] = fleet.sums(resource)
        for number, app in enumerate(record.apps):
            # The number of pods of a DaemonSet differs from cluster to cluster.
            needs[number, row] = sum(s.resources.get(resource, 0) * s.count for s in app.shapes if not s.per_node)
    return FreeCapacity(free, allocatable, needs)


@dataclass(slots=True)
class _AssignedShape:
    """The slots of one shape on one cluster, and whether all its pods have each of its optional needs."""

    app: int
    shape: Shape
    slots: list[Slot]
    optional: list[OptionalGrant]


class _Assigner:
    """Assigns slots exactly to apps that share a cluster. Each combination is tried once."""

    def __init__(self, record: Revision, fleet: Fleet, ledger: Ledger, solutions: PackingSolutions | None) -> None:
        self.record, self.fleet, self.ledger, self.solutions = record, fleet, ledger, solutions
        self.has_claims = ledger.has_active_claims(record.group)
        self.assigned: dict[tuple[int, frozenset[int]], list[_AssignedShape]] = {}
        self.failures: dict[FailedPlacement, tuple[Unassigned, str]] = {}

    def fits(self, cid: int, apps: frozenset[int]) -> bool:
        """Assigns slots to the apps, or records why they do not fit together."""
        key = (cid, apps)
        if key in self.assigned:
            return True
        cluster = self.fleet.names[cid]
        asked: list[_AssignedShape] = []
        kept: list[Slot]
        shapes: list[Shape] = []
        indexes: list[int] = []  # of `shapes` in `asked`
        for number in sorted(apps):
            app = self.record.apps[number]
            for shape in app.shapes:
                kept, missing = [], shape.count
                if self.has_claims:
                    kept, missing = kept_slots(self.record.group, app.name, shape, cluster, self.ledger)
                asked.append(_AssignedShape(number, shape, kept, self._kept_grants(app.name, shape, cluster)))
                if missing or (shape.per_node and not kept):
                    shapes.append(shape if missing == shape.count else msgspec.structs.replace(shape, count=missing))
                    indexes.append(len(asked) - 1)
        if shapes:
            found = assign(self.fleet, self.fleet.rows_of(cid), shapes, solutions=self.solutions)
            if isinstance(found, Unassigned):
                number, shape = asked[indexes[found.shape]].app, asked[indexes[found.shape]].shape
                alone = found.code not in ("PackingFails", "SearchBound")
                failed = frozenset((number,)) if alone else apps
                self.failures[cid, failed] = (found, shape.object)
                return False
            for index, slots, met in zip(indexes, found.slots, found.met, strict=True):
                entry = asked[index]
                # A need that only some of the pods have is granted to none: they share one template.
                had = [not entry.slots or grant.granted for grant in entry.optional]
                entry.optional = [
                    OptionalGrant(consumer=o.consumer, need=o.name, granted=i in met and had[i])
                    for i, o in enumerate(entry.shape.optional)
                ]
                entry.slots = [*entry.slots, *slots]
        self.assigned[key] = asked
        return True

    def _kept_grants(self, app: str, shape: Shape, cluster: str) -> list[OptionalGrant]:
        """Returns the optional needs that the object's claim has already; all missing where there is no claim."""
        if not shape.optional:
            return []
        active = self.ledger.claims.get(claim_id(self.record.group, app, shape.object, cluster, shape.template))
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
                known.needed, known.free = (
                    format_amount(why.resource, why.needed),
                    format_amount(why.resource, max(0, why.best)),
                )
            elif not known.needed and (scarce := self._scarcest(cid, apps)) is not None:
                more = scarce.reason_fields()
                known.need, known.needed, known.free = more["need"], more["needed"], more["free"]
                known.message = f"{app} needs {known.needed} {known.need} in one cluster, which has {known.free} free"
                known.message += scarce.caveat
        return list(merged.values())


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
) -> Decision | ProposalRefused:
    """Returns a decision for the best choice of clusters on which every pod has a place, or why there is none. `solutions`
    learns which packings were too hard to be found here."""
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
    assigner = _Assigner(record, fleet, ledger, solutions)
    for _ in range(TRIES):
        chosen = choose(
            merged, room, ranks, current=existing.current, unchanged=existing.unchanged, failed=assigner.failures
        )
        if not isinstance(chosen, Choice):
            break
        together: dict[int, set[int]] = {}
        for number, clusters in enumerate(chosen.clusters):
            for cid in clusters:
                together.setdefault(cid, set()).add(number)
        places = [(cid, frozenset(apps)) for cid, apps in together.items()]
        # Every cluster is tried, even after a failure: each failure is a reason and rules out further choices.
        fitting = [assigner.fits(cid, apps) for cid, apps in places]
        if all(fitting):
            return _decision(record, merged, chosen, places, assigner, fleet, results, decision)
        for cid, apps in assigner.failures:
            for app in apps & merged.partial if len(apps) == 1 else ():
                merged.leave_out(app, cid)
    else:
        bound = Reason(code="SearchBound", by="merger", message=f"{TRIES} choices did not fit together")
        return ProposalRefused([bound, *assigner.reasons()], blocking=assigner.failed_apps())
    if chosen.truncated:
        bound = Reason(code="SearchBound", by="merger", message="no choice of clusters was found within the bounds")
        return ProposalRefused([bound, *assigner.reasons()], blocking=assigner.failed_apps())
    left = placement_masks(results, fleet)
    return _why_no_choice(record, merged, room, ranks, chosen.short, fleet, assigner, left)


def _decision(
    record: Revision,
    merged: PlacementProblem,
    chosen: Choice,
    places: list[tuple[int, frozenset[int]]],
    assigner: _Assigner,
    fleet: Fleet,
    results: ControllerResults,
    ident: str,
) -> Decision:
    intent = IntentRef(kind="Application", name=record.group, revision=record.revision)
    claims: list[Claim] = []
    for cid, apps in places:
        cluster = fleet.names[cid]
        for assigned in assigner.assigned[cid, apps]:
            name, shape = record.apps[assigned.app].name, assigned.shape
            claims.append(
                Claim(
                    id=claim_id(record.group, name, shape.object, cluster, shape.template),
                    decision=ident,
                    intent=intent,
                    tenant=record.tenant,
                    slots=assigned.slots,
                    app=name,
                    object=shape.object,
                    cluster=cluster,
                    optional=assigned.optional,
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
    return ProposalRefused(order_reasons(found, names), blocking=names)


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
