"""What all apps of a cluster share, and which objects an app is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from moorage.kube import MANAGER, Api, ApiError, Kind, Kinds, Term
from moorage.manifests import PatchError
from moorage.manifests import apply as patched
from moorage.model.desired import DesiredApp

from .core import View
from .following import Following
from .records import Record, Records, Ref

#: What cannot be followed is compared this often, or less so that all of it asks at most this many times a second.
COMPARE, PER_SECOND = 30.0, 2.0

Manifest = dict[str, Any]


class Settled(Protocol):
    """An app, as others of the same cluster see it."""

    label: str
    record: Record


class Site:
    def __init__(self, api: Api, term: Term, records: Records, kinds: Kinds, following: Following, view: View) -> None:  # fmt: skip
        self.api, self.term, self.records, self.kinds = api, term, records, kinds
        self.following, self.view = following, view
        self.together = asyncio.Semaphore(16)
        self.spaces = asyncio.Lock()  # apps that start together would make one namespace twice
        self.unfollowed: dict[str, int] = {}  # per app, objects that somebody has to look at
        self.apps: Mapping[str, Settled] = {}

    def among(self, apps: Mapping[str, Settled]) -> None:
        self.apps = apps

    def others_in(self, namespace: str, label: str) -> bool:
        return any(
            ref.namespace == namespace for a in self.apps.values() if a.label != label for ref in a.record.content.refs
        )

    def compare_every(self) -> float:
        return max(COMPARE, sum(self.unfollowed.values()) / PER_SECOND)

    async def kind(self, ref: Ref) -> Kind:
        kind = await self.kinds.find(ref.api_version, ref.kind)
        if kind is None:
            raise ApiError(422, "NoKind", f"the cluster has no kind {ref.kind} in {ref.api_version}")
        return kind


class Owner(NamedTuple):
    """An app, as it stands on what it made."""

    label: str
    name: str

    @property
    def manager(self) -> str:
        """On objects of others each app has a name of its own: what one takes back stays another's."""
        return f"{MANAGER}-{self.label}"


def objects_of(desired: DesiredApp) -> dict[Ref, Manifest]:
    """PatchError where the patch does not fit its objects."""
    made = patched({"objects": desired.objects}, desired.patch)["objects"]
    for obj in made:
        if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict) or not obj["metadata"].get("name"):
            raise PatchError("an object without a name")
    return {ref_of(obj): obj for obj in made}


def ref_of(obj: Manifest) -> Ref:
    meta = obj["metadata"]
    return Ref(
        str(obj.get("apiVersion", "")),
        str(obj.get("kind", "")),
        str(meta.get("namespace") or "default"),
        str(meta["name"]),
    )


def key_of(obj: Manifest) -> str:
    return f"{obj.get('kind', '')}/{(obj.get('metadata') or {}).get('name', '')}"
