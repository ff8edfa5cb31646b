"""Returns seeds for tests with random data."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(few: int, many: int) -> list[Any]:
    """Returns `few` seeds for every run, and the others up to `many` for `make test-long`."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(few, many))]
