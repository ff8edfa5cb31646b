"""Explains why slots fit nowhere on the cluster on which they were decided."""

from __future__ import annotations

from moorage.model.claims import Shortfall
from moorage.model.reasons import Reason
from moorage.parsing import format_amount


def displaced_reason(cluster: str, shortfall: Shortfall) -> Reason:
    """Returns the reason, `Displaced` with its numbers, `NodeRefused` with the words of the kubelet, or what is wrong with
    devices."""
    name = shortfall.resource
    if shortfall.code:
        return _of_devices(cluster, shortfall)
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


def _of_devices(cluster: str, lack: Shortfall) -> Reason:
    samples = sorted(lack.devices)[:3]
    named = ", ".join(f"{part} ({lack.devices[part]})" for part in samples)
    named += f" and {len(lack.devices) - len(samples)} more" if len(lack.devices) > len(samples) else ""
    if lack.code == "MassFailure":
        message = (
            f"{lack.needed} of {lack.needed + lack.free} {lack.resource} of {cluster} failed within a minute, so pods stay: {named}; "
            f"`moorage devices move {cluster}` lets them go elsewhere"
        )
    else:
        message = f"devices of {cluster} failed, and nothing else fits the pods that have them: {named}"
        message += f"; {lack.free} other {lack.resource} are free there"
    return Reason(
        code=lack.code,
        by="merger",
        cluster=cluster,
        clusters=1,
        samples=[cluster],
        needed=str(lack.needed),
        free=str(lack.free),
        message=message,
    )
