"""Starts meshes that the tests of a module share, and a client for each test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient

MakeMesh = Callable[..., Mesh]


@pytest.fixture(scope="module")
def make_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeMesh]:
    """Starts meshes that end with the module."""
    started: list[Mesh] = []

    def make(
        fleet: dict[str, Any],
        *options: str,
        state: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> Mesh:
        file = tmp_path_factory.mktemp("fleet") / "fleet.json"
        file.write_text(json.dumps(fleet))
        mesh = Mesh("--fleet", str(file), *options, state=state)
        mesh.environment |= environment or {}
        started.append(mesh)
        mesh.start()
        return mesh

    yield make
    for mesh in started:
        mesh.remove()


@pytest_asyncio.fixture
async def driver(mesh: Mesh) -> AsyncIterator[MeshClient]:
    """Connects to the module's mesh."""
    async with MeshClient(mesh) as found:
        yield found
