"""Generates fleets with many kinds of node, regions, sites and usage. Equal seeds give equal fleets."""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache

from moorage.model.reports import Taint

from .cluster_spec import ClusterSpec, NodeKind, NodeRun

_REGIONS = ("eu-west", "eu-north", "us-east", "us-west", "ap-south", "ap-east", "sa-east", "af-south")
_CPUS = (("Intel", "6338N"), ("Intel", "8592V"), ("AMD", "7763"), ("AMD", "9654"), ("ARM", "N1"))
_FLAGS = ("AVX", "AVX2", "AVX512F", "AVX512VNNI", "AMXTILE", "AESNI", "SHA", "SSE4.2")
_GPUS = ("", "", "", "A2", "L4", "A100")
_PREFIX = "feature.node.kubernetes.io/"
KINDS = 24
#: Every fleet with at least this many nodes has at least this many kinds.
MIN_KINDS = 20
LABELS = 25


def _kind(number: int) -> NodeKind:
    """Generates a kind of node with sizes, features and labels that belong together."""
    rng = random.Random(number * 7919 + 1)
    cores = (2, 4, 8, 16, 32, 64, 96, 128)[number % 8]
    vendor, model = _CPUS[number % len(_CPUS)]
    gpu = _GPUS[number % len(_GPUS)] if cores >= 8 else ""
    gigabytes = cores * (2, 4, 8)[number % 3]
    allocatable = {
        "cpu": f"{cores * 1000 - 200}m",
        "memory": f"{gigabytes * 1024 - 512}Mi",
        "ephemeral-storage": f"{(50, 200, 900)[number % 3]}Gi",
        "pods": ("110", "250")[number % 2],
    }
    if gpu:
        allocatable["nvidia.com/gpu"] = str((1, 2, 4, 8)[number % 4])
    if number % 4 == 1:
        allocatable["hugepages-1Gi"] = f"{cores // 2}Gi"
    if number % 5 == 2:
        allocatable["intel.com/qat"] = "16"
    labels = {
        "kubernetes.io/arch": "arm64" if vendor == "ARM" else "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": f"k{number}.{cores}c",
        _PREFIX + "cpu-model.vendor_id": vendor,
        _PREFIX + "cpu-model.id": model,
        _PREFIX + "cpu-hardware_multithreading": "true" if number % 2 else "false",
        _PREFIX + "kernel-version.full": f"6.{number % 4 + 1}.{number}",
        _PREFIX + "system-os_release.ID": ("debian", "ubuntu", "flatcar")[number % 3],
        _PREFIX + "storage-nonrotationaldisk": "true" if number % 3 else "false",
        _PREFIX + "network-sriov.capable": "true" if number % 4 == 0 else "false",
        _PREFIX + "memory-numa": "true" if cores >= 32 else "false",
        "moorage.dev/tier": ("edge", "metro", "core")[number % 3],
    }
    for flag in rng.sample(_FLAGS, 2 + number % 6):
        labels[f"{_PREFIX}cpu-cpuid.{flag}"] = "true"
    if gpu:
        labels["nvidia.com/gpu.product"] = gpu
    while len(labels) < LABELS - 1:  # the last label is the host name
        labels[f"site.example/fact-{len(labels)}"] = f"v{rng.randrange(50)}"
    taints = (Taint(key="nvidia.com/gpu", effect="NoSchedule", value="present"),) if gpu == "A100" else ()
    static = number % 6 == 0
    return NodeKind(
        allocatable=allocatable,
        labels=labels,
        taints=taints,
        policy="static" if static else "",
        exclusive=cores // 2 if static else 0,
        ready=number != 17,
        unschedulable=number == 19,
    )


@lru_cache(1)
def kinds() -> tuple[NodeKind, ...]:
    return tuple(_kind(number) for number in range(KINDS))


def generate(clusters: int, nodes: int, seed: int) -> dict[str, ClusterSpec]:
    """Generates clusters of `nodes` nodes each. The two kinds that are not ready or unschedulable are rare."""
    rng = random.Random(seed)
    all_kinds = kinds()
    weights = [0.2 if not kind.ready or kind.unschedulable else 1.0 for kind in all_kinds]
    sites: list[tuple[dict[int, int], dict[str, str]]] = []
    for _ in range(clusters):
        region = rng.choice(_REGIONS)
        # Each site has only a few of the kinds.
        stock = rng.choices(range(KINDS), weights, k=min(nodes, rng.randint(2, 6))) if nodes else []
        counts: dict[int, int] = {}
        for i in range(nodes):
            kind = stock[i] if i < len(stock) else rng.choice(stock)
            counts[kind] = counts.get(kind, 0) + 1
        labels = {
            "region": region,
            "zone": f"{region}-{rng.randrange(4)}",
            "tier": rng.choice(("edge", "metro", "core")),
            "environment": rng.choice(("production", "production", "staging", "lab")),
        }
        sites.append((counts, labels))
    _diversify([counts for counts, _ in sites], weights)
    runs: dict[tuple[int, int], NodeRun] = {}
    fleet = {}
    width = len(str(max(clusters - 1, 0)))
    for number, (counts, labels) in enumerate(sites):
        site_runs = []
        for kind, count in sorted(counts.items()):
            key = (kind, count)
            if key not in runs:
                runs[key] = NodeRun(all_kinds[kind], f"k{kind}", count, own=True, numbered=True)
            site_runs.append(runs[key])
        name = f"site-{number:0{width}d}"
        fleet[f"sim/{name}"] = ClusterSpec(f"sim/{name}", tuple(site_runs), labels, seed=seed * 1_000_003 + number + 1)
    return fleet


def _diversify(sites: list[dict[int, int]], weights: list[float]) -> None:
    """Gives a small fleet the kinds that no site drew. They replace nodes of the most common kind, at the site that has most of
    it."""
    totals: Counter[int] = Counter()
    for counts in sites:
        totals.update(counts)
    missing = sorted((k for k in range(KINDS) if k not in totals), key=lambda k: (-weights[k], k))
    for kind in missing[: max(0, min(MIN_KINDS, totals.total()) - len(totals))]:
        common = max(totals, key=lambda k: (totals[k], k))
        counts = max(sites, key=lambda counts: counts.get(common, 0))
        for changed, by in ((common, -1), (kind, 1)):
            totals[changed] += by
            counts[changed] = counts.get(changed, 0) + by
        if not counts[common]:
            del counts[common]
