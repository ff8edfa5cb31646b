"""Explains why clusters are not allowed: a code, the numbers, and the consumers whose needs are not met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moorage.fit import Fit, Rejection, explain, largest_shortage
from moorage.model.machine_slots import machine_of
from moorage.parsing import format_amount, readable_amount
from moorage.podspec import port_text
from moorage.sdk import Fleet, Mask, Reason, Shape, ShapedApp

from .actions import NAME

SAMPLES = 5
_RULES = {"PodAntiAffinity": "pod anti-affinity", "PodAffinity": "pod affinity", "TopologySpread": "topology spread"}


class Refusal(NamedTuple):
    """A reason, and the clusters that it is about."""

    reason: Reason
    clusters: Mask


class RefusalReasons:
    """The reasons for one app, about the clusters `within`. A cluster that fails for two of its objects is counted for
    each."""

    def __init__(self, fleet: Fleet, app: ShapedApp, within: Mask) -> None:
        self._fleet, self._app, self._within = fleet, app, within

    def reasons(self, shape_fits: Sequence[Fit], conflict: Mask | None) -> list[Refusal]:
        """`conflict`: clusters where the objects of the app fit each alone but not together."""
        fleet = self._fleet
        reasons = self._unusable()
        for shape, fit in zip(self._app.shapes, shape_fits, strict=True):
            refused = fleet.usable_clusters & self._within & ~fit.fits
            if refused.any():
                reasons += [self._of_shape(shape, rejection) for rejection in explain(fleet, shape, refused)]
        conflict = None if conflict is None else conflict & self._within
        if conflict is not None and conflict.any():
            objects = ", ".join(shape.object for shape in self._app.shapes)
            text, fields = _shortage(fleet, self._app.shapes, conflict)
            message = f"{objects} fit there alone, but not together{text}"
            reasons.append(self._reason("PackingFails", conflict, message, **fields))
        return reasons

    def _unusable(self) -> list[Refusal]:
        """Returns the reasons for clusters that take nothing at the moment."""
        fleet = self._fleet
        unusable = fleet.known & self._within & ~fleet.usable_clusters
        if not fleet.known.any():
            return [Refusal(Reason(code="NoClusters", message="no cluster reports", app=self._app.name), unusable)]
        states = {"Stale": np.zeros(fleet.size, np.bool_), "Cordoned": np.zeros(fleet.size, np.bool_)}
        for cid in np.flatnonzero(unusable).tolist():
            state = fleet.state(cid)
            if state in states:
                states[state][cid] = True
        texts = {"Stale": "has not reported for three periods", "Cordoned": "is cordoned"}
        return [
            self._reason(f"Cluster{state}", clusters, f"the cluster {texts[state]}")
            for state, clusters in states.items()
            if clusters.any()
        ]

    def _reason(self, code: str, clusters: Mask, message: str, **fields: str) -> Refusal:
        reason = Reason(
            code=code,
            message=message,
            app=self._app.name,
            clusters=int(np.count_nonzero(clusters)),
            samples=self._fleet.clusters.named(clusters, SAMPLES),
            **fields,
        )
        return Refusal(reason, clusters)

    def _of_shape(self, shape: Shape, rejection: Rejection) -> Refusal:
        code, clusters, resource = rejection.code, rejection.clusters, rejection.resource
        if code == "LabelMissing":
            message = f"no node carries {rejection.label}, which {shape.object} needs"
            key = rejection.label.partition("=")[0]
            return self._reason(code, clusters, message, need=key, consumer=_consumers(shape, key))
        if code == "NodesUnusable":
            message = f"every node that would do for {shape.object} is not ready, unschedulable or has a taint"
            return self._reason(code, clusters, message, consumer=_consumers(shape))
        if code == "CapacityShort":
            message = f"room for at most {rejection.best} of the {rejection.needed} pods of {shape.object}"
            amounts = {"needed": str(rejection.needed), "free": str(rejection.best)}
            return self._reason(code, clusters, message, consumer=_consumers(shape), need="pods", **amounts)
        if code == "SlotShort":
            need = resource or next((name for name in shape.resources if machine_of(name) is not None), "")
            pods = (
                f"a pod of {shape.object} needs one slot"
                if resource
                else f"{shape.object} needs {rejection.needed} slots"
            )
            message = f"{pods} of {shape.machine}; at most {max(0, rejection.best)} {'is' if rejection.best == 1 else 'are'} free there"
            amounts = {"needed": str(rejection.needed), "free": str(max(0, rejection.best))}
            return self._reason(code, clusters, message, consumer=_consumers(shape, need), need=need, **amounts)
        if code in _RULES:
            message = f"{_RULES[code]} leaves room for at most {rejection.best} of the {rejection.needed} pods of {shape.object}"
            amounts = {"needed": str(rejection.needed), "free": str(rejection.best)}
            return self._reason(code, clusters, message, consumer=_consumers(shape), need="pods", **amounts)
        if code == "HostPortTaken":
            where = "a node" if shape.per_node else "every node"
            message = f"{port_text(resource)}, which {shape.object} needs, is in use on {where}"
            fields = {"need": port_text(resource), "needed": str(rejection.needed), "free": "0"}
            return self._reason(code, clusters, message, consumer=_consumers(shape), **fields)
        if not resource:
            return self._reason(code, clusters, f"{shape.object}: {rejection.message}", consumer=_consumers(shape))
        needed, free = format_amount(resource, rejection.needed), format_amount(resource, rejection.best)
        where = "every node" if shape.per_node else "one node"
        most, short = (readable_amount(resource, n) for n in (rejection.best, rejection.needed - rejection.best))
        message = f"a pod of {shape.object} needs {readable_amount(resource, rejection.needed)} {resource} on {where}"
        message += f"; at most {most} is free there, {short} too little"
        if rejection.unusable:
            more = readable_amount(resource, rejection.unusable)
            message += f". A node with {more} free is not ready, unschedulable or has a taint"
        consumer = _consumers(shape, resource)
        return self._reason(code, clusters, message, consumer=consumer, need=resource, needed=needed, free=free)


def conflict_reason(fleet: Fleet, a: ShapedApp, b: ShapedApp, clusters: Mask) -> Reason:
    """Returns the reason for clusters where two apps fit each alone but not together."""
    text, fields = _shortage(fleet, [*a.shapes, *b.shapes], clusters)
    return Reason(
        code="AppsConflict",
        message=f"{a.name} and {b.name} fit there alone, but not together{text}",
        app=a.name,
        clusters=int(np.count_nonzero(clusters)),
        samples=fleet.clusters.named(clusters, SAMPLES),
        by=NAME,
        **fields,
    )


def _shortage(fleet: Fleet, shapes: Sequence[Shape], clusters: Mask) -> tuple[str, dict[str, str]]:
    """Returns what these pods together lack most: the rest of a sentence, and fields of a reason."""
    shortage = largest_shortage(fleet, shapes, clusters)
    if shortage is None:
        return "", {}
    fields = shortage.reason_fields()
    needed, free = (readable_amount(shortage.resource, n) for n in (shortage.needed, shortage.free))
    text = f": they need {needed} {fields['need']}, one cluster has at most {free} free{shortage.caveat}"
    return text, fields


def _consumers(shape: Shape, need: str = "") -> str:
    """Returns the consumers that have this need; if the object's own manifest has it, the name of the object."""
    names = [n.consumer for n in shape.needs if n.consumer and (not need or need in (n.name, (n.label or ("",))[0]))]
    return ", ".join(dict.fromkeys(names)) or shape.object.partition("/")[2]
