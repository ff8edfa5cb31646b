"""Kubernetes objects as plain data: where each kind keeps its pod template, and patches on them. Nothing is changed in
place: what comes in may be shared by thousands of clusters."""

from __future__ import annotations

from .json_patch import PatchError, apply, assigned, diff, escape, pointer, replaced, split
from .workloads import WORKLOADS, containers, find, named, object_key, pod_spec, template, template_path

__all__ = [
    "WORKLOADS",
    "PatchError",
    "apply",
    "assigned",
    "containers",
    "diff",
    "escape",
    "find",
    "named",
    "object_key",
    "pod_spec",
    "pointer",
    "replaced",
    "split",
    "template",
    "template_path",
]
