"""Reads what a machine has from sysfs: CPUs with cores, caches, NUMA nodes and sockets; memory of nodes; network cards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from moorage.qos.cpusets import parse_cpuset
from moorage.qos.machine import Cpu, CpuTopology, Machine, MemoryNode
from moorage.qos.messages import nodes_of

_MEM_TOTAL = re.compile(r"MemTotal:\s+([0-9]+) kB", re.ASCII)
_PAGES = re.compile(r"hugepages-([0-9]+)kB", re.ASCII)
_SUFFIXES = ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


class SysfsUnreadable(Exception):
    """sysfs lacks what the agent cannot do without; the text says what."""


class NetworkCard(NamedTuple):
    """A network card that stands in a slot. `numa` is -1 where the machine does not tell, `mbps` 0 without a link."""

    name: str
    numa: int
    mbps: int


def read_machine(sysfs: Path = Path("/sys")) -> Machine:
    online = _read_set(sysfs / "devices/system/cpu/online")
    if not online:
        raise SysfsUnreadable(f"{sysfs}/devices/system/cpu/online names no CPUs")
    nodes = _nodes(sysfs / "devices/system/node")
    numa_of = {cpu: node for node, path in nodes.items() for cpu in nodes_of(_read_set(path / "cpulist"))}
    cpus = [_cpu(sysfs / f"devices/system/cpu/cpu{cpu}", cpu, numa_of.get(cpu, 0)) for cpu in nodes_of(online)]
    memory = tuple(_memory(node, path) for node, path in sorted(nodes.items())) or (MemoryNode(0, _all_memory()),)
    distances = tuple(_distances(path) for _, path in sorted(nodes.items()))
    square = all(len(row) == len(distances) for row in distances)
    return Machine(CpuTopology(cpus), memory, distances if square else ())


def _nodes(directory: Path) -> dict[int, Path]:
    found = {}
    for path in directory.glob("node[0-9]*"):
        if path.name[4:].isdecimal():
            found[int(path.name[4:])] = path
    return found


def _cpu(directory: Path, cpu: int, numa: int) -> Cpu:
    siblings = _read_set(directory / "topology/core_cpus_list") or _read_set(
        directory / "topology/thread_siblings_list"
    )
    core = nodes_of(siblings)[0] if siblings else cpu
    socket = max(_read_number(directory / "topology/physical_package_id", 0), 0)
    uncore = 0
    for cache in directory.glob("cache/index[0-9]*"):
        if _read_number(cache / "level", 0) == 3 and (shared := _read_set(cache / "shared_cpu_list")):
            uncore = nodes_of(shared)[0]
    return Cpu(cpu, core, socket, numa, uncore)


def _memory(node: int, directory: Path) -> MemoryNode:
    found = _MEM_TOTAL.search(_read(directory / "meminfo"))
    total = int(found[1]) << 10 if found else 0
    classes: dict[str, int] = {}
    for path in directory.glob("hugepages/hugepages-*"):
        if (size := _PAGES.fullmatch(path.name)) and (pages := _read_number(path / "nr_hugepages", 0)) > 0:
            classes[f"hugepages-{_binary(int(size[1]) << 10)}"] = pages * (int(size[1]) << 10)
    return MemoryNode(node, {"memory": max(total - sum(classes.values()), 0), **classes})


def _all_memory() -> dict[str, int]:
    found = _MEM_TOTAL.search(_read(Path("/proc/meminfo")))
    return {"memory": int(found[1]) << 10 if found else 0}


def _binary(size: int) -> str:
    return next((f"{size // unit}{suffix}" for unit, suffix in _SUFFIXES if size % unit == 0), str(size))


def _distances(directory: Path) -> tuple[int, ...]:
    words = _read(directory / "distance").split()
    return tuple(int(word) for word in words if word.isdecimal())


def read_network_cards(sysfs: Path = Path("/sys")) -> list[NetworkCard]:
    """Returns the cards that are devices: neither bridges nor tunnels nor the loopback."""
    return [
        NetworkCard(path.name, _read_number(path / "device/numa_node", -1), max(_read_number(path / "speed", 0), 0))
        for path in sorted((sysfs / "class/net").glob("*"))
        if (path / "device").exists()
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""  # cards without a link and CPUs that are offline have no such files, or fail to be read


def _read_number(path: Path, default: int) -> int:
    text = _read(path).strip()
    return int(text) if text.removeprefix("-").isdecimal() else default


def _read_set(path: Path) -> int:
    try:
        return parse_cpuset(_read(path))
    except ValueError:
        return 0
