"""The trees and queries of the placement benchmarks, the same for the worker and its peer."""

from __future__ import annotations

import uuid
from typing import NamedTuple


class Tree(NamedTuple):
    """A provider with its inventories and traits; `parent` is a uuid, and comes before it."""

    uuid: str
    name: str
    parent: str | None
    inventories: dict[str, int]
    traits: list[str]


def _tree(name: str, parent: Tree | None, inventories: dict[str, int], *traits: str) -> Tree:
    ident = str(uuid.uuid5(uuid.NAMESPACE_URL, f"bench/{name}"))
    return Tree(ident, name, parent.uuid if parent is not None else None, inventories, list(traits))


def hosts(count: int) -> list[Tree]:
    """Hosts of the seed with two zones and a card in each; every tenth attaches volumes to several guests."""
    found = []
    for number in range(count):
        traits = ["COMPUTE_VOLUME_MULTI_ATTACH"] if number % 10 == 0 else []
        root = _tree(f"host-{number}", None, {"DISK_GB": 1000}, *traits)
        found.append(root)
        for zone in range(2):
            numa = _tree(f"host-{number}-numa{zone}", root, {"VCPU": 16, "MEMORY_MB": 32768}, "HW_NUMA_ROOT")
            found += [numa, _tree(f"host-{number}-fpga{zone}", numa, {"FPGA": 1})]
    return found


def wide(name: str, count: int, children: int, offers: str) -> list[Tree]:
    """Hosts with many children that offer one of a class each."""
    found = []
    for number in range(count):
        root = _tree(f"{name}-{number}", None, {})
        found += [root, *(_tree(f"{name}-{number}-{i}", root, {offers: 1}) for i in range(children))]
    return found


def groups(count: int, offers: str) -> str:
    """Returns the query of so many groups of one each."""
    return "&".join(f"resources_{i}={offers}:1" for i in range(count)) + "&group_policy=none"


_GUEST = "VCPU:4,MEMORY_MB:4096"

#: Queries by name, with how many times faster than the peer the first candidates are to be.
QUERIES: dict[str, tuple[str, int]] = {
    "simple": ("resources=VCPU:2,MEMORY_MB:512", 100),
    "the seed's same_subtree": (
        "resources_COMPUTE=VCPU:2,MEMORY_MB:512&resources_ACCEL=FPGA:1&same_subtree=_COMPUTE,_ACCEL&group_policy=none",
        100,
    ),
    "guest in two zones": (
        f"resources_A={_GUEST}&required_A=HW_NUMA_ROOT&resources_B={_GUEST}&required_B=HW_NUMA_ROOT&group_policy=isolate",
        100,
    ),
    "root_required": ("resources=VCPU:2,MEMORY_MB:512&root_required=COMPUTE_VOLUME_MULTI_ATTACH", 60),
}
