"""Proposes a decision for a revision from the controllers' answers, the fleet and the ledger, or gives reasons against one."""

from __future__ import annotations

import numpy as np

from moorage.candidates import Choice, choose, merge
from moorage.fit import PackingSolutions, unsupported_reason
from moorage.fleet import Fleet
from moorage.ledger import Ledger, existing_placement
from moorage.model.claims import Decision
from moorage.model.groups import Revision
from moorage.model.reasons import Reason

from .assigner import Assigner
from .cluster_names import NameOrder
from .decision_claims import decision_of
from .free_capacity import free_capacity, own_room
from .partial_sets import choice_without_partial, leave_out_unfit, leave_room
from .refusal import ProposalRefused, replicas_conflict, search_bound, why_no_choice
from .responses import ControllerResults, placement_masks
from .tried_choices import TriedChoices

__all__ = ["MOST_PARTIAL", "TRIES", "NameOrder", "ProposalRefused", "TriedChoices", "propose"]

#: Choices of clusters that are tried with an exact assignment. Each failure costs about as much as a decision.
TRIES = 32
#: Clusters of partial sets that are tried one by one where no choice holds them all.
MOST_PARTIAL = 512


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
            [replicas_conflict(record, mismatch.app, mismatch.counts) for mismatch in merged.count_mismatches],
            final=True,
        )
    existing = existing_placement(record, fleet, ledger)
    ranks = names.ranks(fleet)
    room = free_capacity(record, fleet)
    own = own_room(record, fleet, existing.own)
    assigner = Assigner(record, fleet, ledger, existing.own, solutions)
    for _ in range(TRIES):
        chosen = choose(merged, room, ranks, current=existing.current, own=own, failed=assigner.failures)
        if not isinstance(chosen, Choice):
            if sum(int(np.count_nonzero(merged.masks[number])) for number in merged.partial) > MOST_PARTIAL:
                break
            if leave_out_unfit(merged, assigner):
                continue
            others = choice_without_partial(merged, room, ranks, existing, own, assigner)
            if others is not None and leave_room(merged, others, assigner):
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
            return decision_of(record, merged, chosen, places, assigner, fleet, results, decision, ledger)
        for cid, apps in assigner.failures:
            for app in apps & merged.partial if len(apps) == 1 else ():
                merged.leave_out(app, cid)
    else:
        return search_bound(f"{TRIES} choices did not fit together", merged, assigner)
    if chosen.truncated:
        return search_bound("no choice of clusters was found within the bounds", merged, assigner)
    left = placement_masks(results, fleet)
    return why_no_choice(record, merged, room, ranks, chosen.short, fleet, assigner, left)
