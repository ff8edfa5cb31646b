"""Bounds searches."""

from __future__ import annotations


class BudgetExceeded(Exception):
    """Raised when the search is cut off by its budget; a packing may still exist. `seconds`: how long a solver with a time
    limit tried."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Budget:
    """The steps left to a search."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise BudgetExceeded
