"""Names of nodes and parts of clusters in the Placement interface: uuids, classes, traits and aggregates."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable
from functools import lru_cache

import os_resource_classes
import os_traits

from moorage.model.part_names import CUSTOM, KUBERNETES_RESOURCES

from .schemas import is_uuid

#: The trait of nodes on which nothing new is placed.
DISABLED = "COMPUTE_STATUS_DISABLED"
CLAIM = "MOORAGE_CLAIM"
_STANDARD_TRAITS = frozenset(os_traits.get_traits())
_STANDARD_CLASSES = frozenset(os_resource_classes.STANDARDS)
_CLASS_OF = {found.name: name for name, found in KUBERNETES_RESOURCES.items()}
_UNITS = {found.name: found.units for found in KUBERNETES_RESOURCES.values()}
_OTHER = re.compile("[^A-Z0-9_]")
_CPU_FEATURE = re.compile(r"(?:.*/)?cpu-cpuid\.([A-Za-z0-9_.-]+)")
_TRAIT_LABEL = re.compile(r"(?:.*/)?([A-Z0-9_]+)")
_ARCHITECTURES = {"amd64": "X86_64", "arm64": "AARCH64", "ppc64le": "PPC64LE", "s390x": "S390X"}
_CPU_PREFIX = {"arm64": "HW_CPU_AARCH64_", "ppc64le": "HW_CPU_PPC64LE_"}
_NAMESPACE = uuid.NAMESPACE_URL.bytes
#: Numbers for the trees of a cluster: so many for nodes, and as many for what several nodes reach.
TREES = 1 << 20


def uuids_of(cluster: str) -> Callable[[str], str]:
    """Returns the function that names the nodes and parts of a cluster by their ids, as `provider_uuid` does."""
    base = hashlib.sha1(_NAMESPACE + f"moorage:part/{cluster}/".encode(), usedforsecurity=False)

    def of(ident: str) -> str:
        digest = base.copy()
        digest.update(ident.encode())
        found = bytearray(digest.digest()[:16])
        found[6] = found[6] & 0x0F | 0x50
        found[8] = found[8] & 0x3F | 0x80
        text = found.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    return of


def is_reported(provider: str) -> bool:
    """Returns whether a uuid may be one of a node or part: all of these have version 5."""
    return len(provider) == 36 and provider[14] == "5"


def claim_uuid(claim: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"moorage:claim/{claim}"))


@lru_cache(65536)
def cluster_aggregate(cluster: str) -> str:
    """Returns the aggregate of all nodes of a cluster."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"moorage:cluster/{cluster}"))


def first_of_cluster(cluster: str) -> int:
    """Returns the number of a cluster's first tree in the order of candidates. It follows from the cluster's name, so that another
    worker has the same, and is more than those of made trees."""
    return (1 << 62) + (uuid.UUID(cluster_aggregate(cluster)).int >> 87) * 2 * TREES


@lru_cache(65536)
def aggregate_of(cluster: str, name: str) -> str:
    """Returns the aggregate that a report names: itself if it is a uuid, else one of the cluster's own."""
    if is_uuid(name):
        return name
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"moorage:aggregate/{cluster}/{name}"))


@lru_cache(65536)
def class_of(native: str) -> str:
    """Returns the resource class of an amount of a node or part."""
    known = _CLASS_OF.get(native)
    if known is not None:
        return known
    return native if native in _STANDARD_CLASSES else CUSTOM + _OTHER.sub("_", native.upper())


def units_of(native: str) -> int:
    """Returns how many units of a node's amount one unit of its class has."""
    return _UNITS.get(native, 1)


@lru_cache(65536)
def trait_of(short: str) -> str:
    """Returns the trait of a name as fleets have it."""
    return short if short in _STANDARD_TRAITS else CUSTOM + _OTHER.sub("_", short.upper())


def cpu_traits(labels: dict[str, str]) -> frozenset[str]:
    """Returns the traits of the cpus of a node with these labels: they belong to each part that offers cpu."""
    prefix = _CPU_PREFIX.get(labels.get("kubernetes.io/arch", ""), "HW_CPU_X86_")
    found = (_CPU_FEATURE.fullmatch(name) for name, value in labels.items() if value == "true")
    return frozenset(trait_of(prefix + _OTHER.sub("_", match[1].upper())) for match in found if match is not None)


def node_traits(labels: dict[str, str]) -> frozenset[str]:
    """Returns the traits of a node with these labels: its architecture, and labels that are named like a trait."""
    found = {
        match[1]
        for name, value in labels.items()
        if value == "true" and (match := _TRAIT_LABEL.fullmatch(name)) is not None
    }
    traits = {name for name in found if name in _STANDARD_TRAITS or name.startswith(CUSTOM)}
    architecture = _ARCHITECTURES.get(labels.get("kubernetes.io/arch", ""))
    if architecture is not None and f"HW_ARCH_{architecture}" in _STANDARD_TRAITS:
        traits.add(f"HW_ARCH_{architecture}")
    return frozenset(traits)
