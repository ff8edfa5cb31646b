"""Returns seeds for tests with random data."""

from __future__ import annotations

from typing import Any

import pytest

#: Whether tests that take long may run. Where they do not, their many seeds need not be made either.
with_long = True


def seeds(few: int, many: int) -> list[Any]:
    """Returns `few` seeds for every run, and the others up to `many` for `make test-long`."""
    long = range(few, many) if with_long else ()
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.long) for seed in long)]
