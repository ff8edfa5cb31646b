"""Explains why slots fit nowhere on the cluster on which they were decided."""

from __future__ import annotations

from moorage.model.claims import Shortfall
from moorage.model.reasons import Reason
from moorage.parsing import format_amount


def displaced_reason(cluster: str, shortfall: Shortfall) -> Reason:
    """Returns the reason, `Displaced` with its numbers or `NodeRefused` with the words of the kubelet."""
    name = shortfall.resource
    needed, free = format_amount(name, shortfall.needed), format_amount(name, shortfall.free)
    if shortfall.refused:
        message = f"a node of {cluster} refused a pod and no other fits: {shortfall.refused}"
        return Reason(code="NodeRefused", by="merger", cluster=cluster, clusters=1, samples=[cluster], message=message)
    message = f"other pods took the room in {cluster}: a pod needs {needed} {name}, "
    if shortfall.free < shortfall.needed:
        message += f"the best node has {free} free"
    else:
        message += f"and no node that it may use has that and everything else free (best {free})"
    return Reason(
        code="Displaced",
        by="merger",
        cluster=cluster,
        clusters=1,
        samples=[cluster],
        needed=needed,
        free=free,
        message=message,
    )
