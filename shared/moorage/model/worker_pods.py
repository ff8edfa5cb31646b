"""Holds the fields that the Pods of all workers have which are installed in clusters of the fleet."""

from __future__ import annotations

from typing import Any

POD_SECURITY = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
#: The last fields of a container with a port `metrics`.
CONTAINER: dict[str, Any] = {
    "livenessProbe": {"httpGet": {"path": "/livez", "port": "metrics"}, "periodSeconds": 10, "failureThreshold": 6},
    "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}, "periodSeconds": 5},
    "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    "securityContext": CONTAINER_SECURITY,
    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
}
