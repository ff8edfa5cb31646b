"""Documents near what is taken and beyond: those of hundreds of kilobytes run as any others, those beyond are refused with a
code and the number, whichever way they come."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from moorage.bus import subjects
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


def large(name: str, size: int, objects: int = 1, clusters: int = 1) -> dict[str, Any]:
    """An application whose document has about so many bytes, in so many objects of its own, as definitions of kinds are."""
    document = application(name, clusters=clusters)
    manifests = document["spec"]["apps"][0]["manifests"]
    each = (size - len(msgspec.json.encode(document))) // objects - 120
    for i in range(objects):
        kind = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"large-{i}"}}
        manifests.append({**kind, "data": {"text": "x" * each}})
    return document


@pytest.mark.parametrize("objects", [1, 40])
async def test_hundreds_of_kilobytes_run(mesh: Mesh, driver: MeshClient, objects: int) -> None:
    name = f"bulky-{objects}"
    document = large(name, TAKEN - 2048, objects, clusters=2)
    assert TAKEN - 8192 < len(msgspec.json.encode(document)) <= TAKEN
    await driver.apply(document)
    await driver.until_phase(name, "Running", seconds=30)
    diff = await mesh.arun("diff", name, "-o", "json")
    assert diff.returncode in (0, 1) and len(diff.stdout) > 100, diff.stderr
    # What changes a little is a whole new revision, beside the old one.
    document["spec"]["apps"][0]["manifests"][0]["metadata"]["labels"] = {"second": "yes"}
    assert (await driver.apply(document))["revision"] == 2

    async def runs() -> bool:
        why = await driver.why(name)
        return why["revision"] == 2 and why["phase"] == "Running" and "pendingRevision" not in why

    await eventually(runs, 30, "the second revision runs")
    await driver.delete([name])


@pytest.mark.parametrize("size", [TAKEN + 4096, (1 << 20) - 1024, (1 << 20) + 4096, 5 << 20, 12 << 20])
async def test_what_is_larger_is_refused_with_the_numbers(
    mesh: Mesh, driver: MeshClient, tmp_path: Path, size: int
) -> None:
    document = large("huge", size, 10)
    data = msgspec.json.encode(document)
    if size < 8 << 20:  # beyond, a client of the broker does not even send it
        answer = msgspec.json.decode(await driver.bus.request(subjects.INTENTS_APPLY, data, timeout=5))
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
