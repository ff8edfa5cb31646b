"""Reads the tolerations of pods, and names those that Kubernetes adds by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.model.shapes import Toleration

#: The DaemonSet controller adds these to its pods, so that they run on nodes in these states.
DAEMON_SET_TOLERATIONS = tuple(
    Toleration(key=f"node.kubernetes.io/{condition}", operator="Exists", effect=effect)
    for condition, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)


def tolerations_of(spec: Mapping[str, Any]) -> tuple[Toleration, ...]:
    """Returns the tolerations of a pod's spec."""
    return tuple(
        Toleration(
            key=str(t.get("key") or ""),
            operator=str(t.get("operator") or "Equal"),
            value=str(t.get("value") or ""),
            effect=str(t.get("effect") or ""),
        )
        for t in spec.get("tolerations") or ()
    )
