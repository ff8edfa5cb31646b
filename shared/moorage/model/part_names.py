"""Names of the classes and traits of parts. Reports, documents and fleet files may write `CUSTOM_` before those that are not
standard ones of OpenStack. Everything behind their decoders has them without it, and has Kubernetes resources by the names
and in the units of Kubernetes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from .shapes import EXCLUSIVE

CUSTOM = "CUSTOM_"
HW_NUMA_ROOT = "HW_NUMA_ROOT"
_CLASS = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)


class KubernetesResource(NamedTuple):
    """The Kubernetes resource that a standard class is, and how many of its units one unit of the class has."""

    name: str
    units: int


KUBERNETES_RESOURCES = {
    "VCPU": KubernetesResource("cpu", 1000),
    "PCPU": KubernetesResource(EXCLUSIVE, 1),
    "MEMORY_MB": KubernetesResource("memory", 1 << 20),
    "DISK_GB": KubernetesResource("ephemeral-storage", 1 << 30),
}


def is_class(name: str) -> bool:
    """Returns whether the name is one of a class of parts, not of a Kubernetes resource."""
    return _CLASS.fullmatch(name) is not None


@lru_cache(4096)
def is_part_class(name: str) -> bool:
    """Returns whether only parts have the class, so that no manifest requests it."""
    return is_class(name) and name not in KUBERNETES_RESOURCES


def short_name(name: str) -> str:
    """Returns the name of a class or trait as everything behind the decoders has it."""
    return name.removeprefix(CUSTOM)
