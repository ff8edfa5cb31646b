"""Keeps resource classes and what belongs to them, and looks classes up by name as a cluster sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from moorage.model.resource_classes import (
    CLASS_GRANT,
    DEVICE_QUOTA,
    DEVICE_SOURCE,
    RESOURCE_CLASS,
    ClassGrantSpec,
    DeviceQuotaSpec,
    DeviceSourceSpec,
    FleetObject,
    ResourceClassSpec,
    fleet_object_key,
    is_fleet_object_key,
)

from .device_sources import DeviceSources, with_built_in
from .grants import Grants
from .selector import Selector, compile_class

#: The annotation of a class that names the algorithm for its devices.
ALGORITHM = "moorage.dev/algorithm"
#: The key of the name of the fleet's algorithm, beside the objects.
ALGORITHM_KEY = "algorithm"
_Spec = TypeVar("_Spec", ClassGrantSpec, DeviceQuotaSpec, DeviceSourceSpec)
_decode = msgspec.json.Decoder(FleetObject).decode


class KnownClass(NamedTuple):
    """A class as it is stored. `cluster`: where it wins over the fleet's of that name; empty for the fleet's own."""

    name: str
    cluster: str
    uid: str
    spec_hash: str
    selector: Selector
    algorithm: str = ""


class ClassCatalog:
    """All objects of the fleet by key. `on_change` are called with the key of what changed."""

    def __init__(self) -> None:
        self.objects: dict[str, FleetObject] = {}
        self.revisions: dict[str, int] = {}
        self.on_change: list[Callable[[str], None]] = []
        self.version = 0  # grows with each change
        self.algorithm = ""  # for needs whose class names none; empty: the default one
        self._classes: dict[str, KnownClass] = {}
        self._overrides: dict[str, set[str]] = {}  # name → clusters
        self.grants = Grants()
        self.quotas: dict[str, DeviceQuotaSpec] = {}

    def put(self, key: str, value: bytes | None, revision: int = 0) -> None:
        """Takes over an object as it is stored under a key; None deletes it. In the form of `Bucket.mirror`."""
        if key == ALGORITHM_KEY:
            self.algorithm = "" if value is None else value.decode()
            self._changed(key)
            return
        if not is_fleet_object_key(key):
            return
        before = self.objects.pop(key, None)
        self.revisions.pop(key, None)
        if (known := self._classes.pop(key, None)) is not None and known.cluster:
            self._overrides[known.name].discard(known.cluster)
        found = None
        if value is not None:
            found = self.objects[key] = _decode(value)
            self.revisions[key] = revision
        kind = found.kind if found is not None else before.kind if before is not None else ""
        if kind == RESOURCE_CLASS.kind and found is not None:
            self._classes[key] = known = _known_class(found)
            if known.cluster:
                self._overrides.setdefault(known.name, set()).add(known.cluster)
        elif kind == CLASS_GRANT.kind:
            self.grants = Grants(self._specs(CLASS_GRANT.kind, ClassGrantSpec).values())
        elif kind == DEVICE_QUOTA.kind:
            self.quotas = self._specs(DEVICE_QUOTA.kind, DeviceQuotaSpec)
        self._changed(key)

    def _changed(self, key: str) -> None:
        self.version += 1
        for callback in self.on_change:
            callback(key)

    def with_unsaved(self, classes: Iterable[FleetObject]) -> ClassCatalog:
        """Returns a catalog with further classes, which take the place of stored ones. It does not follow later changes."""
        found = ClassCatalog()
        found.objects, found.revisions = dict(self.objects), dict(self.revisions)
        found.grants, found.quotas, found.algorithm = self.grants, self.quotas, self.algorithm
        found._classes = dict(self._classes)
        found._overrides = {name: set(clusters) for name, clusters in self._overrides.items()}
        for one in classes:
            found.put(one.key, msgspec.json.encode(one))
        return found

    def of_kind(self, kind: str) -> Iterator[FleetObject]:
        for _, found in sorted(self.objects.items()):
            if found.kind == kind:
                yield found

    @property
    def classes(self) -> list[KnownClass]:
        """Returns all classes in the order of their names, the fleet's before those of clusters."""
        return sorted(self._classes.values(), key=lambda one: (one.name, one.cluster))

    def stored_class(self, name: str, cluster: str = "") -> KnownClass | None:
        """Returns the class of the fleet, or the one that a cluster has instead of it."""
        return self._classes.get(fleet_object_key(RESOURCE_CLASS.kind, name, cluster))

    def class_in(self, name: str, cluster: str) -> KnownClass | None:
        """Returns the class that a name means on a cluster: its own one, else the fleet's."""
        return self.stored_class(name, cluster) or self.stored_class(name)

    def overriding(self, name: str) -> frozenset[str]:
        """Returns the clusters that have a class of this name of their own."""
        return frozenset(self._overrides.get(name, ()))

    @property
    def sources(self) -> DeviceSources:
        return with_built_in(self._specs(DEVICE_SOURCE.kind, DeviceSourceSpec))

    def _specs(self, kind: str, spec: type[_Spec]) -> dict[str, _Spec]:
        return {one.metadata.name: msgspec.convert(one.spec, spec) for one in self.of_kind(kind)}


def _known_class(found: FleetObject) -> KnownClass:
    meta = found.metadata
    selector = compile_class(msgspec.convert(found.spec, ResourceClassSpec))
    return KnownClass(meta.name, meta.cluster, meta.uid, found.spec_hash, selector, meta.annotations.get(ALGORITHM, ""))
