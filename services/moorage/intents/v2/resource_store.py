"""Creates, replaces and deletes /v2 resources in their bucket, one key each. Several stores may run, so every change is
made from what was read, and written only if that is still current."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from moorage.bus import Bus, Conflict, NoAnswer
from moorage.mesh import stores
from moorage.model import v2_bodies
from moorage.model.problems import Problem, Refused, Violation, conflict, invalid, not_found
from moorage.model.v2_resources import (
    APP,
    COMPOSITE_APP,
    GROUP,
    HPA_INTENT,
    PROJECT,
    Change,
    Changed,
    Path,
    Resource,
    ResourceKind,
    key_of,
    kind_of,
)
from moorage.parsing.redaction import REDACTED, restore

from ..core.v2_normalize import NormalizedBody, read
from . import resource_copy, resource_values
from .resource_copy import ResourceCopy

_data = msgspec.json.Decoder()
_consumer = msgspec.json.Decoder(v2_bodies.Consumer)

ATTEMPTS = 10
#: Deletions in one batch: the broker takes no more.
BATCH = 1000


class ResourceStore:
    """`is_elsewhere` says whether something that is not a resource stands at a path, like a group made by an Application."""

    def __init__(self, bus: Bus, is_elsewhere: Callable[[Path], bool]) -> None:
        self._bucket = bus.bucket(stores.RESOURCES)
        self._is_elsewhere = is_elsewhere
        self.copy = ResourceCopy(bus, self._bucket, is_elsewhere)
        self.tree = self.copy.tree
        self._creating: Counter[Path] = Counter()  # parents below which a resource is being created
        self._deleting: set[Path] = set()

    # --- create ------------------------------------------------------------------------------------------------------

    async def create(self, change: Change) -> Changed:
        collection = tuple(change.path)
        kind = _kind(collection, collection=True)
        body = read(kind, resource_values.with_secrets(kind, _data.decode(change.body), []))
        path = (*collection, *body.names)
        value = resource_values.resource_of(kind, body.body, change.file)
        if value.objects:
            value.objects = restore(value.objects, [])
        parent = kind.parent(path)
        if parent:
            await self._check_parent(kind, parent)
        self._check_container(kind, path, body.body)
        await self._check_app(kind, path, body.body)
        if kind is GROUP and self._is_elsewhere(path):
            raise Refused(_already_exists(path))
        self._creating[parent] += 1
        try:
            seq = await self._write_new(path, value, again=change.again)
        finally:
            self._creating[parent] -= 1
            if not self._creating[parent]:
                del self._creating[parent]
        self.tree.put(path, value, seq)
        return Changed(path=list(path), body=value.body, seq=seq, warnings=list(body.warnings))

    async def _check_parent(self, kind: ResourceKind, parent: Path) -> None:
        await self._check_exists(parent)
        if parent in self._deleting:
            raise Refused(conflict(f"{_text(parent)} is being deleted"))
        if self.tree.get(parent) is None and kind.parent(kind.path) != PROJECT.path:
            raise Refused(_by_application(parent))

    def _check_container(self, kind: ResourceKind, path: Path, body: Any) -> None:
        """An allocatable resource belongs to a container, which the consumer above it names; a slot is the whole pod's."""
        consumer = self.tree.get(kind.parent(path))
        if kind.body is not v2_bodies.Requirement or not body.spec.allocatable or consumer is None:
            return
        if body.spec.resource.machine:
            return
        if not _consumer.decode(consumer.value.body).spec.container:
            message = "an allocatable resource belongs to a container, and the consumer names none"
            raise Refused(invalid([Violation(path="spec.allocatable", code="NoContainer", message=message)]))

    async def _check_app(self, kind: ResourceKind, path: Path, body: Any) -> None:
        """Refuses a hardware intent for an app that the composite app does not have."""
        if kind is not HPA_INTENT:
            return
        apps = (*path[:5], APP.segment)
        try:
            await self._check_exists((*apps, body.spec.app))
        except Refused as refusal:
            if refusal.problem.status != 404:
                raise
            known = ", ".join(member[-1] for member in self.tree.members(apps)) or "none"
            message = f"the composite app has no app {body.spec.app!r}; it has {known}"
            error = Violation(path="spec.app", code="UnknownApp", message=message)
            detail = f"{error.path}: {message}"
            raise Refused(
                Problem(title="Unknown app", status=409, code="UnknownApp", detail=detail, errors=[error])
            ) from None

    async def _write_new(self, path: Path, value: Resource, *, again: bool) -> int:
        try:
            return await self._create(path, value)
        except Conflict:
            if again:  # a store that died before it answered may have created this very resource
                stored, seq = await self._current(path)
                if resource_values.is_same(stored, value):
                    return seq
            raise Refused(_already_exists(path)) from None

    async def _create(self, path: Path, value: Resource) -> int:
        data = resource_values.encode(value)
        key = key_of(path)
        if self.tree.get(path) is not None:
            raise Conflict(key)
        try:
            return await self._bucket.create(key, data)
        except NoAnswer:
            # The write may have happened, so the value is read.
            entry = await self._bucket.get(key)
            if entry is None or entry.value != data:
                raise
            return entry.revision

    # --- replace -----------------------------------------------------------------------------------------------------

    async def replace(self, change: Change) -> Changed:
        path = tuple(change.path)
        kind = _kind(path)
        data = _data.decode(change.body)
        if kind is APP and REDACTED.encode() in bytes(change.body):
            data = resource_values.with_secrets(kind, data, (await self._current(path))[0].objects)
        body = read(kind, data)
        _check_names(kind, path, body)
        self._check_container(kind, path, body.body)
        value = resource_values.resource_of(kind, body.body, change.file)
        for _ in range(ATTEMPTS):
            stored, seq = await self._current(path)
            if not (change.again and resource_values.is_same(stored, value)):
                await self._check_app(kind, path, body.body)
                _check_match(path, change.if_match, seq)
                self._check_childless(path)
                replaced = _replaced(kind, body, value, stored, has_file=bool(change.file))
                try:
                    seq = await self._bucket.update(key_of(path), resource_values.encode(replaced), seq)
                except Conflict:
                    self.tree.drop(path, 0, mirrored=True)
                    continue
                self.tree.put(path, replaced, seq)
            return Changed(path=list(path), body=value.body, seq=seq, warnings=list(body.warnings))
        raise Refused(conflict(f"{_text(path)} keeps changing; try again"))

    # --- delete ------------------------------------------------------------------------------------------------------

    async def to_delete(self, change: Change) -> list[Path]:
        """Returns the resources that a DELETE is about: one, or all of a collection."""
        path = tuple(change.path)
        if change.verb == "delete":
            _kind(path)
            if change.again:
                await self.copy.caught_up()
                return [path] if self.tree.get(path) is not None else []
            return [path]
        parent = _kind(path, collection=True).parent(path)
        if parent:
            await self._check_exists(parent)
        await self.copy.caught_up()
        return self.tree.members(path)

    async def delete(self, paths: list[Path], if_match: int | None = None) -> Changed:
        await self.copy.caught_up()
        for path in paths:
            self.check_deletable(path, if_match)
        self._deleting.update(paths)
        try:
            last = 0
            for start in range(0, len(paths), BATCH):
                last = max(last, await self._delete_batch(paths[start : start + BATCH]))
        finally:
            self._deleting.difference_update(paths)
        return Changed(removed=[list(path) for path in paths], seq=last)

    async def _delete_batch(self, paths: list[Path]) -> int:
        revisions = {key_of(path): stored.seq for path in paths if (stored := self.tree.get(path)) is not None}
        try:
            if len(revisions) == 1:
                ((key, last),) = revisions.items()
                await self._bucket.delete(key, last)
            else:
                last = await self._bucket.delete_all(revisions)
        except Conflict:
            raise Refused(conflict("a resource changed while it was being deleted; try again")) from None
        for path in paths:
            stored = self.tree.get(path)
            self.tree.drop(path, stored.seq if stored is not None else 0)
        return last

    def check_deletable(self, path: Path, if_match: int | None = None) -> None:
        stored = self.tree.get(path)
        if stored is None:
            raise self._missing(path)
        _check_match(path, if_match, stored.seq)
        self._check_childless(path)

    # --- what is there -----------------------------------------------------------------------------------------------

    async def _current(self, path: Path) -> tuple[Resource, int]:
        stored = self.tree.get(path)
        if stored is not None:
            return stored.value, stored.seq
        entry = await self._bucket.get(key_of(path))
        if entry is None:
            raise self._missing(path)
        value = resource_copy.decode(entry.value)
        self.tree.put(path, value, entry.revision)
        return value, entry.revision

    def _missing(self, path: Path) -> Refused:
        """Parts of an Application can be read here, but not changed."""
        parents = [path[:length] for length in (5, 7) if len(path) >= length]
        of_application = any(map(self._is_elsewhere, [*parents, path]))
        return Refused(_by_application(path) if of_application else not_found(_text(path)))

    async def _check_exists(self, path: Path) -> None:
        if not self.copy.exists(path):
            await self._current(path)

    def _check_childless(self, path: Path) -> None:
        below = self.tree.children(path) or ("a resource that is being created" if self._creating.get(path) else "")
        if below:
            detail = f"{_text(path)} has {below} below it; delete those first"
            raise Refused(Problem(title="Has children", status=409, code="HasChildren", detail=detail))


def _kind(path: Path, *, collection: bool = False) -> ResourceKind:
    kind = kind_of(path, collection=collection)
    if kind is None:
        raise Refused(not_found(_text(path)))
    return kind


def _replaced(
    kind: ResourceKind, body: NormalizedBody, value: Resource, stored: Resource, *, has_file: bool
) -> Resource:
    """Returns the new value, with what a body without a file does not change."""
    if has_file:
        objects = restore(value.objects, stored.objects)
        return msgspec.structs.replace(value, objects=objects, created=stored.created)
    has_manifests = resource_values.has_manifests(body.body)
    return msgspec.structs.replace(
        value,
        objects=value.objects or (stored.objects if kind.upload and not has_manifests else []),
        chart="" if has_manifests else stored.chart,
        values=stored.values,
        kubeconfig=value.kubeconfig or stored.kubeconfig,
        created=stored.created,
    )


def _check_names(kind: ResourceKind, path: Path, body: NormalizedBody) -> None:
    """The body must have the name of its path."""
    names = body.names
    if names == path[-len(names) :]:
        return
    if kind is COMPOSITE_APP:
        field = "spec.compositeAppVersion" if names[0] == path[-2] else "metadata.name"
        message = f"{'/'.join(names)} is not {'/'.join(path[-2:])}, as the path says"
    else:
        field = "clusterLabel" if kind.body is v2_bodies.ClusterLabel else "metadata.name"
        message = f"is {names[-1]!r}, but the path says {path[-1]!r}"
    raise Refused(invalid([Violation(path=body.written.of(field), code="NameMismatch", message=message)]))


def _check_match(path: Path, if_match: int | None, seq: int) -> None:
    if if_match is not None and if_match != seq:
        detail = f"{_text(path)} has changed; its ETag is now {seq}"
        raise Refused(Problem(title="Changed since", status=412, code="Changed", detail=detail))


def _text(path: Path) -> str:
    return "/".join(path)


def _already_exists(path: Path) -> Problem:
    return Problem(title="Exists already", status=409, code="AlreadyExists", detail=f"{_text(path)} exists already")


def _by_application(path: Path) -> Problem:
    detail = f"{_text(path)} is part of an Application; change that document instead"
    return Problem(title="Made by an Application", status=409, code="MadeByApplication", detail=detail)
