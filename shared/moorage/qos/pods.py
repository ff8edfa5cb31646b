"""Reads what the agent needs of Pod manifests: containers with their kinds and requests, role, type and claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.model.object_names import CLAIM
from moorage.parsing import parse_nanos

from .messages import ContainerSpec, ContainerType, PodSpec

#: Where a pod's role and the type of its resources stand, the first one being ours.
ROLE_ANNOTATIONS = ("moorage.dev/pod-role", "kubernetes.io/pod-role")
ROLE_LABEL = "katalyst.kubewharf.io/pod_role"
TYPE_ANNOTATIONS = ("moorage.dev/resource-type", "kubernetes.io/resource-type")
TYPE_LABEL = "katalyst.kubewharf.io/pod_type"
MAIN_CONTAINER = "kubernetes.io/main-container-name"
#: Of static pods: the uid under which the runtime knows them.
CONFIG_HASH = "kubernetes.io/config.hash"


def amount_of(text: object) -> float:
    """Returns a quantity as a number, rounded up to a thousandth; raises ValueError where it is none."""
    nanos = parse_nanos(text if isinstance(text, str) else repr(text))
    return -(-nanos // 10**6) / 1000


def _amounts(given: Mapping[str, Any] | None) -> dict[str, float]:
    return {name: amount_of(value) for name, value in (given or {}).items()}


def chosen_role(labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, str, str]:
    """Returns the role and the type of a pod, and what contradicts in them."""
    problems = []
    found = []
    for names, label, what in (
        (ROLE_ANNOTATIONS, ROLE_LABEL, "role"),
        (TYPE_ANNOTATIONS, TYPE_LABEL, "resource type"),
    ):
        given = {name: annotations[name] for name in names if annotations.get(name)}
        if labels.get(label):
            given[label] = labels[label]
        if len(set(given.values())) > 1:
            said = ", ".join(f"{name}={value}" for name, value in given.items())
            problems.append(f"the pod has several values for its {what}: {said}")
        found.append(next(iter(given.values()), ""))
    return found[0], found[1], "; ".join(problems)


def pod_spec(manifest: Mapping[str, Any], *, by_config_hash: bool = False) -> PodSpec:
    """Reads a Pod as the API or a file has it; raises ValueError where quantities are none. `by_config_hash`: the mirror pod of
    a static pod has the uid that the runtime knows."""
    meta, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
    labels, annotations = dict(meta.get("labels") or {}), dict(meta.get("annotations") or {})
    role, kind, problem = chosen_role(labels, annotations)
    containers = container_specs(spec, annotations)
    uid = annotations.get(CONFIG_HASH, "") if by_config_hash else ""
    return PodSpec(
        uid=uid or meta.get("uid", ""),
        namespace=meta.get("namespace") or "default",
        name=meta.get("name", ""),
        role=role,
        type=kind,
        qos_class=_qos_class(manifest, containers, spec),
        labels=labels,
        annotations=annotations,
        containers=containers,
        requests=_of_pod(spec),
        claim=labels.get(CLAIM, ""),
        host_network=bool(spec.get("hostNetwork")),
        problem=problem,
    )


def container_specs(spec: Mapping[str, Any], annotations: Mapping[str, str]) -> tuple[ContainerSpec, ...]:
    """Returns the containers: init containers first, as they start."""
    plain = list(spec.get("containers") or ())
    named = annotations.get(MAIN_CONTAINER, "")
    main = named if any(c.get("name") == named for c in plain) else plain[0].get("name") if plain else ""
    found = []
    for index, container in enumerate(spec.get("initContainers") or ()):
        restarts = container.get("restartPolicy") == "Always"
        found.append(_container(container, ContainerType.SIDECAR if restarts else ContainerType.INIT, index, restarts))
    for index, container in enumerate(plain):
        is_main = container.get("name") == main
        found.append(_container(container, ContainerType.MAIN if is_main else ContainerType.SIDECAR, index))
    return tuple(found)


def _container(given: Mapping[str, Any], kind: ContainerType, index: int, restarts: bool = False) -> ContainerSpec:
    resources = given.get("resources") or {}
    limits = _amounts(resources.get("limits"))
    return ContainerSpec(
        name=given.get("name", ""),
        type=kind,
        index=index,
        requests={**limits, **_amounts(resources.get("requests"))},
        limits=limits,
        restarts=restarts,
    )


def _qos_class(manifest: Mapping[str, Any], containers: tuple[ContainerSpec, ...], spec: Mapping[str, Any]) -> str:
    given = (manifest.get("status") or {}).get("qosClass")
    if given:
        return str(given)
    asked = [(c.requests, c.limits) for c in containers]
    whole = spec.get("resources") or {}
    if whole:
        limits = _amounts(whole.get("limits"))
        asked = [({**limits, **_amounts(whole.get("requests"))}, limits)]
    if not any(amounts.get(name) for both in asked for amounts in both for name in ("cpu", "memory")):
        return "BestEffort"
    guaranteed = all(
        limits.get(name, 0) > 0 and requests.get(name) == limits[name]
        for requests, limits in asked
        for name in ("cpu", "memory")
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _of_pod(spec: Mapping[str, Any]) -> dict[str, float]:
    """Returns what the pod requests as a whole, beside its containers."""
    whole = spec.get("resources") or {}
    return {**_amounts(whole.get("limits")), **_amounts(whole.get("requests"))}
