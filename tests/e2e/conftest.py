"""Starts one mesh with the example for tests that only read, or clean up after themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from moorage_testkit import kube_assets
from moorage_testkit.mesh import Mesh


@pytest.fixture(scope="package")
def example() -> Iterator[Mesh]:
    mesh = Mesh("--example")
    helm = kube_assets.helm()
    if helm is not None:
        mesh.environment["PATH"] = f"{helm.parent}{os.pathsep}{os.environ['PATH']}"
    with mesh:
        yield mesh
