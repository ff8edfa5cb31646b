"""The kinds of `/v2` resources, their places in the tree, and the copy of the tree that the intent store and the gateways
keep in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec

from . import v2_bodies
from .base import Message, Model
from .names import token, untoken
from .problems import Problem
from .reasons import Warn

Path = tuple[str, ...]


class ResourceKind(NamedTuple):
    """A kind of resource. `path` is of one resource, with names in braces. `upload`: its body may come with a file."""

    path: Path
    body: type[msgspec.Struct]
    about: str
    upload: bool = False
    replaced: bool = True  # PUT is possible

    @property
    def collection(self) -> Path:
        return _collection(self.path)

    @property
    def segment(self) -> str:
        return self.collection[-1]

    @property
    def names(self) -> int:
        return len(self.path) - len(self.collection)

    def parent(self, path: Path) -> Path:
        return path[: len(self.collection) - 1]


@cache
def _collection(path: Path) -> Path:
    """Composite apps have two name segments, the name and the version."""
    at = len(path)
    while path[at - 1].startswith("{"):
        at -= 1
    return path[:at]


def _kind(
    path: str, body: type[msgspec.Struct], about: str, *, upload: bool = False, replaced: bool = True
) -> ResourceKind:
    return ResourceKind(tuple(path.split("/")), body, about, upload, replaced)


_PROJECT = "projects/{project}"
_APP = _PROJECT + "/composite-apps/{app}/{version}"
_GROUP = _APP + "/deployment-intent-groups/{group}"
_CLOUD = _PROJECT + "/logical-clouds/{cloud}"
_CLUSTER = "cluster-providers/{provider}/clusters/{cluster}"

KINDS: tuple[ResourceKind, ...] = (
    _kind(_PROJECT, v2_bodies.Named, "a project"),
    _kind(_APP, v2_bodies.CompositeApp, "a composite app in one version"),
    _kind(_APP + "/apps/{member}", v2_bodies.App, "an app, with its manifests or its chart", upload=True),
    _kind(_APP + "/composite-profiles/{composite-profile}", v2_bodies.Named, "a set of profiles"),
    _kind(
        _APP + "/composite-profiles/{composite-profile}/profiles/{profile}",
        v2_bodies.OfApp,
        "values for the chart of an app",
        upload=True,
    ),
    _kind(_GROUP, v2_bodies.Group, "a deployment intent group"),
    _kind(_GROUP + "/intents/{map}", v2_bodies.Intents, "which intents of the group count"),
    _kind(_GROUP + "/generic-placement-intents/{placement}", v2_bodies.Named, "placement by name and label"),
    _kind(
        _GROUP + "/generic-placement-intents/{placement}/app-intents/{app-intent}",
        v2_bodies.AppIntent,
        "the clusters of one app",
    ),
    _kind(_GROUP + "/hpa-intents/{intent}", v2_bodies.OfApp, "a hardware intent of one app"),
    _kind(
        _GROUP + "/hpa-intents/{intent}/hpa-resource-consumers/{consumer}",
        v2_bodies.Consumer,
        "an object, and the container in it, that needs hardware",
    ),
    _kind(
        _GROUP + "/hpa-intents/{intent}/hpa-resource-consumers/{consumer}/resource-requirements/{requirement}",
        v2_bodies.Requirement,
        "one need of a consumer",
    ),
    _kind(_CLOUD, v2_bodies.Named, "a logical cloud"),
    _kind(_CLOUD + "/cluster-references/{reference}", v2_bodies.ClusterReference, "a cluster of a logical cloud"),
    _kind(_CLOUD + "/cluster-quotas/{quota}", v2_bodies.Named, "a quota of a logical cloud"),
    _kind(_CLOUD + "/user-permissions/{permission}", v2_bodies.Named, "permissions in a logical cloud"),
    _kind(_CLOUD + "/kv-pairs/{pairs}", v2_bodies.KeyValuePairs, "keys and values of a logical cloud"),
    _kind("cluster-providers/{provider}", v2_bodies.Named, "a provider of clusters"),
    _kind(_CLUSTER, v2_bodies.Named, "a cluster, perhaps with its kubeconfig", upload=True),
    _kind(_CLUSTER + "/labels/{label}", v2_bodies.ClusterLabel, "a label of a cluster", replaced=False),
    _kind(_CLUSTER + "/kv-pairs/{pairs}", v2_bodies.KeyValuePairs, "keys and values of a cluster"),
    _kind("controllers/{controller}", v2_bodies.ControllerBody, "a controller of another system"),
    _kind("clm-controllers/{controller}", v2_bodies.ControllerBody, "a controller of cluster life cycles"),
    _kind("dcm-controllers/{controller}", v2_bodies.ControllerBody, "a controller of logical clouds"),
)
_BY_SHAPE: dict[tuple[str, ...], ResourceKind] = {}


def _shape(path: Path) -> tuple[str, ...]:
    return tuple("" if part.startswith("{") else part for part in path)


for _one in KINDS:
    _BY_SHAPE[_shape(_one.path)] = _one
PROJECT = KINDS[0]
COMPOSITE_APP = KINDS[1]
APP = _BY_SHAPE[_shape(tuple((_APP + "/apps/{member}").split("/")))]
GROUP = _BY_SHAPE[_shape(tuple(_GROUP.split("/")))]
HPA_INTENT = _BY_SHAPE[_shape(tuple((_GROUP + "/hpa-intents/{intent}").split("/")))]
CLUSTER = _BY_SHAPE[_shape(tuple(_CLUSTER.split("/")))]
CHILDREN: dict[Path, tuple[ResourceKind, ...]] = {
    kind.path: tuple(other for other in KINDS if other.parent(other.path) == kind.path) for kind in KINDS
}


def _words(pattern: Path) -> tuple[tuple[int, str], ...]:
    """Returns the positions of segments that are no names."""
    return tuple((at, part) for at, part in enumerate(pattern) if not part.startswith("{"))


#: Kinds by the fixed segments and the length of their paths.
_PATTERNS: dict[tuple[bool, int], list[tuple[tuple[tuple[int, str], ...], ResourceKind]]] = defaultdict(list)
for _one in KINDS:
    _PATTERNS[False, len(_one.path)].append((_words(_one.path), _one))
    _PATTERNS[True, len(_one.collection)].append((_words(_one.collection), _one))


def kind_of(path: Path, *, collection: bool = False) -> ResourceKind | None:
    """Returns the kind of a resource, or of the resources in a collection."""
    for words, kind in _PATTERNS.get((collection, len(path)), ()):
        for at, word in words:
            if path[at] != word:
                break
        else:
            return kind
    return None


def key_of(path: Path) -> str:
    return ".".join(map(token, path))


def path_of(key: str) -> Path:
    return tuple(untoken(part) for part in key.split("."))


def group_path(group: str) -> Path:
    project, app, version, name = group.split("/")
    return ("projects", project, "composite-apps", app, version, "deployment-intent-groups", name)


def group_name(path: Path) -> str:
    """Returns the group of a resource below a deployment intent group."""
    return "/".join((path[1], path[3], path[4], path[6]))


class Resource(Model, kw_only=True):
    """A value of the bucket `moorage-resources`. Only `body` is shown to clients."""

    body: msgspec.Raw
    created: str = ""
    objects: list[dict[str, Any]] = []  # manifests of an app, from a file
    chart: str = ""  # Helm chart of an app as .tgz, base64
    values: dict[str, Any] = {}  # of a profile
    kubeconfig: str = ""  # of a cluster


class ShownResource(Model, kw_only=True):
    """The part of a Resource that is shown to clients."""

    body: msgspec.Raw


class Change(Message, kw_only=True, forbid_unknown_fields=True):
    """The request on `moorage.intents.resource`: POST into a collection, PUT or DELETE of one resource, or DELETE of a
    collection. `file` is base64. `if_match`: the resource must still have this revision of the bucket. `again`: the request
    is repeated, and an intent store that died may have carried it out already."""

    verb: str  # create | replace | delete | clear
    path: list[str]
    body: msgspec.Raw = msgspec.Raw(b"null")
    file: str = ""
    if_match: int | None = None
    again: bool = False


class Changed(Model, kw_only=True):
    accepted: bool = True
    path: list[str] = []
    body: msgspec.Raw = msgspec.Raw(b"null")
    seq: int = 0
    removed: list[list[str]] = []
    warnings: list[Warn] = []
    problem: Problem | None = None


class StoredResource(NamedTuple):
    value: Any
    seq: int


class ResourceTree:
    """All resources by path, kept current from a mirror and from own writes, which may arrive in any order."""

    def __init__(self) -> None:
        self._held: dict[Path, StoredResource] = {}
        self._gone: dict[Path, int] = {}
        self._in: dict[Path, dict[Path, None]] = defaultdict(dict)  # collection → names
        self.position = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, path: Path) -> StoredResource | None:
        return self._held.get(path)

    def put(self, path: Path, value: Any, seq: int) -> bool:
        """Returns False if something newer is known already."""
        held = self._held.get(path)
        if (held is not None and held.seq >= seq) or self._gone.get(path, 0) >= seq:
            return False
        self._held[path] = StoredResource(value, seq)
        kind = kind_of(path)
        if kind is not None:
            self._in[path[: len(kind.collection)]][path] = None
        return True

    def drop(self, path: Path, seq: int, *, mirrored: bool = False) -> bool:
        held = self._held.get(path)
        if mirrored:
            if self._gone.get(path, 0) <= seq or seq == 0:
                self._gone.pop(path, None)
        else:
            self._gone[path] = seq
        if held is None or 0 < seq < held.seq:
            return False
        del self._held[path]
        kind = kind_of(path)
        if kind is not None:
            inside = self._in[path[: len(kind.collection)]]
            inside.pop(path, None)
            if not inside:
                del self._in[path[: len(kind.collection)]]
        return True

    def members(self, collection: Path) -> list[Path]:
        """Returns the paths in a collection, sorted. Composite apps are listed with every version."""
        return sorted(self._in.get(collection, ()))

    def children(self, path: Path) -> str:
        """Returns the first collection below the path that is not empty, or an empty string."""
        kind = kind_of(path)
        for child in CHILDREN[kind.path] if kind is not None else ():
            if self._in.get((*path, child.segment)):
                return child.segment
        return ""

    def below(self, path: Path) -> Iterator[Path]:
        """Yields the paths directly below."""
        kind = kind_of(path)
        for child in CHILDREN[kind.path] if kind is not None else ():
            yield from self._in.get((*path, child.segment), ())

    def paths(self) -> Iterator[Path]:
        yield from self._held
