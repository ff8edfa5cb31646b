"""What a pod takes of its node, as the scheduler counts it: the sum of what runs together, or more where a step of the start
needs more; plus what the runtime itself takes."""

from __future__ import annotations

from moorage.parsing import parse_amount

from .kube_types import Amounts, Container, ContainerStatus, Pod

Needs = dict[str, int]


def _amounts(given: Amounts) -> Needs:
    needs = {}
    for name, value in (given or {}).items():
        try:
            needs[name] = parse_amount(name, value if isinstance(value, str) else repr(value), True)
        except ValueError:
            continue  # no server accepts one
    return needs


def _add(total: Needs, more: Needs) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _most(one: Needs, other: Needs) -> Needs:
    return one | {name: max(value, one.get(name, 0)) for name, value in other.items()}


def _one(container: Container, statuses: dict[str, ContainerStatus]) -> Needs:
    """While a pod is resized in place, the larger of what it asks for and what it was given counts."""
    needs = _amounts(container.resources.requests if container.resources else None)
    status = statuses.get(container.name)
    if status is not None:
        needs = _most(needs, _amounts(status.allocated_resources))
        if status.resources is not None:
            needs = _most(needs, _amounts(status.resources.requests))
    return needs


def requests(pod: Pod) -> Needs:
    spec = pod.spec
    statuses = {
        s.name: s for s in (*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ()))
    }
    total: Needs = {}
    for container in spec.containers or ():
        _add(total, _one(container, statuses))
    beside: Needs = {}  # init containers that go on running
    start: Needs = {}
    for container in spec.init_containers or ():
        needs = _one(container, statuses)
        if container.restart_policy == "Always":
            _add(total, needs)
            _add(beside, needs)
            start = _most(start, beside)
        else:
            together = dict(beside)
            _add(together, needs)
            start = _most(start, together)
    total = _most(total, start)
    if spec.resources is not None:  # of the whole pod: they stand for those of its containers
        total |= _amounts(spec.resources.requests)
    _add(total, _amounts(spec.overhead))
    return total


def exclusive_cores(pod: Pod) -> int:
    """Whole cores that a static CPU manager gives to this pod alone: Guaranteed, and each container in whole cores."""
    if pod.status.qos_class != "Guaranteed":
        return 0
    cores = 0
    for container in (
        *(pod.spec.containers or ()),
        *(c for c in pod.spec.init_containers or () if c.restart_policy == "Always"),
    ):
        milli = _amounts(container.resources.requests if container.resources else None).get("cpu", 0)
        if milli % 1000 == 0:
            cores += milli // 1000
    return cores
