"""What hpa says of clusters that it does not allow: a code, the numbers, and whose need it was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moorage.fit import Fit, Mask, Rejection, explain, largest_shortage
from moorage.fleet import Fleet
from moorage.model.reasons import Reason
from moorage.model.shapes import Shape, ShapedApp
from moorage.parsing import format_amount

SAMPLES = 5


class RefusalReasons:
    """All reasons for one app; a cluster that fails for two of its objects is counted for each."""

    def __init__(self, fleet: Fleet, app: ShapedApp) -> None:
        self._fleet, self._app = fleet, app

    def reasons(self, rooms: Sequence[Fit], torn: Mask | None) -> list[Reason]:
        fleet = self._fleet
        found = self._unusable()
        for shape, room in zip(self._app.shapes, rooms, strict=True):
            refused = fleet.usable_clusters & ~room.fits
            if refused.any():
                found += [self._of_shape(shape, figure) for figure in explain(fleet, shape, refused)]
        if torn is not None and torn.any():
            objects = ", ".join(shape.object for shape in self._app.shapes)
            message, more = together(fleet, f"{objects} fit there alone, but not together", self._app.shapes, torn)
            found.append(self._reason("PackingFails", torn, message, **more))
        return found

    def _unusable(self) -> list[Reason]:
        """Clusters to which nothing goes at all now."""
        fleet = self._fleet
        out = fleet.known & ~fleet.usable_clusters
        if not fleet.known.any():
            return [Reason(code="NoClusters", message="no cluster reports", app=self._app.name)]
        states = {"Stale": np.zeros(fleet.size, np.bool_), "Cordoned": np.zeros(fleet.size, np.bool_)}
        for cid in np.flatnonzero(out).tolist():
            state = fleet.state(cid)
            if state in states:
                states[state][cid] = True
        words = {"Stale": "has not reported for three periods", "Cordoned": "is cordoned"}
        return [
            self._reason(f"Cluster{s}", mask, f"the cluster {words[s]}") for s, mask in states.items() if mask.any()
        ]

    def _reason(self, code: str, clusters: Mask, message: str, **more: str) -> Reason:
        return Reason(
            code=code,
            message=message,
            app=self._app.name,
            clusters=int(np.count_nonzero(clusters)),
            samples=self._fleet.clusters.named(clusters, SAMPLES),
            **more,
        )

    def _of_shape(self, shape: Shape, figure: Rejection) -> Reason:
        if figure.code == "LabelMissing":
            message = f"no node carries {figure.label}, which {shape.object} needs"
            key = figure.label.partition("=")[0]
            return self._reason(figure.code, figure.clusters, message, need=key, consumer=_consumers(shape, key))
        if figure.code == "NodesUnusable":
            message = f"every node that would do for {shape.object} is not ready, unschedulable or has a taint"
            return self._reason(figure.code, figure.clusters, message, consumer=_consumers(shape))
        if figure.code == "CapacityShort":
            message = f"room for at most {figure.best} of the {figure.needed} pods of {shape.object}"
            amounts = {"needed": str(figure.needed), "free": str(figure.best)}
            return self._reason(
                figure.code, figure.clusters, message, consumer=_consumers(shape), need="pods", **amounts
            )
        if not figure.resource:
            message = f"{shape.object}: {figure.message}"
            return self._reason(figure.code, figure.clusters, message, consumer=_consumers(shape))
        needed, free = format_amount(figure.resource, figure.needed), format_amount(figure.resource, figure.best)
        short = format_amount(figure.resource, figure.needed - figure.best)
        what = "every node" if shape.per_node else "one node"
        message = f"a pod of {shape.object} needs {needed} {figure.resource} on {what}"
        message += f"; at most {free} is free there, {short} too little"
        return self._reason(
            figure.code,
            figure.clusters,
            message,
            consumer=_consumers(shape, figure.resource),
            need=figure.resource,
            needed=needed,
            free=free,
        )


def together(fleet: Fleet, message: str, shapes: Sequence[Shape], where: Mask) -> tuple[str, dict[str, str]]:
    """What pods that do not go together lack: a sentence, and the fields of a reason."""
    scarce = largest_shortage(fleet, shapes, where)
    if scarce is None:
        return message, {}
    more = scarce.reason_fields()
    message += (
        f": they need {more['needed']} {scarce.resource}, one cluster has at most {more['free']} free{scarce.caveat}"
    )
    return message, more


def _consumers(shape: Shape, need: str = "") -> str:
    """The consumers that asked for it; where nobody did by name, it is the object's own."""
    names = [n.consumer for n in shape.needs if n.consumer and (not need or need in (n.name, (n.label or ("",))[0]))]
    return ", ".join(dict.fromkeys(names)) or shape.object.partition("/")[2]
