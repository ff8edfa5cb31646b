"""Installs workers in a cluster, with an administrator's rights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from moorage.model.object_names import INSTALLER

from .api import Api, ApiError
from .apply import apply
from .discovery import ApiDiscovery

Say = Callable[[str], None]


async def install_objects(api: Api, objects: Iterable[dict[str, Any]], say: Say) -> None:
    """Applies objects in their order, and says of each whether it was created. Safe to repeat."""
    kinds = ApiDiscovery(api)
    for obj in objects:
        kind = await kinds.find(obj["apiVersion"], obj["kind"])
        if kind is None:
            raise ApiError(404, "NoKind", f"the cluster has no kind {obj['kind']} in {obj['apiVersion']}")
        _, created = await apply(api, kind, obj, force=True, manager=INSTALLER)
        say(f"{obj['kind']} {obj['metadata']['name']} {'created' if created else 'exists'}")
