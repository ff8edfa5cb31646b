"""Makes the status of a group in the form of EMCO: states, then apps with their clusters and the objects there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from moorage.model.groups import Phase
from moorage.model.status import AppStatus, ObjectStatus

from .explain import Known, apps_of, phase_of, why

_DEPLOYED: dict[Phase, str] = {
    "Deciding": "Instantiating",
    "Pending": "Instantiating",
    "Placed": "Instantiating",
    "Deploying": "Instantiating",
    "Running": "Instantiated",
    "Degraded": "Instantiated",
    "Terminating": "Terminating",
    "Terminated": "Terminated",
    "Failed": "InstantiateFailed",
}
_READY = {"Ready": "Ready", "Progressing": "NotReady", "Failed": "NotReady", "Removed": "NotPresent"}


class StatusQuery(NamedTuple):
    """Parameters of a status request. `apps`, `clusters` and `resources` are filters; empty means all. `detail` has the
    applied objects by cluster and app."""

    output: str = "all"
    apps: frozenset[str] = frozenset()
    clusters: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    detail: Mapping[tuple[str, str], list[dict[str, Any]]] = {}
    connected: Mapping[str, bool] = {}


def status(known: Known, asked: StatusQuery, watch: str) -> dict[str, Any]:
    record = known.record
    project, app, version, name = record.group.split("/")
    phase = phase_of(known)
    explained = why(known)
    apps = _apps(known, asked)
    shown = [r for one in apps for c in one["clusters"] for r in c["resources"]]
    item: dict[str, Any] = {
        "project": project,
        "compositeApp": app,
        "compositeAppVersion": version,
        "name": name,
        "group": record.group,
        "state": record.state,
        "phase": phase,
        "revision": explained.revision,
        "states": {
            "statusctxid": known.decision.id if known.decision is not None else "",
            "actions": [
                {"state": a.state, "instance": "", "time": a.time, "revision": a.revision} for a in record.actions
            ]
            or [{"state": record.state, "instance": "", "time": record.created, "revision": record.revision}],
        },
        "deployedStatus": _DEPLOYED.get(phase, record.state),
        "readyStatus": "Ready" if phase == "Running" else "NotReady",
        "deployedCounts": dict(Counter(r["deployedStatus"] for r in shown)),
        "readyCounts": dict(Counter(r["readyStatus"] for r in shown)),
        "watch": watch,
    }
    if explained.pending_revision is not None:
        item["pendingRevision"] = explained.pending_revision
    for key, found in (("reasons", explained.reasons), ("warnings", explained.warnings)):
        if found:
            item[key] = msgspec.to_builtins(found)
    if asked.output != "summary":
        item["apps"] = apps
    return item


def _apps(known: Known, asked: StatusQuery) -> list[dict[str, Any]]:
    confirmed: dict[tuple[str, str], AppStatus] = {}
    version = 0
    if known.status is not None:
        version = known.status.version
        confirmed = {(s.app, s.cluster): s for s in known.status.apps}
    apps = []
    for name, view in apps_of(known).items():
        if asked.apps and name not in asked.apps:
            continue
        manifests = known.record.manifests.get(name, [])
        where = list(view.clusters)
        where += [cluster for app, cluster in confirmed if app == name and cluster not in where]
        clusters = []
        for cluster in where:
            if asked.clusters and cluster not in asked.clusters:
                continue
            provider, _, short = cluster.partition("/")
            status = confirmed.get((name, cluster))
            resources = _resources(manifests, status, version, asked, asked.detail.get((cluster, name)))
            if asked.resources and not resources:
                continue
            clusters.append(
                {
                    "clusterProvider": provider,
                    "cluster": short,
                    "connectivity": "available" if asked.connected.get(cluster, False) else "unavailable",
                    "resources": resources,
                }
            )
        apps.append({"name": name, "replicas": view.replicas, "clusters": clusters})
    return apps


def _resources(
    manifests: Iterable[dict[str, Any]],
    status: AppStatus | None,
    version: int,
    asked: StatusQuery,
    detail: list[dict[str, Any]] | None,
) -> list[dict[str, Any]]:
    states: dict[str, ObjectStatus] = {o.object: o for o in status.objects} if status is not None else {}
    current = status is not None and status.version >= version
    found = []
    for number, manifest in enumerate(manifests):
        meta = manifest["metadata"]
        if asked.resources and meta["name"] not in asked.resources:
            continue
        group, _, api_version = manifest["apiVersion"].rpartition("/")
        state = states.get(f"{manifest['kind']}/{meta['name']}")
        item: dict[str, Any] = {
            "GVK": {"Group": group, "Version": api_version, "Kind": manifest["kind"]},
            "name": meta["name"],
            "deployedStatus": _deployed(state, status, current),
            "readyStatus": "Pending" if state is None else _READY[state.state],
        }
        if state is None and current and status is not None and not status.removed:
            item["readyStatus"] = "Ready"
        if state is not None and state.message:
            item["message"] = state.message
        if state is not None and state.wanted:
            item |= {"ready": state.ready, "wanted": state.wanted}
        if asked.output == "detail":
            item["detail"] = detail[number] if detail is not None and number < len(detail) else manifest
        found.append(item)
    return found


def _deployed(state: ObjectStatus | None, status: AppStatus | None, current: bool) -> str:
    if status is None or not current:
        return "Pending"
    if status.removed or (state is not None and state.state == "Removed"):
        return "Deleted"
    return "Failed" if state is not None and state.state == "Failed" else "Applied"
