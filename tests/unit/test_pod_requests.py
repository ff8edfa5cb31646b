"""The requests of a pod against a plain simulation of its start, and what Kubernetes does at the edges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moorage.podspec import (
    ContainerResources,
    container_resources,
    exclusive_cores,
    is_guaranteed,
    pod_requests,
    while_resized,
)

RESOURCES = ["cpu", "memory", "x/y"]
amounts = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 4).map(lambda n: n * 500))


@st.composite
def containers(draw: st.DrawFn) -> list[ContainerResources]:
    """In any order: how init containers and the others are mixed does not matter."""
    return [
        container_resources(
            f"c{i}",
            draw(amounts),
            {},
            init=draw(st.booleans()),
            restart_policy=draw(st.sampled_from([None, "Always"])),
        )
        for i in range(draw(st.integers(0, 6)))
    ]


def highest_use(pod: list[ContainerResources], resource: str) -> int:
    """Starts the containers one after the other and watches what runs."""
    running: list[int] = []
    highest = 0
    for container in [c for c in pod if c.init]:
        amount = container.requests.get(resource, 0)
        highest = max(highest, sum(running) + amount)
        if container.sidecar:
            running.append(amount)
    running += [c.requests.get(resource, 0) for c in pod if not c.init]
    return max(highest, sum(running))


@given(containers())
def test_requests_are_the_highest_use_from_the_first_init_container_on(pod: list[ContainerResources]) -> None:
    total = pod_requests(pod)
    assert {r: total.get(r, 0) for r in RESOURCES} == {r: highest_use(pod, r) for r in RESOURCES}


@given(containers())
def test_exclusive_cores_are_the_highest_use_of_whole_cores(pod: list[ContainerResources]) -> None:
    whole = [c._replace(requests={"cpu": n if (n := c.requests.get("cpu", 0)) % 1000 == 0 else 0}) for c in pod]
    assert exclusive_cores(pod) == highest_use(whole, "cpu") // 1000


def test_limits_are_requests_where_none_are_given() -> None:
    container = container_resources("c", {"cpu": 100}, {"cpu": 500, "memory": 7})
    assert container.requests == {"cpu": 100, "memory": 7}


def test_the_pod_requests_stand_for_those_of_its_containers() -> None:
    container = container_resources("c", {"cpu": 1000, "x/y": 1}, {})
    total = pod_requests([container], requests={"cpu": 3000}, overhead={"cpu": 10, "memory": 5})
    assert total == {"cpu": 3010, "memory": 5, "x/y": 1}


def test_a_limit_of_the_pod_is_its_request_only_where_no_container_requests_the_resource() -> None:
    container = container_resources("c", {"cpu": 1000}, {})
    assert pod_requests([container], limits={"cpu": 4000, "memory": 9}) == {"cpu": 1000, "memory": 9}


def test_the_larger_of_asked_and_granted_counts_during_a_resize() -> None:
    container = container_resources("c", {"cpu": 1000, "memory": 8}, {})
    resized = while_resized(container, {"cpu": 500, "memory": 9}, {"cpu": 1500})
    assert resized.requests == {"cpu": 1500, "memory": 9}


def test_guaranteed_is_equal_requests_and_limits_for_cpu_and_memory() -> None:
    both = {"cpu": 1000, "memory": 1}
    assert is_guaranteed(container_resources("c", {}, both))
    assert not is_guaranteed(container_resources("c", both, {"cpu": 1000}))
    assert not is_guaranteed(container_resources("c", {"cpu": 500}, both))
    assert not is_guaranteed(container_resources("c", {}, {"cpu": 0, "memory": 1}))
