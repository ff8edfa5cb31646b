"""Resources in their bucket, one key each. Several stores may run: a change is made from what was read and written only
if that still stands. What cannot be tied to one key (a child made while its parent goes) is seen by whoever reads the
bucket in order, and mended."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from moorage.bus import Bus, Conflict, NoAnswer, now_text
from moorage.bus.ordered_consumer import OrderedConsumer
from moorage.mesh import stores
from moorage.model import v2_bodies
from moorage.model.problems import Problem, Refused, Violation, conflict, invalid, not_found
from moorage.model.v2_resources import (
    APP,
    CLUSTER,
    COMPOSITE_APP,
    GROUP,
    PROJECT,
    Change,
    Changed,
    Path,
    Resource,
    ResourceKind,
    ResourceTree,
    key_of,
    kind_of,
    path_of,
)
from moorage.parsing.redaction import REDACTED, restore

from ..core.v2_normalize import read
from ..core.v2_spelling import plain
from . import charts, uploads

log = structlog.get_logger("intents")
_encode = msgspec.json.Encoder().encode
_any = msgspec.json.Decoder()
_resource = msgspec.json.Decoder(Resource)
_consumer = msgspec.json.Decoder(v2_bodies.Consumer)

ATTEMPTS = 10
#: As many go at once; the broker takes a thousand in one batch.
BATCH = 1000
MAX_VALUE = 3 << 20
#: How a body ends whose spec says nothing: it is answered without one.
_NO_SPEC = b',"spec":{}}'


class ResourceStore:
    """`others`: whether something that is no resource stands at a path; groups that Applications make do."""

    def __init__(self, bus: Bus, others: Callable[[Path], bool]) -> None:
        self._bus = bus
        self._bucket = bus.bucket(stores.RESOURCES)
        self._others = others
        self.tree = ResourceTree()
        self._moved = asyncio.Event()
        self._making: Counter[Path] = Counter()  # parents below which something is being made
        self._leaving: set[Path] = set()
        self._orphans: set[Path] = set()
        self._mirrors: list[OrderedConsumer] = []

    async def start(self) -> None:
        self._mirrors.append(await self._bucket.mirror(self._saw, passed=self._passed))
        self._bus.spawn(self._mend())

    # --- what the bucket says ----------------------------------------------------------------------------------------

    def _saw(self, key: str, value: bytes | None, seq: int) -> None:
        path = path_of(key)
        if value is None:
            self.tree.drop(path, seq, mirrored=True)
            self._orphans.update(self.tree.below(path))
        else:
            self.tree.put(path, _resource.decode(value), seq)
            kind = kind_of(path)
            if kind is not None and kind.parent(path) and not self._exists(kind.parent(path)):
                self._orphans.add(path)

    def _passed(self, seq: int) -> None:
        self.tree.position = max(self.tree.position, seq)
        self._moved.set()
        self._moved = asyncio.Event()

    def priority(self, controller: str) -> int:
        """What the resource of a controller's name says; 0 where there is none."""
        held = self.tree.get(("controllers", controller))
        return 0 if held is None else msgspec.json.decode(held.value.body, type=v2_bodies.ControllerBody).spec.priority

    async def caught_up(self) -> None:
        """Until what is in memory is at least what the bucket held a moment ago."""
        last = await self._bucket.last()
        try:
            async with asyncio.timeout(5):
                while self.tree.position < last:
                    await self._moved.wait()
        except TimeoutError:
            raise NoAnswer("the copy of the resources does not follow its bucket") from None

    async def _mend(self) -> None:
        """What has no parent was made while its parent went, in another process: it goes, too."""
        while True:
            await asyncio.sleep(1)
            orphans, self._orphans = self._orphans, set()
            for path in orphans:
                kind, held = kind_of(path), self.tree.get(path)
                if kind is None or held is None or not kind.parent(path) or self._exists(kind.parent(path)):
                    continue
                try:
                    await self._bucket.delete(key_of(path), held.seq)
                    self._bus.count("orphans")
                except Conflict:
                    continue
                except NoAnswer:
                    self._orphans.add(path)

    def _exists(self, path: Path) -> bool:
        return self.tree.get(path) is not None or self._others(path)

    # --- changes -----------------------------------------------------------------------------------------------------

    async def create(self, change: Change) -> Changed:
        collection = tuple(change.path)
        kind = _kind(collection, collection=True)
        given = read(kind, _known(kind, _data(change.body), []))
        path = (*collection, *given.names)
        value = _value(kind, given.body, change.file)
        if value.objects:
            value.objects = restore(value.objects, [])
        parent = kind.parent(path)
        if parent:
            await self._must_exist(parent)
            if parent in self._leaving:
                raise Refused(conflict(f"{_told(parent)} is being deleted"))
            if self.tree.get(parent) is None and kind.parent(kind.path) != PROJECT.path:
                raise Refused(_by_application(parent))
        self._belongs(kind, path, given.body)
        if kind is GROUP and self._others(path):
            raise Refused(_exists_already(path))
        self._making[parent] += 1
        try:
            try:
                seq = await self._create(path, value)
            except Conflict:
                seq = await self._done_already(path, value) if change.again else 0
                if not seq:
                    raise Refused(_exists_already(path)) from None
        finally:
            self._making[parent] -= 1
            if not self._making[parent]:
                del self._making[parent]
        self.tree.put(path, value, seq)
        return Changed(path=list(path), body=value.body, seq=seq, warnings=list(given.warnings))

    def _belongs(self, kind: ResourceKind, path: Path, body: Any) -> None:
        """An amount belongs to a container, which is the parent's to name."""
        held = self.tree.get(kind.parent(path))
        if kind.body is not v2_bodies.Requirement or not body.spec.allocatable or held is None:
            return
        if not _consumer.decode(held.value.body).spec.container:
            message = "an allocatable resource belongs to a container, and the consumer names none"
            raise Refused(invalid([Violation(path="spec.allocatable", code="NoContainer", message=message)]))

    async def _done_already(self, path: Path, value: Resource) -> int:
        """By whoever was asked first, and has not answered."""
        old, seq = await self._now(path)
        return seq if _same(old, value) else 0

    async def _create(self, path: Path, value: Resource) -> int:
        """A missing acknowledgement is settled by looking."""
        data = _bounded(value)
        key = key_of(path)
        held = self.tree.get(path)
        if held is not None:
            raise Conflict(key)
        try:
            return await self._bucket.create(key, data)
        except NoAnswer:
            entry = await self._bucket.get(key)
            if entry is None or entry.value != data:
                raise
            return entry.revision

    async def replace(self, change: Change) -> Changed:
        path = tuple(change.path)
        kind = _kind(path)
        data = _data(change.body)
        if kind is APP and REDACTED.encode() in bytes(change.body):
            data = _known(kind, data, (await self._now(path))[0].objects)
        given = read(kind, data)
        if given.names != path[-len(given.names) :]:
            field = "clusterLabel" if kind.body is v2_bodies.ClusterLabel else "metadata.name"
            if kind is COMPOSITE_APP and given.names[0] == path[-2]:
                field = "spec.compositeAppVersion"
            message = f"is {given.names[-1]!r}, the path says {path[-1]!r}"
            if kind is COMPOSITE_APP:
                message = f"{'/'.join(given.names)} is not {'/'.join(path[-2:])}, as the path says"
            raise Refused(invalid([Violation(path=field, code="NameMismatch", message=message)]))
        self._belongs(kind, path, given.body)
        value = _value(kind, given.body, change.file)
        for _ in range(ATTEMPTS):
            old, seq = await self._now(path)
            if change.again and _same(old, value):
                return Changed(path=list(path), body=value.body, seq=seq, warnings=list(given.warnings))
            _matches(path, change.if_match, seq)
            self._childless(path)
            if change.file:
                value.objects = restore(value.objects, old.objects)
            else:
                value.objects = value.objects or (old.objects if kind.upload and not _manifests(given.body) else [])
                value.chart, value.values = old.chart, old.values
                value.kubeconfig = value.kubeconfig or old.kubeconfig
                if _manifests(given.body):
                    value.chart = ""
            value.created = old.created
            try:
                seq = await self._bucket.update(key_of(path), _bounded(value), seq)
            except Conflict:
                self.tree.drop(path, 0, mirrored=True)
                continue
            self.tree.put(path, value, seq)
            return Changed(path=list(path), body=value.body, seq=seq, warnings=list(given.warnings))
        raise Refused(conflict(f"{_told(path)} keeps changing; try again"))

    async def chosen(self, change: Change) -> list[Path]:
        """What a DELETE is about: one, or all of a collection."""
        path = tuple(change.path)
        if change.verb == "delete":
            _kind(path)
            if change.again:
                await self.caught_up()
                return [path] if self.tree.get(path) is not None else []
            return [path]
        parent = _kind(path, collection=True).parent(path)
        if parent:
            await self._must_exist(parent)
        await self.caught_up()
        return self.tree.members(path)

    async def remove(self, paths: list[Path], if_match: int | None = None) -> Changed:
        await self.caught_up()
        for path in paths:
            self.may_go(path, if_match)
        self._leaving.update(paths)
        try:
            last = 0
            for start in range(0, len(paths), BATCH):
                part = paths[start : start + BATCH]
                revisions = {key_of(p): held.seq for p in part if (held := self.tree.get(p)) is not None}
                try:
                    if len(revisions) == 1:
                        ((key, seq),) = revisions.items()
                        await self._bucket.delete(key, seq)
                        last = max(last, seq)
                    else:
                        last = await self._bucket.delete_all(revisions)
                except Conflict:
                    raise Refused(conflict("what is to be deleted changed at this moment; try again")) from None
                for path in part:
                    held = self.tree.get(path)
                    self.tree.drop(path, held.seq if held is not None else 0)
        finally:
            self._leaving.difference_update(paths)
        return Changed(removed=[list(p) for p in paths], seq=last)

    def may_go(self, path: Path, if_match: int | None = None) -> None:
        held = self.tree.get(path)
        if held is None:
            raise self._missing(path)
        _matches(path, if_match, held.seq)
        self._childless(path)

    async def _now(self, path: Path) -> tuple[Resource, int]:
        held = self.tree.get(path)
        if held is not None:
            return held.value, held.seq
        entry = await self._bucket.get(key_of(path))
        if entry is None:
            raise self._missing(path)
        value = _resource.decode(entry.value)
        self.tree.put(path, value, entry.revision)
        return value, entry.revision

    def _missing(self, path: Path) -> Refused:
        """What an Application made can be seen, and not be changed here."""
        own = any(self._others(path[:cut]) for cut in (5, 7) if len(path) >= cut) or self._others(path)
        return Refused(_by_application(path) if own else not_found(_told(path)))

    async def _must_exist(self, path: Path) -> None:
        if not self._exists(path):
            await self._now(path)

    def _childless(self, path: Path) -> None:
        below = self.tree.children(path) or ("something" if self._making.get(path) else "")
        if below:
            detail = f"{_told(path)} has {below} below it; delete those first"
            raise Refused(Problem(title="Has children", status=409, code="HasChildren", detail=detail))


def _kind(path: Path, *, collection: bool = False) -> ResourceKind:
    kind = kind_of(path, collection=collection)
    if kind is None:
        raise Refused(not_found("/".join(path)))
    return kind


def _data(body: msgspec.Raw) -> Any:
    return _any.decode(body)


def _known(kind: ResourceKind, data: Any, before: list[dict[str, Any]]) -> Any:
    """With the values of Secrets that the sender was not shown."""
    spec = data.get("spec") if isinstance(data, dict) else None
    if kind is not APP or not isinstance(spec, dict):
        return data
    manifests = spec.get("manifests")
    if isinstance(manifests, str):
        if REDACTED not in manifests:
            return data
        manifests = uploads.documents(manifests, "spec.manifests")
    return {**data, "spec": {**spec, "manifests": restore(manifests, before)}} if manifests else data


def _manifests(body: msgspec.Struct) -> bool:
    return isinstance(body, v2_bodies.App) and bool(body.spec.manifests)


def _value(kind: ResourceKind, body: msgspec.Struct, file: str) -> Resource:
    """With what came in a file, read and checked."""
    value = Resource(body=msgspec.Raw(b"null"), created=now_text())
    if kind is CLUSTER:
        value.kubeconfig = _taken_out(body)
    data = b""
    if file:
        try:
            data = base64.b64decode(file, validate=True)
        except binascii.Error:
            raise uploads.refused("Undecodable", "is not base64") from None
        if not data.strip():
            raise uploads.refused("Empty", "is empty")
    if isinstance(body, v2_bodies.App):
        if body.spec.manifests and data:
            raise uploads.refused("Contradiction", "manifests come in a file or in spec.manifests, not both")
        if isinstance(body.spec.manifests, str):
            value.objects = uploads.manifests(body.spec.manifests, "spec.manifests") if body.spec.manifests else []
        elif body.spec.manifests:
            value.objects = uploads.manifests(_encode(body.spec.manifests), "spec.manifests")
        elif data:
            upload = uploads.app(data)
            value.objects = upload.objects
            if upload.chart:
                if (problem := charts.missing()) is not None:
                    raise Refused(problem)
                value.chart = file
    elif data and kind.upload and isinstance(body, v2_bodies.OfApp):
        value.values = uploads.values(data)
    elif data and kind is CLUSTER:
        value.kubeconfig = uploads.kubeconfig(data)
    elif data:
        raise uploads.refused("NotTaken", f"{kind.about} takes no file")
    encoded = _encode(body)
    value.body = msgspec.Raw(encoded.removesuffix(_NO_SPEC) + b"}" if encoded.endswith(_NO_SPEC) else encoded)
    return value


def _taken_out(body: msgspec.Struct) -> str:
    """A kubeconfig that came in the body is kept where those of files are: in what is never answered."""
    assert isinstance(body, v2_bodies.Named)
    for key in [k for k in body.spec if plain(k) == "kubeconfig"]:
        given = body.spec.pop(key)
        text = given if isinstance(given, str) else _encode(given).decode()
        return uploads.kubeconfig(text.encode(), f"spec.{key}")
    return ""


def _same(one: Resource, other: Resource) -> bool:
    return msgspec.structs.replace(one, created="") == msgspec.structs.replace(other, created="")


def _bounded(value: Resource) -> bytes:
    data = _encode(value)
    if len(data) > MAX_VALUE:
        detail = f"{len(data)} bytes; at most {MAX_VALUE} are stored of one resource"
        raise Refused(Problem(title="Too large", status=413, code="TooLarge", detail=detail))
    return data


def _matches(path: Path, wanted: int | None, seq: int) -> None:
    if wanted is not None and wanted != seq:
        detail = f"{_told(path)} changed since; its ETag is now {seq}"
        raise Refused(Problem(title="Changed since", status=412, code="Changed", detail=detail))


def _told(path: Path) -> str:
    return "/".join(path)


def _exists_already(path: Path) -> Problem:
    return Problem(title="Exists already", status=409, code="AlreadyExists", detail=f"{_told(path)} exists already")


def _by_application(path: Path) -> Problem:
    detail = f"{_told(path)} is part of an Application; change that document instead"
    return Problem(title="Made by an Application", status=409, code="MadeByApplication", detail=detail)
