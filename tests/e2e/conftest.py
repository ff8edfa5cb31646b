"""One mesh with the example for all tests that only look at it or clean up after themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moorage_testkit.mesh import Mesh


@pytest.fixture(scope="session")
def example() -> Iterator[Mesh]:
    with Mesh("--example") as mesh:
        yield mesh
