"""Reads and writes the cgroup of a container, of version 1 or 2: what is in force, whoever wrote it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from moorage.qos.cpusets import format_cpuset, parse_cpuset

#: Property → controller and file of version 1.
_V1 = {
    "CpusetCpus": ("cpuset", "cpuset.cpus"),
    "CpusetMems": ("cpuset", "cpuset.mems"),
    "CpuQuota": ("cpu", "cpu.cfs_quota_us"),
    "CpuPeriod": ("cpu", "cpu.cfs_period_us"),
    "CpuShares": ("cpu", "cpu.shares"),
    "MemoryLimitInBytes": ("memory", "memory.limit_in_bytes"),
}
#: Property → file of version 2 and the word of it that counts.
_V2 = {
    "CpusetCpus": ("cpuset.cpus", 0),
    "CpusetMems": ("cpuset.mems", 0),
    "CpuQuota": ("cpu.max", 0),
    "CpuPeriod": ("cpu.max", 1),
    "MemoryLimitInBytes": ("memory.max", 0),
}
_SETS = frozenset({"CpusetCpus", "CpusetMems"})
#: Files of version 2 whose controller has another name in version 1.
_V1_CONTROLLERS = {"io": "blkio"}


class Usage(NamedTuple):
    """The load of a container: CPU seconds, and seconds that its tasks waited for a CPU."""

    cpu: float
    waited: float | None


class Cgroup:
    """The cgroup of one process."""

    def __init__(self, paths: Mapping[str, Path], unified: Path | None) -> None:
        self._v1, self._v2 = paths, unified
        #: The files that were read last, with their content.
        self._seen: dict[Path, str | None] = {}

    @property
    def is_v2(self) -> bool:
        return not self._v1

    def read(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Returns the values in force of those properties that can be read."""
        found: dict[str, str] = {}
        self._seen = {}
        for name in properties:
            value = self._read_v1(name) if self._v1 else self._read_v2(name)
            if value is not None:
                found[name] = value if name in _V1 or name in _V2 else _of_file(value, properties[name])
        return found

    def unchanged(self) -> bool:
        """Returns whether all that was read last is still the same. This is much cheaper than to read it again."""
        return bool(self._seen) and all(_text(path) == text for path, text in self._seen.items())

    def _file(self, path: Path) -> str | None:
        text = self._seen[path] = _text(path)
        return text

    def _read_v1(self, name: str) -> str | None:
        controller, file = _V1.get(name) or (self.controller(name), name)
        if controller not in self._v1:
            return None
        return normal(name, self._file(self._v1[controller] / file))

    def _read_v2(self, name: str) -> str | None:
        if self._v2 is None:
            return None
        file, word = _V2.get(name, (name, 0) if "." in name else ("", 0))
        text = self._file(self._v2 / file) if file else None
        if text is None or file == name:
            return text
        words = text.split()
        return normal(name, words[word] if len(words) > word else "")

    def write(self, name: str, value: str) -> None:
        """Writes a file of the cgroup that the runtime interface has no property for. Raises OSError where it is refused."""
        if self._v1:
            place = self._v1.get(self.controller(name))
            if place is None:
                raise FileNotFoundError(f"this machine has no controller for {name}")
            (place / name.replace("io.", "blkio.", 1)).write_text(value)
        elif self._v2 is not None:
            (self._v2 / name).write_text(value)

    def usage(self, threads: int) -> Usage | None:
        """Returns how much CPU was used and waited for; None if the cgroup is gone. Version 1 does not know of waiting: there
        at most `threads` of its threads are asked."""
        if self._v1:
            text = _text(self._v1["cpuacct"] / "cpuacct.usage") if "cpuacct" in self._v1 else None
            return Usage(int(text) / 1e9, self._delays(threads)) if text is not None and text.isdecimal() else None
        if self._v2 is None or (stat := _text(self._v2 / "cpu.stat")) is None:
            return None
        fields = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
        pressure = _text(self._v2 / "cpu.pressure")
        waited = int(pressure.split("total=", 1)[1].split()[0]) / 1e6 if pressure and "total=" in pressure else None
        return Usage(int(fields.get("usage_usec", "0")) / 1e6, waited)

    def _delays(self, threads: int) -> float | None:
        place = self._v1.get("cpuacct") or self._v1.get("cpu")
        # Those of threads, because a process tells of its first thread only.
        pids = (_text(place / "tasks") or "").split()[:threads] if place else []
        total = 0
        for pid in pids:
            words = (_text(Path(f"/proc/{pid}/schedstat")) or "").split()
            if len(words) > 1:
                total += int(words[1])
        return total / 1e9 if pids else None

    @staticmethod
    def controller(name: str) -> str:
        prefix = name.partition(".")[0]
        return _V1_CONTROLLERS.get(prefix, prefix)


def _of_file(text: str, wanted: str) -> str:
    """Returns what was written to a file that shows it with a word before it: `oom_kill_disable 1`, `default 100`."""
    first = text.partition("\n")[0]
    return wanted if wanted in (text, first) else first.partition(" ")[2] or first


def has_version_2(root: Path = Path("/sys/fs/cgroup")) -> bool:
    """Returns whether this machine has cgroups of version 2 only."""
    return (root / "cgroup.controllers").exists()


def normal(name: str, value: str | None) -> str | None:
    """Returns a value in one spelling, so that two that mean the same compare equal."""
    if value is None:
        return None
    if name in _SETS:
        try:
            return format_cpuset(parse_cpuset(value))
        except ValueError:
            return value
    return "-1" if value == "max" and name in _V2 else value


def of_process(pid: int, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> Cgroup | None:
    """Returns the cgroup of a process; None if the process is gone."""
    text = _text(proc / str(pid) / "cgroup") if pid > 0 else None
    if text is None:
        return None
    v1: dict[str, Path] = {}
    unified: Path | None = None
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            unified = root / path.lstrip("/")
        for controller in controllers.split(","):
            if controller and "=" not in controller:
                v1[controller] = root / controller / path.lstrip("/")
    if "cpuset" in v1:
        return Cgroup(v1, None)
    return Cgroup({}, unified) if unified is not None else None


def _text(path: Path) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(fd, 1 << 16).decode("utf-8", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)
