"""Assigns slots to the apps of a revision that share a cluster, and keeps why they do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moorage.candidates import FailedPlacement
from moorage.fit import PackingSolutions, Shortage, Unassigned, largest_shortage
from moorage.fleet import Fleet
from moorage.ledger import Ledger, OwnClaims, Placed, Wanted, assign_beside_own, wanted_on
from moorage.model.claims import OptionalGrant, Slot
from moorage.model.groups import Revision
from moorage.model.reasons import Reason
from moorage.model.shapes import Shape
from moorage.parsing import format_amount, readable_amount

from .funnel import Shortfall


@dataclass(slots=True)
class AssignedShape:
    """The slots of one shape on one cluster, and whether all its pods have each of its optional needs. `replaces`: the
    object's claim there before. `surge_left_out`: pods that its rollout has no room for."""

    app: int
    shape: Shape
    claim: str
    slots: list[Slot]
    optional: list[OptionalGrant]
    replaces: str = ""
    surge_left_out: int = 0


class Assigner:
    """Assigns slots exactly to apps that share a cluster. Each combination is tried once."""

    def __init__(
        self, record: Revision, fleet: Fleet, ledger: Ledger, own: OwnClaims, solutions: PackingSolutions | None
    ) -> None:
        self.record, self.fleet, self.ledger, self.own, self.solutions = record, fleet, ledger, own, solutions
        self.assigned: dict[tuple[int, frozenset[int]], list[AssignedShape]] = {}
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
            AssignedShape(
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
