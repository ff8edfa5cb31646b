"""Reads what pods ask for from Kubernetes objects as plain data: templates, requests, workloads, JSON patches. Nothing is
changed in place, because thousands of clusters may share one object."""

from __future__ import annotations

from .admission import Refusals, is_refusal
from .claim_gate import (
    CLAIM,
    CLASS_OF_PIN,
    GATE,
    PARTS,
    PIN_PREFIX,
    PINNED_DEVICES,
    Assignment,
    ClaimedPod,
    assign,
    has_gate,
)
from .host_ports import (
    HostPort,
    host_port,
    is_host_port,
    node_amount,
    parse_host_port,
    port_amounts,
    port_text,
    ports_in,
)
from .json_patch import PointerError, diff, format_pointer, list_index, parse_pointer, with_value, with_values
from .node_affinity import pinned_node, pinned_to, with_preferred, with_required
from .requests import (
    ContainerResources,
    container_resources,
    exclusive_cores,
    is_guaranteed,
    pod_requests,
    while_resized,
    whole_cores,
)
from .tolerations import DAEMON_SET_TOLERATIONS
from .workloads import REPLICATED, WORKLOADS, containers, find, named, object_key, pod_spec, template, template_path

__all__ = [
    "CLAIM",
    "CLASS_OF_PIN",
    "DAEMON_SET_TOLERATIONS",
    "GATE",
    "PARTS",
    "PINNED_DEVICES",
    "PIN_PREFIX",
    "REPLICATED",
    "WORKLOADS",
    "Assignment",
    "ClaimedPod",
    "ContainerResources",
    "HostPort",
    "PointerError",
    "Refusals",
    "assign",
    "container_resources",
    "containers",
    "diff",
    "exclusive_cores",
    "find",
    "format_pointer",
    "has_gate",
    "host_port",
    "is_guaranteed",
    "is_host_port",
    "is_refusal",
    "list_index",
    "named",
    "node_amount",
    "object_key",
    "parse_host_port",
    "parse_pointer",
    "pinned_node",
    "pinned_to",
    "pod_requests",
    "pod_spec",
    "port_amounts",
    "port_text",
    "ports_in",
    "template",
    "template_path",
    "while_resized",
    "whole_cores",
    "with_preferred",
    "with_required",
    "with_value",
    "with_values",
]
