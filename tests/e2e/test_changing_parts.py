"""Parts that go, come back and shrink under the claims that hold them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import until


def fleet(**cards: int) -> bytes:
    providers = [{"name": name, "inventories": {"FPGA": total}} for name, total in cards.items()]
    node = {"name": "host", "allocatable": {"cpu": "8", "memory": "4Gi"}, "providers": providers}
    clusters = [{"name": "a", "provider": "lab", "nodes": [node]}]
    return json.dumps({"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1", "clusters": clusters}).encode()


def application(name: str) -> dict[str, Any]:
    """A pod that needs a card."""
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template},
    }
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    needs = [{"resource": "FPGA", "requests": 1, "group": "_A"}]
    app = {"name": "web", "manifests": [manifest], "consumers": [{"object": target, "needs": needs}]}
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"apps": [app]},
    }


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    file = tmp_path_factory.mktemp("fleet") / "fleet.json"
    file.write_bytes(fleet(one=1, two=1))
    with Mesh("--fleet", str(file)) as found:
        yield found


async def test_claims_on_parts_that_go_stay_and_give_nothing_away(mesh: Mesh, tmp_path: Path) -> None:
    def run(*arguments: str, data: bytes = b"") -> None:
        done = mesh.run(*arguments, data=data)
        assert done.returncode == 0, done.stderr.decode()

    def why(name: str) -> dict[str, Any]:
        found: dict[str, Any] = mesh.http(f"/v1/groups/default/{name}/v1/default/why")
        return found

    def parts_of(name: str) -> list[str]:
        claims = why(name)["apps"]["web"].get("claims", [])
        return sorted(part for claim in claims for slot in claim["slots"] for part in slot.get("parts", {}))

    def warned(name: str) -> bool:
        return any(found["code"] == "PartGone" for found in why(name).get("warnings", []))

    def parts() -> dict[str, dict[str, Any]]:
        return {item["id"]: item for item in mesh.http("/v1/parts")["items"]}

    async def phase(name: str, wanted: str) -> None:
        await until(lambda: why(name)["phase"] == wanted, 60, f"{name} is {wanted}")

    async def waits(name: str) -> None:
        await until(lambda: any(r["code"] == "PartShort" for r in why(name).get("reasons", [])), 60, f"{name} waits")
        assert not parts_of(name)

    for name in ("first", "second"):
        run("apply", "-f", "-", data=json.dumps(application(name)).encode())
        await phase(name, "Running")
    assert (parts_of("first"), parts_of("second")) == (["host/one"], ["host/two"])

    run("fleet", "apply", "-", "--yes", data=fleet(two=1))
    await until(lambda: warned("first"), 60, "the part is gone")
    assert not warned("second") and why("first")["phase"] == "Running" and parts_of("first") == ["host/one"]
    await until(lambda: parts().keys() == {"host/two"}, 60, "the other one is left")
    run("apply", "-f", "-", data=json.dumps(application("third")).encode())
    await waits("third")

    run("fleet", "apply", "-", "--yes", data=fleet(one=1, two=1))
    await until(lambda: not warned("first"), 60, "the part is back")
    await until(lambda: parts().get("host/one", {}).get("used") == {"FPGA": "1"}, 60, "it is in use as before")
    await waits("third")

    run("fleet", "apply", "-", "--yes", data=fleet(one=1, two=0))
    await until(lambda: parts()["host/two"]["inventories"]["FPGA"]["total"] == "0", 60, "the part shrinks")
    await until(lambda: parts()["host/two"]["used"] == {"FPGA": "1"}, 60, "it is in use as before")
    assert why("second")["phase"] == "Running"
    await waits("third")
    run("terminate", "default/second/v1/default")
    await phase("second", "Terminated")
    await waits("third")
    run("terminate", "default/first/v1/default")
    await phase("third", "Running")
    assert parts_of("third") == ["host/one"]
