"""Says why there is no decision for a revision."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moorage.candidates import Choice, FreeCapacity, Mask, PlacementProblem, choose
from moorage.fleet import Fleet
from moorage.model.claims import Slot
from moorage.model.groups import Revision
from moorage.model.reasons import Reason
from moorage.model.shapes import EXCLUSIVE, Shape

from .assigner import Assigner
from .cluster_names import SAMPLES, listed
from .funnel import Shortfall
from .responses import order_reasons


@dataclass(slots=True)
class ProposalRefused:
    """The reasons why there is no decision. `final`: only changed documents help. `overtaken`: others took the room each time it was
    found. `blocking`: the apps that cannot be placed, the one that lacks most first."""

    reasons: list[Reason]
    final: bool = False
    overtaken: bool = False
    blocking: Sequence[str] = ()
    shortfall: Shortfall | None = None  # once every app has its controllers' answers


def search_bound(message: str, merged: PlacementProblem, assigner: Assigner) -> ProposalRefused:
    bound = Reason(code="SearchBound", by="merger", message=message)
    shortfall = assigner.shortfall(merged.replicas)
    blocking = assigner.failed_apps()
    reasons = [bound, *assigner.reasons(), *in_two_steps(assigner, blocking)]
    return ProposalRefused(reasons, blocking=blocking, shortfall=shortfall)


def in_two_steps(assigner: Assigner, blocking: Collection[str]) -> list[Reason]:
    """Returns where the apps that block would fit once other objects of the update are smaller or gone: what these give back is not
    there for it, because their pods run until it is decided."""
    fleet, where = assigner.fleet, dict[str, list[str]]()
    shapes = {(app.name, shape.object): shape for app in assigner.record.apps for shape in app.shapes}
    for cluster in sorted({cluster for of_app in assigner.own.values() for cluster in of_app}):
        held = {  # of several claims of an object the newest comes last
            (app, claim.object): claim.slots
            for app, of_app in assigner.own.items()
            for claim in of_app.get(cluster, ())
        }
        asked: dict[str, int] = {}
        given: dict[tuple[str, str], dict[str, int]] = {}
        for key in {**held, **shapes}:
            if key in shapes and shapes[key].per_node:
                continue
            more, less = _difference(held.get(key, ()), shapes.get(key))
            if not more:
                given[key] = less
            elif key[0] in blocking:
                asked = {name: asked.get(name, 0) + more.get(name, 0) for name in {**asked, **more}}
        cid = fleet.ids.get(cluster)
        free = {name: 0 if cid is None else max(0, int(fleet.sums(name)[0][cid])) for name in asked}
        short = {name: n - free[name] for name, n in asked.items()}
        short = {name: n for name, n in short.items() if n > 0}
        giving = sorted(key for key, less in given.items() if less.keys() & short.keys())
        if giving and all(n <= sum(given[key].get(name, 0) for key in giving) for name, n in short.items()):
            named = " and ".join(f"{obj} of {app}" for app, obj in giving)
            where.setdefault(named, []).append(cluster)
    return [
        Reason(
            code="UpdateHoldsRoom",
            app=" ".join(blocking),
            clusters=len(clusters),
            samples=clusters[:SAMPLES],
            by="merger",
            message=f"{named} will need less, and hold their room until their pods are gone; make the update in two steps, "
            "first what gets smaller or goes, then the rest",
        )
        for named, clusters in where.items()
    ]


def _difference(held: Sequence[Slot], shape: Shape | None) -> tuple[dict[str, int], dict[str, int]]:
    """Returns how much more than these slots have an object asks for, and how much less."""
    before: dict[str, int] = {}
    for slot in held:
        for name, amount in slot.resources.items() if not slot.surge else ():
            before[name] = before.get(name, 0) + amount * slot.count
    least: dict[str, int] = {}
    most: dict[str, int] = {}  # with all its optional needs
    if shape is not None:
        least = {name: amount * shape.count for name, amount in shape.resources.items()}
        most = dict(least)
        for name, amount in ((n, a) for optional in shape.optional for n, a in optional.resources.items()):
            most[name] = most.get(name, 0) + amount * shape.count
    names = (before.keys() | least.keys()) - {EXCLUSIVE}
    more = {name: least.get(name, 0) - before.get(name, 0) for name in names}
    less = {name: before.get(name, 0) - most.get(name, 0) for name in names}
    return {name: n for name, n in more.items() if n > 0}, {name: n for name, n in less.items() if n > 0}


def replicas_conflict(record: Revision, app: int, counts: dict[str, int]) -> Reason:
    wanted = ", ".join(f"{name} {count}" for name, count in counts.items())
    message = f"controllers want different numbers of clusters: {wanted}"
    return Reason(code="ReplicasConflict", app=record.apps[app].name, message=message, by="merger")


def why_no_choice(
    record: Revision,
    merged: PlacementProblem,
    room: FreeCapacity,
    ranks: NDArray[np.int64],
    short: dict[int, int],
    fleet: Fleet,
    assigner: Assigner,
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
                message += f"; every one must take it, and {listed(fleet, lacking)} cannot"
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
    found += in_two_steps(assigner, names)
    shortfall = assigner.shortfall(merged.replicas, short)
    return ProposalRefused(order_reasons(found, names), blocking=names, shortfall=shortfall)


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
