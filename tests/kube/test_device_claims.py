"""An agent reports what kube-scheduler allocates of devices, and the counters that these have in common."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.polling import until

from .conftest import Mesh, Start
from .test_agent import clean  # noqa: F401 - a fixture

GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
DRIVER = "d.example.com"
NODE = "edge-1-n0"


@pytest.fixture(autouse=True)
def removed(plane: ControlPlane) -> Iterator[None]:
    yield
    names = ("counters", "devices", "half")
    for path in (f"{CLAIMS}/c", f"{GROUP}/deviceclasses/halves", *(f"{GROUP}/resourceslices/{n}" for n in names)):
        with suppress(urllib.error.HTTPError):
            plane.call("DELETE", path)


def slice_of(name: str, pool: str, count: int, **spec: Any) -> dict[str, Any]:
    of_pool = {"name": pool, "generation": 1, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": of_pool, "nodeName": NODE, **spec}}


def device(name: str, amount: str) -> dict[str, Any]:
    takes = {"counterSet": "card", "counters": {"memory": {"value": amount}}}
    return {"name": name, "capacity": {"memory": {"value": amount}}, "consumesCounters": [takes]}


async def test_allocated_devices_are_in_use_and_say_what_counters_they_take(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    card = {"name": "card", "counters": {"memory": {"value": "40Gi"}}}
    slices = f"{GROUP}/resourceslices"
    plane.call("POST", slices, slice_of("counters", "cards", 2, sharedCounters=[card]))
    plane.call("POST", slices, slice_of("half", "later", 2, devices=[{"name": "x"}]))
    agents(plane)
    await until(lambda: NODE in mesh.nodes and len(mesh.nodes[NODE].problems) == 2, 60, "two pools are incomplete")
    assert mesh.nodes[NODE].problems[0] == f"pool {DRIVER}/cards: 1 of 2 slices of generation 1 are there"
    plane.call(
        "POST", slices, slice_of("devices", "cards", 2, devices=[device("whole", "40Gi"), device("half", "20Gi")])
    )

    def known() -> dict[str, dict[str, dict[str, str]]]:
        return {d.name: d.consumes for d in mesh.nodes[NODE].devices}

    both = {"whole": {"card": {"memory": "40Gi"}}, "half": {"card": {"memory": "20Gi"}}}
    await until(lambda: known() == both, 40, "the devices and what they take")
    assert [(c.name, c.counters) for c in mesh.nodes[NODE].counters] == [("card", {"memory": "40Gi"})]

    expression = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("20Gi")) == 0'
    plane.call(
        "POST",
        f"{GROUP}/deviceclasses",
        {"metadata": {"name": "halves"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}},
    )
    request = {"name": "r", "exactly": {"deviceClassName": "halves"}}
    plane.call("POST", CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}})
    container = {"name": "c", "image": "registry.example/c:1", "resources": {"claims": [{"name": "one"}]}}
    pod = {"containers": [container], "resourceClaims": [{"name": "one", "resourceClaimName": "c"}]}
    plane.call("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}, "spec": pod})
    in_use = {f"{DRIVER}/cards/half": {"D_EXAMPLE_COM": "1"}}
    await until(lambda: mesh.nodes[NODE].in_use == in_use, 60, "the scheduler allocates")

    plane.call("DELETE", "/api/v1/namespaces/default/pods/p")
    await until(lambda: not mesh.nodes[NODE].in_use, 60, "what nobody has is given back")
