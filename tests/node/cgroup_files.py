"""Files as a kernel with cgroups of version 2 shows them: CPU time that is used and waited for grows by a load."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

from moorage.node.cgroups import Cgroup, Usage, of_process


class CgroupFiles:
    def __init__(self, directory: Path) -> None:
        self.root, self._proc = directory / "root", directory / "proc"
        #: Cores that the processes of a cgroup use, and the part of the time that they wait for one.
        self.load: dict[str, float] = defaultdict(float)
        self.wait: dict[str, float] = defaultdict(float)
        self._used: dict[str, float] = {}
        self._waited: dict[str, float] = {}
        self._time = time.monotonic()

    def add(self, pid: int, name: str) -> None:
        """Makes the cgroup of a process."""
        (self.root / name).mkdir(parents=True)
        place = self._proc / str(pid)
        place.mkdir(parents=True)
        (place / "cgroup").write_text(f"0::/{name}\n")
        self._used[name] = self._waited[name] = 0.0

    def remove(self, name: str) -> None:
        """Removes the files of a cgroup that tell of its load."""
        self.advance()
        del self._used[name]
        (self.root / name / "cpu.stat").unlink()

    def of_process(self, pid: int) -> Cgroup | None:
        """Returns the cgroup as the agent reads it. Its files are those of the moment in which it does."""
        found = of_process(pid, self.root, self._proc)
        return _Advancing(self, found) if found is not None else None

    def advance(self) -> None:
        """Writes how much was used and waited for until now."""
        now = time.monotonic()
        for name in self._used:
            self._used[name] += self.load[name] * (now - self._time)
            self._waited[name] += self.wait[name] * (now - self._time)
            place, total = self.root / name, int(self._waited[name] * 1e6)
            (place / "cpu.stat").write_text(f"usage_usec {int(self._used[name] * 1e6)}\nuser_usec 0\n")
            (place / "cpu.pressure").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n")
        self._time = now


class _Advancing(Cgroup):
    def __init__(self, files: CgroupFiles, found: Cgroup) -> None:
        super().__init__(found._v1, found._v2)
        self._files = files

    def usage(self, threads: int) -> Usage | None:
        self._files.advance()
        return super().usage(threads)
