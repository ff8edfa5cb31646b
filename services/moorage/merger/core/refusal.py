"""Says why there is no decision for a revision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moorage.candidates import Choice, FreeCapacity, Mask, PlacementProblem, choose
from moorage.fleet import Fleet
from moorage.model.groups import Revision
from moorage.model.reasons import Reason

from .assigner import Assigner
from .cluster_names import SAMPLES, listed
from .funnel import Shortfall
from .responses import order_reasons


@dataclass(slots=True)
class ProposalRefused:
    """Why there is no decision. `final`: only changed documents help. `overtaken`: others took the room each time it was
    found. `blocking`: the apps that cannot be placed, the one that lacks most first."""

    reasons: list[Reason]
    final: bool = False
    overtaken: bool = False
    blocking: Sequence[str] = ()
    shortfall: Shortfall | None = None  # once every app has its controllers' answers


def search_bound(message: str, merged: PlacementProblem, assigner: Assigner) -> ProposalRefused:
    bound = Reason(code="SearchBound", by="merger", message=message)
    shortfall = assigner.shortfall(merged.replicas)
    return ProposalRefused([bound, *assigner.reasons()], blocking=assigner.failed_apps(), shortfall=shortfall)


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
