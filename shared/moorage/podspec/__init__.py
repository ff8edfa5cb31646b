"""What pods ask for, read from Kubernetes objects as plain data: templates, requests, workloads, JSON patches. Nothing
is changed in place, because thousands of clusters may share one object."""

from __future__ import annotations

from .json_patch import PatchError, apply, assigned, diff, escape, pointer, replaced, split
from .requests import (
    ContainerResources,
    container_requests,
    container_resources,
    exclusive_cores,
    is_guaranteed,
    pod_requests,
    while_resized,
    whole_cores,
)
from .workloads import REPLICATED, WORKLOADS, containers, find, named, object_key, pod_spec, template, template_path

__all__ = [
    "REPLICATED",
    "WORKLOADS",
    "ContainerResources",
    "PatchError",
    "apply",
    "assigned",
    "container_requests",
    "container_resources",
    "containers",
    "diff",
    "escape",
    "exclusive_cores",
    "find",
    "is_guaranteed",
    "named",
    "object_key",
    "pod_requests",
    "pod_spec",
    "pointer",
    "replaced",
    "split",
    "template",
    "template_path",
    "while_resized",
    "whole_cores",
]
