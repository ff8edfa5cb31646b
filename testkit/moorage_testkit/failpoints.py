"""Arms the named places of `moorage.bus.failpoints` in processes that were started with this directory's environment."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from moorage.bus.failpoints import POINTS, VARIABLE


class Failpoints:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self._directory)}

    def arm(self, point: str, nth: int = 1, how: Literal["KILL", "STOP"] = "KILL") -> None:
        """Kills or stops the process that reaches this point as the nth."""
        assert point in POINTS, f"there is no point {point}"
        for before in self._directory.glob(f"{point}.*"):
            before.unlink()
        ready = self._directory / f"armed {point}"
        ready.write_text(f"{how} {nth}")
        ready.rename(self._directory / point)

    def happened(self, point: str) -> int:
        """Returns the id of the process that was killed or stopped there; 0 if none was yet."""
        if (self._directory / point).exists():
            return 0
        found = list(self._directory.glob(f"{point}.*"))
        return int(found[0].suffix[1:]) if found and found[0].read_text().endswith(" 1") else 0
