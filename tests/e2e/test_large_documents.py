"""Applies documents near and above the size limit: hundreds of kilobytes work, larger ones are refused with a code and
the limit over REST and NATS."""

from __future__ import annotations

import asyncio
import json
import urllib.error
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from moorage.bus import subjects
from moorage.cli.exit_codes import UNREACHABLE
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, problem_of

TAKEN = 768 << 10


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    file = tmp_path_factory.mktemp("fleet") / "fleet.json"
    file.write_text(json.dumps(fleet(2, 8)))
    with Mesh("--fleet", str(file)) as found:
        yield found


@pytest_asyncio.fixture
async def driver(mesh: Mesh) -> AsyncIterator[MeshClient]:
    async with MeshClient(mesh) as found:
        yield found


def large_application(name: str, size: int, objects: int = 1, clusters: int = 1) -> dict[str, Any]:
    """Returns an application of about this many bytes in this many objects, like CRDs."""
    document = application(name, clusters=clusters)
    manifests = document["spec"]["apps"][0]["manifests"]
    each = (size - len(msgspec.json.encode(document))) // objects - 120
    for i in range(objects):
        kind = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"large-{i}"}}
        manifests.append({**kind, "data": {"text": "x" * each}})
    return document


@pytest.mark.parametrize("objects", [1, 40])
async def test_a_document_of_hundreds_of_kilobytes_runs(mesh: Mesh, driver: MeshClient, objects: int) -> None:
    name = f"bulky-{objects}"
    document = large_application(name, TAKEN - 2048, objects, clusters=2)
    assert TAKEN - 8192 < len(msgspec.json.encode(document)) <= TAKEN
    await driver.apply(document)
    await driver.until_phase(name, "Running", seconds=30)
    async with asyncio.timeout(60):
        # On a busy machine the patcher may take too long; the message says to repeat it.
        while (diff := await mesh.arun("diff", name, "-o", "json")).returncode == UNREACHABLE:
            assert b"retry" in diff.stderr, diff.stderr
    assert diff.returncode in (0, 1) and len(diff.stdout) > 100, diff.stderr
    # A small change makes a full new revision beside the old one.
    document["spec"]["apps"][0]["manifests"][0]["metadata"]["labels"] = {"second": "yes"}
    assert (await driver.apply(document))["revision"] == 2

    async def runs() -> bool:
        why = await driver.why(name)
        return why["revision"] == 2 and why["phase"] == "Running" and "pendingRevision" not in why

    await eventually(runs, 30, "the second revision runs")
    await driver.delete([name])


@pytest.mark.parametrize("size", [TAKEN + 4096, (1 << 20) - 1024, (1 << 20) + 4096, 5 << 20, 12 << 20])
async def test_too_large_documents_are_refused_with_the_limit(
    mesh: Mesh, driver: MeshClient, tmp_path: Path, size: int
) -> None:
    document = large_application("huge", size, 10)
    data = msgspec.json.encode(document)
    if size < 8 << 20:  # above it, the client of the broker does not even send it
        answer = msgspec.json.decode(await driver.bus.request(subjects.INTENTS_APPLY, data, timeout=60))
        assert (answer["problem"]["status"], answer["problem"]["code"]) == (413, "TooLarge")
        assert str(TAKEN) in answer["problem"]["detail"]
    for path in ("/v1/apply", "/v1/apply?dryRun=true", "/v1/simulate"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            await driver.http(path, document)
        problem = problem_of(refused.value)
        assert (problem["status"], problem["code"]) == (413, "TooLarge"), path
        assert "at most" in problem["detail"] and any(c.isdigit() for c in problem["detail"]), problem
    file = tmp_path / "huge.json"
    file.write_bytes(data)
    for command in (["apply", "-f", str(file)], ["simulate", "-f", str(file)]):
        done = await mesh.arun(*command)
        assert done.returncode == 1 and not done.stdout, done
        assert b"at most" in done.stderr and b"Traceback" not in done.stderr, done.stderr
    assert "default/huge/v1/default" not in await driver.phases()
