"""The tolerations that Kubernetes adds to pods by itself."""

from __future__ import annotations

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
