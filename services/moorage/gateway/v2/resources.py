"""A view of all resources of `/v2`: the stored ones, and those derived from Applications and from the fleet, so that these can
be read in the same form."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.model.groups import GroupRecord
from moorage.model.v2_resources import Path, ResourceTree, group_name, kind_of

from ..read_model import ReadModel

_any = msgspec.json.Decoder().decode
#: Fields that needs and requirements for resources, devices and machines have in common.
_OF_RESOURCES = (
    *("requests", "limits", "units", "group"),
    *("class", "count", "oneOf", "capacity", "algorithm"),
    *("machine", "window", "maxRuntime"),
)
_PROJECTS, _APPS, _GROUPS = "projects", "composite-apps", "deployment-intent-groups"


class ResourceView:
    def __init__(self, view: ReadModel) -> None:
        self.view = view
        self.tree: ResourceTree = view.resources

    def body(self, path: Path) -> Any:
        """Returns the resource as it is shown, or None."""
        stored = self.tree.get(path)
        if stored is not None:
            return self.with_children(path, _any(stored.value))
        return self._derived(path)

    def seq(self, path: Path) -> int | None:
        stored = self.tree.get(path)
        return None if stored is None else stored.seq

    def exists(self, path: Path) -> bool:
        return self.tree.get(path) is not None or self._derived(path) is not None

    def members(self, collection: Path) -> list[Path]:
        return sorted({*self.tree.members(collection), *self._derived_members(collection)})

    def members_of_app(self, collection: Path, app: str) -> list[Path]:
        """Returns the versions of one composite app."""
        return [path for path in self.members(collection) if path[3] == app]

    def with_children(self, path: Path, body: Any) -> Any:
        """Adds the consumers to a hardware intent, even if there are none, and the requirements to a consumer."""
        if len(path) > 7 and path[7] == "hpa-intents" and len(path) in (9, 11):
            below, name = {
                9: ("hpa-resource-consumers", "resourceConsumers"),
                11: ("resource-requirements", "resourceRequirements"),
            }[len(path)]
            spec = dict(body.get("spec") or {})
            children = [self.body(member) for member in self.tree.members((*path, below))]
            if children or name == "resourceConsumers":
                spec[name] = children
            return {**body, "spec": spec}
        return body

    # --- derived resources -------------------------------------------------------------------------------------------

    def _record(self, path: Path) -> GroupRecord | None:
        """Returns the record of a group that was made from an Application."""
        record = self.view.record(group_name(path))
        return record if record is not None and not record.origin else None

    def _derived(self, path: Path) -> Any:
        kind = kind_of(path)
        if kind is None:
            return None
        if path[0] == "cluster-providers":
            return self._cluster_resource(path)
        if path[0] != _PROJECTS:
            return None
        if len(path) == 2:
            return {"metadata": {"name": path[1]}} if path in self._derived_members((_PROJECTS,)) else None
        if path[2] != _APPS:
            return None
        if len(path) == 5:
            if path not in self._derived_members(path[:3]):
                return None
            return {"metadata": {"name": path[3]}, "spec": {"compositeAppVersion": path[4]}}
        if path[5] == "apps":
            record = self.view.record(f"{path[1]}/{path[3]}/{path[4]}/default")
            if record is None or record.origin or path[6] not in record.manifests:
                return None
            return {"metadata": {"name": path[6]}, "spec": {"manifests": record.manifests[path[6]]}}
        if path[5] != _GROUPS:
            return None
        record = self._record(path)
        if record is None:
            return None
        if len(path) == 7:
            return {"metadata": {"name": path[6]}, "spec": {"version": str(record.revision)}}
        if path[7] == "hpa-intents":
            return _hardware(record, path)
        return None

    def _derived_members(self, collection: Path) -> list[Path]:
        if collection[0] == "cluster-providers":
            return self._clusters(collection)
        if collection[0] != _PROJECTS:
            return []
        kind = kind_of(collection, collection=True)
        if kind is None:
            return []
        if len(collection) == 1:
            return [(_PROJECTS, project) for project in {g.split("/", 1)[0] for g in self._applications()}]
        if collection[2:] == (_APPS,):
            parts = {tuple(g.split("/")[:3]) for g in self._applications(collection[1])}
            return [(*collection, app, version) for _, app, version in parts]
        if len(collection) == 6 and collection[5] == _GROUPS:
            prefix = f"{collection[1]}/{collection[3]}/{collection[4]}/"
            return [
                (*collection, g.rsplit("/", 1)[1]) for g in self._applications(collection[1]) if g.startswith(prefix)
            ]
        if len(collection) == 6 and collection[5] == "apps":
            record = self.view.record(f"{collection[1]}/{collection[3]}/{collection[4]}/default")
            return [(*collection, app) for app in record.manifests] if record is not None and not record.origin else []
        if len(collection) > 7 and collection[7] == "hpa-intents" and (record := self._record(collection)) is not None:
            return _hardware_members(record, collection)
        return []

    def _applications(self, project: str = "") -> list[str]:
        """Returns all groups. Those made from resources are stored as resources and shown from there."""
        return [g for g in self.view.groups if not project or g.startswith(project + "/")]

    def _cluster_resource(self, path: Path) -> Any:
        fleet = self.view.fleet
        if len(path) == 2:
            return {"metadata": {"name": path[1]}} if path in self._clusters(path[:1]) else None
        cid = fleet.ids.get(f"{path[1]}/{path[3]}")
        if cid is None or cid >= fleet.size or not fleet.known[cid]:
            return None
        if len(path) == 4:
            return {"metadata": {"name": path[3]}}
        if path[4] == "labels" and path[5] in self._labels(cid):
            return {"clusterLabel": path[5]}
        return None

    def _clusters(self, collection: Path) -> list[Path]:
        fleet = self.view.fleet
        names = [name.split("/") for name, cid in fleet.ids.items() if cid < fleet.size and fleet.known[cid]]
        if len(collection) == 1:
            return [(collection[0], provider) for provider in {provider for provider, _ in names}]
        if len(collection) == 3:
            return [(*collection, name) for provider, name in names if provider == collection[1]]
        if len(collection) == 5 and collection[4] == "labels":
            cid = fleet.ids.get(f"{collection[1]}/{collection[3]}")
            if cid is not None and cid < fleet.size and fleet.known[cid]:
                return [(*collection, label) for label in self._labels(cid)]
        return []

    def _labels(self, cid: int) -> list[str]:
        """Returns labels in the form of `/v2`: a name, or NAME=VALUE."""
        labels = self.view.fleet.cluster_labels(cid)
        return [key if value in ("", "true") else f"{key}={value}" for key, value in labels.items()]


# --- the hardware needs of an Application ----------------------------------------------------------------------------


def _apps(record: GroupRecord) -> dict[str, list[dict[str, Any]]]:
    spec = record.document.get("spec") or {}
    return {app["name"]: app.get("consumers") or [] for app in spec.get("apps") or [] if app.get("consumers")}


def _name(consumer: dict[str, Any]) -> str:
    return str(consumer.get("name") or consumer["object"]["name"])


def _need_name(need: dict[str, Any], number: int) -> str:
    return str(need.get("name") or f"need-{number}")


def _hardware_members(record: GroupRecord, collection: Path) -> list[Path]:
    apps = _apps(record)
    if len(collection) == 8:
        return [(*collection, app) for app in apps]
    consumers = apps.get(collection[8], [])
    if len(collection) == 10:
        return [(*collection, _name(c)) for c in consumers]
    needs = next((c.get("needs") or [] for c in consumers if _name(c) == collection[10]), [])
    return [(*collection, _need_name(need, i)) for i, need in enumerate(needs)]


def _hardware(record: GroupRecord, path: Path) -> Any:
    consumers = _apps(record).get(path[8])
    if consumers is None:
        return None
    if len(path) == 9:
        items = [_consumer(c) for c in consumers]
        return {"metadata": {"name": path[8]}, "spec": {"app": path[8], "resourceConsumers": items}}
    consumer = next((c for c in consumers if _name(c) == path[10]), None)
    if consumer is None or len(path) == 11:
        return None if consumer is None else _consumer(consumer)
    for i, need in enumerate(consumer.get("needs") or []):
        if _need_name(need, i) == path[12]:
            return _requirement(need, i)
    return None


def _consumer(consumer: dict[str, Any]) -> dict[str, Any]:
    spec = dict(consumer["object"])
    spec |= {key: consumer[key] for key in ("container", "replicas") if consumer.get(key) is not None}
    if consumer.get("needs"):
        spec["resourceRequirements"] = [_requirement(need, i) for i, need in enumerate(consumer["needs"])]
    return {"metadata": {"name": _name(consumer)}, "spec": spec}


def _requirement(need: dict[str, Any], number: int) -> dict[str, Any]:
    mandatory = need.get("mandatory")
    spec: dict[str, Any] = {
        "mandatory": need.get("weight") is None if mandatory is None else mandatory,
        "allocatable": not need.get("label"),
    }
    if need.get("weight") is not None:
        spec["weight"] = need["weight"]
    if need.get("label"):
        spec["resource"] = {"key": need["label"], "value": need.get("value", "")}
    else:
        spec["resource"] = {"name": need["resource"]} if need.get("resource") else {}
        spec["resource"] |= {k: need[k] for k in _OF_RESOURCES if need.get(k) not in (None, "", [], {})}
    return {"metadata": {"name": _need_name(need, number)}, "spec": spec}
