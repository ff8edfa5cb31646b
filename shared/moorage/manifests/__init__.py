"""Kubernetes objects as plain data: where each kind keeps its pod template, and patches on them. Nothing is changed in
place: what comes in may be shared by thousands of clusters."""

from __future__ import annotations

from .kinds import WORKLOADS, containers, find, named, object_key, pod_spec, template, template_path
from .patches import PatchError, apply, diff, escape, pointer, replaced

__all__ = [
    "WORKLOADS",
    "PatchError",
    "apply",
    "containers",
    "diff",
    "escape",
    "find",
    "named",
    "object_key",
    "pod_spec",
    "pointer",
    "replaced",
    "template",
    "template_path",
]
