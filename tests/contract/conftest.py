"""Starts one mesh on the example's fleet for all tests of `/v2`; each test makes its own resources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import moorage.cli
from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh

EXAMPLE = Path(moorage.cli.__path__[0]) / "example"


@pytest.fixture(scope="package")
def fleet_mesh() -> Iterator[Mesh]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOORAGE_HTTP_FAILURES", "0")  # the table of routes often sends requests without a token
        mesh = Mesh("--fleet", str(EXAMPLE / "fleet.yaml"))
        with mesh:
            yield mesh


@pytest.fixture
def rest(request: pytest.FixtureRequest, fleet_mesh: Mesh) -> HttpClient:
    """Returns a client of `/v2`; another prefix can be set by an indirect parameter."""
    return HttpClient(fleet_mesh, getattr(request, "param", "/v2"))
